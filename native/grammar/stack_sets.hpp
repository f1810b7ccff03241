// Where a text may stand in a grammar: sets of stacks, each kept once.
//
// A stack holds the elements still to come, innermost on top.  A set of stacks is a map from top
// element to the set of what may lie below it, and whether the empty stack is in it; equal sets
// have one number, so comparing, storing and going back cost nothing, and stacks that differ only
// far down share all above. A set is closed when every top is a character or a token.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "errors.hpp"
#include "grammar/alphabet.hpp"
#include "grammar/gbnf.hpp"

namespace aleator {

class StackSets {
 public:
  static constexpr int32_t kNone = 0;   // no stack at all: the text is refused
  static constexpr int32_t kEmpty = 1;  // the empty stack alone: the text has ended

  struct Entry {
    int32_t element, below;
    auto operator<=>(const Entry&) const = default;
  };

  StackSets(const Gbnf& grammar, const Alphabet& alphabet)
      : grammar_(grammar),
        alphabet_(alphabet),
        n_letters_(size_t(alphabet.size())),
        tidy_at_(kTidyBytes) {
    clear();
  }

  int32_t start() {
    std::vector<Entry> entries;
    bool empty = false;
    for (const int32_t alternate : grammar_.rules[grammar_.root].alternates) {
      if (alternate < 0)
        empty = true;
      else
        entries.push_back({alternate, kEmpty});
    }
    return close(of(empty, std::move(entries)));
  }

  // The closed set after one letter; kEmpty stands for "may be" after a tail.
  int32_t after(int32_t set, int32_t letter) {
    const int32_t row = sets_[set].row;
    if (row >= 0) {
      const int32_t known = rows_[size_t(row) * n_letters_ + size_t(letter)];
      if (known >= 0) return known;
    }
    return find_after(set, letter);
  }
  // True only if every word of up to `length` of these letters (bits as in Alphabet::below) is
  // allowed: all of them lead from the set to one and the same, or are tails that it allows, and so
  // on from there.
  bool all_allowed(int32_t set, const uint64_t* letters, uint32_t length) {
    for (; length > 0; --length) {
      if (!all_usual(set, letters)) return false;
      const int32_t next = sets_[set].usual;
      if (next == set) return true;
      set = next;
    }
    return true;
  }

  bool empty(int32_t set) const { return sets_[set].empty; }
  bool tokens(int32_t set) const { return sets_[set].tokens; }
  size_t n_entries(int32_t set) const { return sets_[set].size; }
  Entry entry(int32_t set, size_t i) const { return entries_[sets_[set].begin + i]; }
  // The closed set of what follows these tops once they are consumed.
  int32_t past(const std::vector<Entry>& consumed) {
    bool empty = false;
    std::vector<Entry> entries;
    for (const Entry& e : consumed) add_next(e.element, e.below, empty, entries);
    return close(of(empty, std::move(entries)));
  }

  // A set of the given entries as they are.
  int32_t of(bool empty, std::vector<Entry> entries) {
    std::sort(entries.begin(), entries.end());
    size_t n = 0;
    for (const Entry& e : entries) {
      if (n > 0 && entries[n - 1].element == e.element)
        entries[n - 1].below = unite(entries[n - 1].below, e.below, 0);
      else
        entries[n++] = e;
    }
    entries.resize(n);
    return intern(empty, entries);
  }

  int32_t both(int32_t a, int32_t b) { return unite(a, b, 0); }

  // Starts an operation, which may do so much work and no more: GrammarError.
  void begin_operation() { budget_ = kMostWork; }
  uint64_t work_done() const { return kMostWork - budget_; }
  // Once memory is short, between operations: forgets what none of `live` needs and renumbers
  // `live`.
  bool untidy() const { return bytes() > tidy_at_; }
  void tidy(const std::vector<int32_t*>& live) {
    std::vector<bool> needed(sets_.size());
    for (const int32_t* id : live) needed[*id] = true;
    for (size_t id = sets_.size(); id-- > 0;)  // what lies below has a smaller number
      if (needed[id])
        for (size_t i = 0; i < sets_[id].size; ++i)
          needed[entries_[sets_[id].begin + i].below] = true;
    const auto sets = std::move(sets_);
    const auto entries = std::move(entries_);
    clear();
    std::vector<int32_t> renamed(sets.size(), kNone);
    std::vector<Entry> copy;
    for (size_t id = 0; id < sets.size(); ++id) {
      if (!needed[id]) continue;
      copy.clear();
      for (size_t i = 0; i < sets[id].size; ++i) {
        const Entry& e = entries[sets[id].begin + i];
        copy.push_back({e.element, renamed[e.below]});
      }
      budget_ = kMostWork;
      renamed[id] = intern(sets[id].empty, copy);
    }
    for (int32_t* id : live) *id = renamed[*id];
    tidy_at_ = std::max(kTidyBytes, 2 * bytes());
  }

  size_t bytes() const {
    return sets_.size() * (sizeof(Set) + 16) + entries_.size() * sizeof(Entry) +
           (rows_.size() + united_.size() * 12) * sizeof(int32_t) + runs_.size() * sizeof(uint64_t);
  }

 private:
  // A mask or a token of an ordinary grammar takes some thousand steps.
  static constexpr uint64_t kMostWork = 5'000'000;  // for which all other texts of an engine wait
  static constexpr int kMostDepth = 4000;
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kTidyBytes = size_t{64} << 20;

  struct Set {
    size_t begin;
    uint32_t size;
    bool empty, tokens;
    int32_t closed = -1, row = -1, run = -1;
    int32_t usual = kNone;  // the set after the most frequent letter that is allowed
  };

  static uint64_t hash(bool empty, std::span<const Entry> entries) {
    uint64_t h = empty ? 0x9E3779B97F4A7C15u : 0xD1B54A32D192ED03u;
    for (const auto& e : entries) {
      h ^= uint64_t(uint32_t(e.element)) << 32 | uint32_t(e.below);
      h *= 0xBF58476D1CE4E5B9u;
      h ^= h >> 29;
    }
    return h;
  }

  int32_t find_after(int32_t set, int32_t letter) {
    std::vector<Entry> consumed;
    for (size_t i = 0; i < n_entries(set); ++i) {
      const Entry e = entry(set, i);
      const auto& element = grammar_.elements[e.element];
      if (element.kind == Gbnf::Kind::character && alphabet_.has(element.value, letter))
        consumed.push_back(e);
    }
    int32_t result = kNone;
    if (!consumed.empty()) result = letter >= alphabet_.n_characters() ? kEmpty : past(consumed);
    Set& s = sets_[set];
    if (s.row < 0) {
      s.row = int32_t(rows_.size() / n_letters_);
      rows_.resize(rows_.size() + n_letters_, -1);
    }
    rows_[size_t(s.row) * n_letters_ + size_t(letter)] = result;
    return result;
  }

  bool all_usual(int32_t set, const uint64_t* letters) {
    const size_t words = alphabet_.words_below();
    if (sets_[set].run < 0) {
      int32_t usual = kNone;
      for (size_t i = 0; i < alphabet_.by_frequency().size() && usual == kNone; ++i)
        usual = after(set, alphabet_.by_frequency()[i]);
      sets_[set].usual = usual;
      sets_[set].run = int32_t(runs_.size());
      runs_.resize(runs_.size() + 2 * words);
    }
    const auto first = size_t(sets_[set].run);
    const int32_t usual = sets_[set].usual;
    for (size_t w = 0; w < words; ++w)
      if (letters[w] & runs_[first + words + w]) return false;
    for (size_t w = 0; w < words; ++w) {
      for (uint64_t unknown = letters[w] & ~runs_[first + w]; unknown; unknown &= unknown - 1) {
        const size_t bit = 64 * w + size_t(std::countr_zero(unknown));
        bool same = true;
        for (size_t letter = bit; letter < n_letters_ && same; letter += 64 * words) {
          const int32_t next = after(set, int32_t(letter));
          const bool tail = int32_t(letter) >= alphabet_.n_characters();
          same = next != kNone && (tail || next == usual);
        }
        runs_[first + (same ? 0 : words) + w] |= unknown & -unknown;
        if (!same) return false;
      }
    }
    return true;
  }

  int32_t intern(bool empty, const std::vector<Entry>& entries) {
    work(1 + entries.size());
    const size_t mask = index_.size() - 1;
    size_t slot = hash(empty, entries) & mask;
    for (; index_[slot] >= 0; slot = (slot + 1) & mask) {
      const Set& set = sets_[index_[slot]];
      if (set.empty == empty && set.size == entries.size() &&
          std::equal(entries.begin(), entries.end(),
                     entries_.begin() + static_cast<std::ptrdiff_t>(set.begin)))
        return index_[slot];
    }
    if (bytes() > kMostBytes)
      throw GrammarError("the grammar needs more than 256 MiB of states here; simplify it");
    const auto id = int32_t(sets_.size());
    bool closed = true, tokens = false;
    for (const Entry& e : entries) {
      const auto kind = grammar_.elements[e.element].kind;
      closed &= kind != Gbnf::Kind::rule;
      tokens |= kind == Gbnf::Kind::token || kind == Gbnf::Kind::not_token;
    }
    sets_.push_back({entries_.size(), uint32_t(entries.size()), empty, tokens, closed ? id : -1});
    entries_.insert(entries_.end(), entries.begin(), entries.end());
    index_[slot] = id;
    if (sets_.size() * 2 > index_.size()) grow_index();
    return id;
  }

  int32_t unite(int32_t a, int32_t b, int depth) {
    if (a == b || b == kNone) return a;
    if (a == kNone) return b;
    if (a > b) std::swap(a, b);
    const uint64_t key = uint64_t(uint32_t(a)) << 32 | uint32_t(b);
    if (const auto it = united_.find(key); it != united_.end()) return it->second;
    if (depth > kMostDepth)
      throw GrammarError(
          message("the grammar is ambiguous over more than ", kMostDepth, " levels of nesting"));
    std::vector<Entry> merged;
    const bool empty = this->empty(a) || this->empty(b);
    const size_t n = n_entries(a), m = n_entries(b);
    work(n + m);
    for (size_t i = 0, j = 0; i < n || j < m;) {
      if (j == m || (i < n && entry(a, i).element < entry(b, j).element)) {
        merged.push_back(entry(a, i++));
      } else if (i == n || entry(b, j).element < entry(a, i).element) {
        merged.push_back(entry(b, j++));
      } else {
        const Entry x = entry(a, i++), y = entry(b, j++);
        merged.push_back({x.element, unite(x.below, y.below, depth + 1)});
      }
    }
    const int32_t result = intern(empty, merged);
    united_.emplace(key, result);
    return result;
  }

  // Replaces rules on top by what they begin with.  Elements are taken in the order of their rules,
  // those that may begin with others first, so that stacks which meet in an element go on together.
  int32_t close(int32_t set) {
    if (sets_[set].closed >= 0) return sets_[set].closed;
    bool empty = this->empty(set);
    std::vector<Entry> result;
    std::map<std::pair<int32_t, int32_t>, int32_t> todo;  // (rank, element) -> below
    std::unordered_map<int32_t, int32_t> done;
    const auto add = [&](Entry e) {
      work(1);
      if (grammar_.elements[e.element].kind != Gbnf::Kind::rule) {
        result.push_back(e);
        return;
      }
      if (const auto it = done.find(e.element); it != done.end()) {
        e.below = unite(it->second, e.below, 0);
        if (e.below == it->second) return;
      }
      int32_t& below = todo[{grammar_.rank[e.element], e.element}];
      below = unite(below, e.below, 0);  // 0, when it is new, is kNone
    };
    for (size_t i = 0; i < n_entries(set); ++i) add(entry(set, i));
    while (!todo.empty()) {
      const auto first = todo.begin();
      const int32_t element = first->first.second, below = first->second;
      todo.erase(first);
      done[element] = below;
      const auto& e = grammar_.elements[element];
      const int32_t rest = e.next < 0 ? below : intern(false, std::vector<Entry>{{e.next, below}});
      for (const int32_t alternate : grammar_.rules[e.value].alternates) {
        if (alternate >= 0) {
          add({alternate, rest});
        } else {
          empty |= this->empty(rest);
          for (size_t i = 0; i < n_entries(rest); ++i) add(entry(rest, i));
        }
      }
    }
    const int32_t closed = of(empty, std::move(result));
    sets_[set].closed = closed;
    return closed;
  }

  // The stacks that are left when `element`, on top of `below`, is consumed.
  void add_next(int32_t element, int32_t below, bool& empty, std::vector<Entry>& entries) const {
    const int32_t next = grammar_.elements[element].next;
    if (next >= 0) {
      entries.push_back({next, below});
      return;
    }
    empty |= this->empty(below);
    for (size_t i = 0; i < n_entries(below); ++i) entries.push_back(entry(below, i));
  }

  void grow_index() {
    std::vector<int32_t> old(index_.size() * 2, -1);
    old.swap(index_);
    const size_t mask = index_.size() - 1;
    for (const int32_t id : old) {
      if (id < 0) continue;
      const Set& set = sets_[id];
      size_t slot = hash(set.empty, std::span(entries_).subspan(set.begin, set.size)) & mask;
      while (index_[slot] >= 0) slot = (slot + 1) & mask;
      index_[slot] = id;
    }
  }

  void work(size_t n) {
    if (n > budget_)
      throw GrammarError(message("the grammar is too ambiguous here: one step takes more than ",
                                 kMostWork, " operations; simplify its alternates"));
    budget_ -= n;
  }

  void clear() {
    sets_.clear();
    entries_.clear();
    united_.clear();
    rows_.clear();
    runs_.clear();
    index_.assign(256, -1);
    begin_operation();
    intern(false, {});
    intern(true, {});
  }

  const Gbnf& grammar_;
  const Alphabet& alphabet_;
  size_t n_letters_;
  std::vector<Set> sets_;
  std::vector<Entry> entries_;
  std::vector<int32_t> index_;  // open addressing over sets_
  std::unordered_map<uint64_t, int32_t> united_;
  std::vector<int32_t> rows_;
  std::vector<uint64_t> runs_;  // per run: letters that lead to the usual set, letters that do not
  uint64_t budget_ = 0;
  size_t tidy_at_;
};

}  // namespace aleator
