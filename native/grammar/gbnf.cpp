#include "grammar/gbnf.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "errors.hpp"
#include "grammar/gbnf_text.hpp"

namespace aleator {

bool CharacterSet::has(uint32_t code_point) const {
  for (const Range& r : ranges)
    if (r.first <= code_point && code_point <= r.last) return !negated;
  return negated;
}

bool CharacterSet::may_become(uint32_t value, int n_remain) const {
  if (n_remain < 0 || (n_remain == 1 && value < 2)) return false;  // not UTF-8, or overlong
  uint32_t low = value << (n_remain * 6);
  const uint32_t high = low | ((uint32_t{1} << (n_remain * 6)) - 1);
  if (low == 0 && n_remain == 2) low = 1 << 11;
  if (low == 0 && n_remain == 3) low = 1 << 16;
  for (const Range& r : ranges)
    if (r.first <= high && low <= r.last) return !negated;
  return negated;
}

namespace {

constexpr uint64_t kNoMaximum = UINT64_MAX;

class Parser : GbnfText {
 public:
  Parser(std::string_view text, int32_t n_vocab, const TokenOf& token_of)
      : GbnfText(text), n_vocab_(n_vocab), token_of_(token_of) {}

  Gbnf parse(std::string_view root) {
    if (text_.size() > kMaxText) throw GrammarError("the grammar is longer than 16 MiB");
    if (const size_t nul = text_.find('\0'); nul != text_.npos)
      fail(nul, "a NUL character; write \\x00 in a literal");
    skip_space(true);
    if (at_end()) throw GrammarError("the grammar has no rules: write at least root ::= ...");
    while (!at_end()) rule();
    for (size_t id = 0; id < rules_.size(); ++id)
      if (!rules_[id].defined)
        fail(rules_[id].mentioned, "rule '" + rules_[id].name + "' is not defined");
    const auto it = symbols_.find(std::string(root));
    if (it == symbols_.end())
      throw GrammarError("the grammar has no rule '" + std::string(root) +
                         "', where it should begin: define it, or name another root");
    return flat(it->second);
  }

 private:
  struct Item {
    Gbnf::Kind kind;
    int32_t value;
  };
  using Sequence = std::vector<Item>;
  struct Draft {
    std::string name;  // of the rule as written, which a generated one belongs to
    size_t mentioned;
    bool defined = false;
    std::vector<Sequence> alternates;
  };
  int32_t symbol(std::string_view name, size_t at) {
    const auto [it, added] = symbols_.emplace(name, int32_t(rules_.size()));
    if (added) rules_.push_back({std::string(name), at, false, {}});
    return it->second;
  }

  int32_t generated(int32_t owner, size_t at) {
    count_elements(1, at);
    rules_.push_back({rules_[owner].name, at, true, {}});
    return int32_t(rules_.size() - 1);
  }

  void count_elements(uint64_t n, size_t at) {
    n_elements_ += n;
    if (n_elements_ > kMaxElements)
      fail(at, message("the grammar needs more than ", kMaxElements,
                       " elements here: repeat less, or shorter parts"));
  }

  void rule() {
    const size_t at = pos_;
    const int32_t id = symbol(name(), at);
    skip_space(false);
    if (text_.substr(pos_, 3) != "::=")
      fail(pos_,
           "expected ::= after the name of a rule, found " + found() +
               "; an alternate that goes on in a new line has its | at the end of the line before");
    pos_ += 3;
    skip_space(true);
    auto drafted = alternates(id, false);
    Draft& draft = rules_[id];
    draft.alternates = std::move(drafted);
    draft.defined = true;
    draft.mentioned = at;
    if (peek() == '\r') {
      pos_ += peek(1) == '\n' ? 2 : 1;
    } else if (peek() == '\n') {
      ++pos_;
    } else if (!at_end()) {
      fail(pos_, "expected an item, | or the end of the line, found " + found());
    }
    skip_space(true);
  }

  std::vector<Sequence> alternates(int32_t owner, bool nested) {
    std::vector<Sequence> all{sequence(owner, nested)};
    while (peek() == '|') {
      ++pos_;
      skip_space(true);
      count_elements(1, pos_);
      all.push_back(sequence(owner, nested));
    }
    return all;
  }

  void push(Sequence& sequence, Gbnf::Kind kind, int64_t value) {
    count_elements(1, pos_);
    sequence.push_back({kind, int32_t(value)});
  }

  void push_set(Sequence& sequence, CharacterSet set) {
    const auto [it, added] = sets_.emplace(std::move(set), int32_t(sets_.size()));
    if (added && sets_.size() > kMaxSets)
      fail(pos_, message("more than ", kMaxSets, " different characters and classes"));
    push(sequence, Gbnf::Kind::character, it->second);
  }

  Sequence sequence(int32_t owner, bool nested) {
    Sequence seq;
    std::optional<size_t> last;  // where what a repetition applies to begins
    for (;;) {
      const size_t at = pos_;
      const char c = peek();
      if (at_end()) return seq;
      if (c == '"') {
        last = seq.size();
        ++pos_;
        while (peek() != '"') {
          if (at_end()) fail(at, "this literal has no closing \"");
          const uint32_t code_point = character();
          push_set(seq, {false, {{code_point, code_point}}});
        }
        ++pos_;
      } else if (c == '[') {
        last = seq.size();
        char_class(seq);
      } else if (c == '.') {
        last = seq.size();
        ++pos_;
        push_set(seq, {true, {}});
      } else if (c == '<' || c == '!') {
        last = seq.size();
        pos_ += c == '!';
        push(seq, c == '!' ? Gbnf::Kind::not_token : Gbnf::Kind::token, token());
      } else if (is_word(c)) {
        last = seq.size();
        push(seq, Gbnf::Kind::rule, symbol(name(), at));
      } else if (c == '(') {
        if (++nesting_ > kMaxNesting)
          fail(at, message("more than ", kMaxNesting, " groups in one another"));
        ++pos_;
        skip_space(true);
        const int32_t group = generated(owner, at);
        auto inner = alternates(owner, true);
        rules_[group].alternates = std::move(inner);
        last = seq.size();
        push(seq, Gbnf::Kind::rule, group);
        if (peek() != ')') fail(pos_, "expected ) to close a group, found " + found());
        ++pos_;
        --nesting_;
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        uint64_t least = c == '+', most = c == '?' ? 1 : kNoMaximum;
        ++pos_;
        if (c == '{') std::tie(least, most) = counts(at, nested);
        if (!last || *last == seq.size())
          fail(at, std::string("nothing stands before ") + c + " to be repeated");
        repeat(seq, *last, least, most, owner, at);
      } else {
        return seq;
      }
      skip_space(nested);
    }
  }

  void char_class(Sequence& seq) {
    const size_t at = pos_++;
    CharacterSet set;
    if (peek() == '^') {
      set.negated = true;
      ++pos_;
    }
    while (peek() != ']') {
      if (at_end()) fail(at, "this class has no closing ]");
      const uint32_t first = character();
      uint32_t last = first;
      if (peek() == '-' && peek(1) != ']') {
        ++pos_;
        if (at_end()) fail(at, "this class has no closing ]");
        last = character();
      }
      count_elements(1, pos_);
      set.ranges.push_back({first, last});
    }
    ++pos_;
    if (!set.ranges.empty()) push_set(seq, std::move(set));  // an empty class is an empty text
  }

  int32_t token() {
    const size_t at = pos_;
    expect('<', "to begin a token");
    if (peek() == '[') {
      ++pos_;
      const size_t number = pos_;
      const uint64_t id = integer("a token id");
      if (id > UINT32_MAX) fail(number, "the token id is too large");
      expect(']', "after a token id");
      expect('>', "after a token id");
      // Ids past the vocabulary are legal in llama.cpp and match nothing.
      return id >= uint64_t(n_vocab_) ? -1 : int32_t(id);
    }
    while (!at_end() && peek() != '>') ++pos_;
    if (at_end()) fail(at, "this token has no closing >");
    ++pos_;
    const std::string_view text = text_.substr(at, pos_ - at);
    const int32_t id = token_of_(text);
    if (id < 0)
      fail(at, std::string(text) +
                   " is not one token of this vocabulary; <[id]> names one by its number");
    return id;
  }

  std::pair<uint64_t, uint64_t> counts(size_t at, bool nested) {
    skip_space(nested);
    const uint64_t least = integer("a number of repetitions");
    uint64_t most = least;
    skip_space(nested);
    if (peek() == ',') {
      ++pos_;
      skip_space(nested);
      most = is_digit(peek()) ? integer("a number of repetitions") : kNoMaximum;
      skip_space(nested);
    }
    if (peek() != '}') fail(pos_, "expected , or } in a repetition, found " + found());
    ++pos_;
    if (most < least) fail(at, "the largest number of repetitions is below the smallest");
    return {least, least <= kLargestMaximum && most > kLargestMaximum ? kNoMaximum : most};
  }

  void repeat(Sequence& seq, size_t begin, uint64_t least, uint64_t most, int32_t owner,
              size_t at) {
    const bool endless = most == kNoMaximum;
    const Sequence item(seq.begin() + static_cast<std::ptrdiff_t>(begin), seq.end());
    const uint64_t n_optional = endless ? 1 : most - least;
    const uint64_t n_items =
        std::min<uint64_t>(least, kMaxElements) + std::min<uint64_t>(n_optional, kMaxElements);
    count_elements(n_items * (item.size() + 1), at);
    if (least == 0) seq.resize(begin);
    for (uint64_t i = 1; i < least; ++i) seq.insert(seq.end(), item.begin(), item.end());
    int32_t tail = -1;
    for (uint64_t i = 0; i < n_optional; ++i) {
      const int32_t id = generated(owner, at);
      Sequence more = item;
      if (endless || i > 0) more.push_back({Gbnf::Kind::rule, endless ? id : tail});
      rules_[id].alternates = {std::move(more), {}};
      tail = id;
    }
    if (n_optional > 0) seq.push_back({Gbnf::Kind::rule, tail});
  }

  Gbnf flat(int32_t root) {
    Gbnf g;
    g.root = root;
    g.sets.resize(sets_.size());
    for (const auto& [set, id] : sets_) g.sets[id] = set;
    std::vector<int32_t> rule_of;
    for (size_t id = 0; id < rules_.size(); ++id) {
      const Draft& draft = rules_[id];
      auto& rule = g.rules.emplace_back();
      rule.name = draft.name;
      for (const Sequence& seq : draft.alternates) {
        rule.alternates.push_back(seq.empty() ? -1 : int32_t(g.elements.size()));
        for (size_t i = 0; i < seq.size(); ++i) {
          const bool end = i + 1 == seq.size();
          g.elements.push_back(
              {seq[i].kind, seq[i].value, end ? -1 : int32_t(g.elements.size() + 1)});
          rule_of.push_back(int32_t(id));
        }
      }
    }
    if (const int32_t id = rank_rules(g); id >= 0) {
      const Draft& draft = rules_[id];
      fail(draft.mentioned,
           "left recursion: rule '" + draft.name +
               "' can begin with itself; write the repetition with * or as right recursion");
    }
    for (const int32_t rule : rule_of) g.rank.push_back(g.rules[rule].rank);
    return g;
  }

  int32_t n_vocab_;
  const TokenOf& token_of_;
  int nesting_ = 0;
  uint64_t n_elements_ = 0;
  std::vector<Draft> rules_;
  std::map<std::string, int32_t, std::less<>> symbols_;
  std::map<CharacterSet, int32_t> sets_;
};

}  // namespace

Gbnf parse_gbnf(std::string_view text, std::string_view root, int32_t n_vocab,
                const TokenOf& token_of) {
  return Parser(text, n_vocab, token_of).parse(root);
}

}  // namespace aleator
