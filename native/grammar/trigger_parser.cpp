// Trigger patterns: notation to instructions.
#include <algorithm>

#include "errors.hpp"
#include "grammar/gbnf_text.hpp"
#include "grammar/trigger_pattern.hpp"

namespace aleator {
namespace {

constexpr size_t kMostInstructions = 5000;
constexpr int kMostNesting = 100;
constexpr uint32_t kEndless = UINT32_MAX;

using ByteSet = std::bitset<256>;

// The lowest byte of a set; 256 for the empty one.
size_t lowest(const ByteSet& set) {
  size_t c = 0;
  while (c < set.size() && !set[c]) ++c;
  return c;
}

template <typename Predicate>
ByteSet bytes_where(Predicate predicate) {
  ByteSet set;
  for (unsigned c = 0; c < 256; ++c) set[c] = predicate(uint8_t(c));
  return set;
}

// The C locale's classes, and the three that escapes name.
std::optional<ByteSet> named_class(std::string_view name) {
  const auto between = [](uint8_t a, uint8_t b) {
    return bytes_where([=](uint8_t c) { return a <= c && c <= b; });
  };
  const ByteSet digit = between('0', '9'), lower = between('a', 'z'), upper = between('A', 'Z');
  const ByteSet print = between(' ', '~');
  if (name == "digit" || name == "d") return digit;
  if (name == "lower") return lower;
  if (name == "upper") return upper;
  if (name == "alpha") return lower | upper;
  if (name == "alnum") return lower | upper | digit;
  if (name == "xdigit") return digit | between('a', 'f') | between('A', 'F');
  if (name == "space" || name == "s") return between('\t', '\r') | between(' ', ' ');
  if (name == "blank") return between('\t', '\t') | between(' ', ' ');
  if (name == "cntrl") return between(0, 31) | between(127, 127);
  if (name == "print") return print;
  if (name == "graph") return between('!', '~');
  if (name == "punct") return between('!', '~') & ~(lower | upper | digit);
  if (name == "w") return bytes_where(is_word_byte);
  return std::nullopt;
}

}  // namespace

class TriggerParser {
 public:
  using Op = TriggerPattern::Op;
  TriggerParser(TriggerPattern& out, std::string_view pattern) : out_(out), text_(pattern) {}

  void parse() {
    emit(Op::save, 0);
    disjunction();
    if (pos_ < text_.size()) fail("a ) without its (");
    emit(Op::save, 1);
    emit(Op::match);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw ParameterError("trigger_patterns", "trigger pattern '", text_, "', character ", pos_ + 1,
                         ": ", reason);
  }
  bool take(char c) {
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  bool take(std::string_view s) {
    if (text_.substr(pos_, s.size()) != s) return false;
    pos_ += s.size();
    return true;
  }
  uint32_t here() const { return uint32_t(out_.program_.size()); }
  uint32_t emit(Op op, uint32_t x = 0, uint32_t y = 0) {
    if (out_.program_.size() >= kMostInstructions)
      fail(message("too long: repetitions come to more than ", kMostInstructions, " steps"));
    out_.program_.push_back({op, x, y});
    return here() - 1;
  }
  void emit_set(const ByteSet& set) {
    const auto it = std::find(out_.sets_.begin(), out_.sets_.end(), set);
    const auto index = uint32_t(it - out_.sets_.begin());
    if (it == out_.sets_.end()) out_.sets_.push_back(set);
    emit(Op::byte_set, index);
  }

  // Instructions from `begin` on move up by one to make room for a first one.
  void insert(uint32_t begin, Op op, uint32_t x, uint32_t y) {
    emit(Op::match);  // checks the size
    auto& p = out_.program_;
    p.pop_back();
    for (size_t i = begin; i < p.size(); ++i) shift(p[i], begin, 1);
    p.insert(p.begin() + begin, {op, x, y});
  }
  static void shift(TriggerPattern::Instruction& i, uint32_t begin, uint32_t by) {
    const bool first = i.op == Op::split || i.op == Op::jump || i.op == Op::look;
    if (first && i.x >= begin) i.x += by;
    if (i.op == Op::split && i.y >= begin) i.y += by;
  }

  void disjunction() {
    if (++nesting_ > kMostNesting)
      fail(message("more than ", kMostNesting, " groups in one another"));
    const uint32_t begin = here();
    while (term()) {
    }
    if (take('|')) {
      insert(begin, Op::split, begin + 1, 0);
      const uint32_t jump = emit(Op::jump);
      out_.program_[begin].y = here();
      disjunction();
      out_.program_[jump].x = here();
    }
    --nesting_;
  }

  bool term() {
    if (pos_ >= text_.size() || text_[pos_] == '|' || text_[pos_] == ')') return false;
    if (take('^')) return emit(Op::begin), true;
    if (take('$')) return emit(Op::end), true;
    if (take("\\b")) return emit(Op::word, 0), true;
    if (take("\\B")) return emit(Op::word, 1), true;
    const bool ahead = take("(?=");
    if (ahead || take("(?!")) {
      out_.looks_ = true;
      const uint32_t look = emit(Op::look, 0, ahead ? 0 : 1);
      disjunction();
      close_group();
      emit(Op::match);
      out_.program_[look].x = here();
      return true;
    }
    const uint32_t begin = here();
    atom();
    while (quantifier(begin)) {
    }
    return true;
  }

  void close_group() {
    if (!take(')')) fail("a group has no closing )");
  }

  void atom() {
    if (take('(')) {
      if (take("?:")) {
        disjunction();
      } else {
        if (take('?')) fail("unknown kind of group; known are ( (?: (?= (?!");
        const uint32_t group = ++out_.n_groups_;
        emit(Op::save, 2 * group);
        disjunction();
        emit(Op::save, 2 * group + 1);
      }
      close_group();
    } else if (take('.')) {
      emit_set(bytes_where([](uint8_t c) { return c != '\n' && c != '\r'; }));
    } else if (take('[')) {
      emit_set(bracket());
    } else if (std::string_view("*+?{").find(text_[pos_]) != std::string_view::npos) {
      fail("nothing stands before it to be repeated");
    } else {
      emit_set(take('\\') ? escape(false) : one(text_[pos_++]));
    }
  }

  static ByteSet one(char c) { return ByteSet().set(uint8_t(c)); }

  ByteSet escape(bool in_bracket) {
    if (pos_ >= text_.size()) fail("nothing follows the \\");
    const char c = text_[pos_++];
    constexpr std::string_view controls("fnrtv0"), meant("\f\n\r\t\v\0", 6), classes("dswDSW");
    if (const size_t at = controls.find(c); at != controls.npos) return one(meant[at]);
    if (const size_t at = classes.find(c); at != classes.npos) {
      const ByteSet set = *named_class(classes.substr(at % 3, 1));
      return at < 3 ? set : ~set;
    }
    switch (c) {
      case 'x':
        return one(char(hexadecimal(2)));
      case 'u': {
        const uint32_t value = hexadecimal(4);
        if (value > 0x7F) fail("patterns match bytes: write a character past \\u007F itself");
        return one(char(value));
      }
      case 'c': {
        if (pos_ >= text_.size() || !is_word_byte(uint8_t(text_[pos_])))
          fail("a letter must follow \\c");
        return one(char(text_[pos_++] % 32));
      }
      case 'b':
        if (in_bracket) return one('\b');
        [[fallthrough]];
      default:
        if (c >= '1' && c <= '9') fail("back references are not supported");
        return one(c);
    }
  }

  uint32_t hexadecimal(size_t digits) {
    const auto value = read_hexadecimal(text_, pos_, digits);
    if (!value) fail(message("the escape needs ", digits, " hexadecimal digits"));
    return *value;
  }

  ByteSet bracket() {
    const bool negated = take('^');
    ByteSet set;
    while (!take(']')) {
      const ByteSet first = bracket_item();
      if (first.count() == 1 && pos_ + 1 < text_.size() && text_[pos_] == '-' &&
          text_[pos_ + 1] != ']') {
        ++pos_;
        const ByteSet last = bracket_item();
        if (last.count() != 1) fail("a range ends in a class of characters");
        const size_t a = lowest(first), b = lowest(last);
        if (b < a) fail("a range ends before it begins");
        for (size_t c = a; c <= b; ++c) set.set(c);
      } else {
        set |= first;
      }
    }
    return negated ? ~set : set;
  }

  ByteSet bracket_item() {
    if (pos_ >= text_.size()) fail("a class has no closing ]");
    if (take("[:")) {
      const size_t end = text_.find(":]", pos_);
      const auto known =
          end == text_.npos ? std::nullopt : named_class(text_.substr(pos_, end - pos_));
      if (!known) fail("unknown class of characters");
      pos_ = end + 2;
      return *known;
    }
    if (take("[.") || take("[=")) fail("collating elements are not supported");
    return take('\\') ? escape(true) : one(text_[pos_++]);
  }

  uint32_t number() {
    uint64_t value = 0;
    const size_t begin = pos_;
    for (; pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; ++pos_)
      value = std::min<uint64_t>(value * 10 + uint64_t(text_[pos_] - '0'), 1'000'000);
    if (pos_ == begin) fail("expected a number of repetitions");
    return uint32_t(value);
  }

  bool quantifier(uint32_t begin) {
    uint32_t least = 0, most = kEndless;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (take('{')) {
      least = most = number();
      if (take(',')) most = pos_ < text_.size() && text_[pos_] == '}' ? kEndless : number();
      if (!take('}')) fail("a repetition has no closing }");
      if (most < least) fail("the largest number of repetitions is below the smallest");
    } else {
      return false;
    }
    const bool lazy = take('?');
    const std::vector<TriggerPattern::Instruction> body(out_.program_.begin() + begin,
                                                        out_.program_.end());
    out_.program_.resize(begin);
    const auto copy = [&] {
      const uint32_t by = here() - begin;
      for (auto i : body) {
        shift(i, begin, by);
        emit(i.op, i.x, i.y);
      }
    };
    const auto split = [&](uint32_t in, uint32_t out) {
      return lazy ? emit(Op::split, out, in) : emit(Op::split, in, out);
    };
    const auto aim = [&](uint32_t at) {
      auto& i = out_.program_[at];
      (lazy ? i.x : i.y) = here();
    };
    for (uint32_t i = 0; i < least; ++i) copy();
    if (most == kEndless) {
      const uint32_t loop = split(here() + 1, 0);
      copy();
      emit(Op::jump, loop);
      aim(loop);
    } else {
      std::vector<uint32_t> exits;
      for (uint32_t i = least; i < most; ++i) {
        exits.push_back(split(here() + 1, 0));
        copy();
      }
      for (const uint32_t at : exits) aim(at);
    }
    return true;
  }

  TriggerPattern& out_;
  std::string_view text_;
  size_t pos_ = 0;
  int nesting_ = 0;
};

TriggerPattern::TriggerPattern(std::string_view pattern) : pattern_(pattern) {
  if (pattern.find('\0') != pattern.npos)
    throw ParameterError("trigger_patterns", "a trigger pattern contains a NUL character");
  TriggerParser(*this, pattern).parse();
  now_.push_back(0);
  seen_.assign(program_.size(), 0);
}

}  // namespace aleator
