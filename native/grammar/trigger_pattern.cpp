#include "grammar/trigger_pattern.hpp"

#include <algorithm>
#include <limits>

#include "errors.hpp"

namespace aleator {
namespace {

constexpr size_t kMostInstructions = 5000;
constexpr int kMostNesting = 100;
constexpr size_t kUnset = std::numeric_limits<size_t>::max();
constexpr uint32_t kEndless = UINT32_MAX;

using Bytes = std::bitset<256>;

bool is_word(uint8_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

template <typename Predicate>
Bytes bytes_where(Predicate predicate) {
  Bytes set;
  for (unsigned c = 0; c < 256; ++c) set[c] = predicate(static_cast<uint8_t>(c));
  return set;
}

// The C locale's classes, and the three that escapes name.
std::optional<Bytes> named_class(std::string_view name) {
  const auto between = [](uint8_t a, uint8_t b) {
    return bytes_where([=](uint8_t c) { return a <= c && c <= b; });
  };
  const Bytes digit = between('0', '9'), lower = between('a', 'z'), upper = between('A', 'Z');
  const Bytes print = between(' ', '~');
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
  if (name == "w") return bytes_where(is_word);
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
    throw ParameterError("trigger_patterns", "trigger pattern '" + std::string(text_) +
                                                 "', character " + std::to_string(pos_ + 1) + ": " +
                                                 reason);
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
  uint32_t here() const { return static_cast<uint32_t>(out_.program_.size()); }
  uint32_t emit(Op op, uint32_t x = 0, uint32_t y = 0) {
    if (out_.program_.size() >= kMostInstructions)
      fail("too long: repetitions come to more than " + std::to_string(kMostInstructions) +
           " steps");
    out_.program_.push_back({op, x, y});
    return here() - 1;
  }
  void emit_set(const Bytes& set) {
    const auto it = std::find(out_.sets_.begin(), out_.sets_.end(), set);
    const auto index = static_cast<uint32_t>(it - out_.sets_.begin());
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
      fail("more than " + std::to_string(kMostNesting) + " groups in one another");
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

  static Bytes one(char c) { return Bytes().set(static_cast<uint8_t>(c)); }

  Bytes escape(bool in_bracket) {
    if (pos_ >= text_.size()) fail("nothing follows the \\");
    const char c = text_[pos_++];
    switch (c) {
      case 'd':
      case 's':
      case 'w':
        return *named_class(std::string(1, c));
      case 'D':
        return ~*named_class("d");
      case 'S':
        return ~*named_class("s");
      case 'W':
        return ~*named_class("w");
      case 'f':
        return one('\f');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'v':
        return one('\v');
      case '0':
        return one('\0');
      case 'x':
        return one(static_cast<char>(hexadecimal(2)));
      case 'u': {
        const uint32_t value = hexadecimal(4);
        if (value > 0x7F) fail("patterns match bytes: write a character past \\u007F itself");
        return one(static_cast<char>(value));
      }
      case 'c': {
        if (pos_ >= text_.size() || !is_word(static_cast<uint8_t>(text_[pos_])))
          fail("a letter must follow \\c");
        return one(static_cast<char>(text_[pos_++] % 32));
      }
      case 'b':
        if (in_bracket) return one('\b');
        [[fallthrough]];
      default:
        if (c >= '1' && c <= '9') fail("back references are not supported");
        return one(c);
    }
  }

  uint32_t hexadecimal(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      const char c = pos_ < text_.size() ? text_[pos_] : '\0';
      const auto digit =
          std::string_view("0123456789abcdef").find(c >= 'A' && c <= 'F' ? c + 32 : c);
      if (c == '\0' || digit == std::string_view::npos)
        fail("the escape needs " + std::to_string(digits) + " hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }

  Bytes bracket() {
    const bool negated = take('^');
    Bytes set;
    while (!take(']')) {
      const Bytes first = bracket_item();
      if (first.count() == 1 && pos_ + 1 < text_.size() && text_[pos_] == '-' &&
          text_[pos_ + 1] != ']') {
        ++pos_;
        const Bytes last = bracket_item();
        if (last.count() != 1) fail("a range ends in a class of characters");
        const size_t a = first._Find_first(), b = last._Find_first();
        if (b < a) fail("a range ends before it begins");
        for (size_t c = a; c <= b; ++c) set.set(c);
      } else {
        set |= first;
      }
    }
    return negated ? ~set : set;
  }

  Bytes bracket_item() {
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
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text_[pos_] - '0'), 1'000'000);
    if (pos_ == begin) fail("expected a number of repetitions");
    return static_cast<uint32_t>(value);
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

bool TriggerPattern::holds(const Instruction& i, std::string_view text, size_t at) const {
  const bool before = at > 0 && is_word(static_cast<uint8_t>(text[at - 1]));
  const bool behind = at < text.size() && is_word(static_cast<uint8_t>(text[at]));
  switch (i.op) {
    case Op::begin:
      return at == 0;
    case Op::end:
      return at == text.size();
    default:
      return (before != behind) == (i.x == 0);
  }
}

// Adds the threads that `pc` leads to without a byte, in order of preference.
void TriggerPattern::follow(uint32_t pc, std::string_view text, size_t at, Slots& slots,
                            Threads& threads, uint32_t mark) const {
  for (;;) {
    if (threads.seen[pc] == mark) return;
    threads.seen[pc] = mark;
    const Instruction& i = program_[pc];
    switch (i.op) {
      case Op::byte_set:
      case Op::match:
        threads.at.push_back(pc);
        threads.slots.push_back(slots);
        return;
      case Op::jump:
        pc = i.x;
        break;
      case Op::split:
        follow(i.x, text, at, slots, threads, mark);
        pc = i.y;
        break;
      case Op::save: {
        const size_t old = slots[i.x];
        slots[i.x] = at;
        follow(pc + 1, text, at, slots, threads, mark);
        slots[i.x] = old;
        return;
      }
      case Op::look: {
        Slots inner = slots;
        const bool found = run(pc + 1, text, at, false, false, inner);
        if (found == (i.y != 0)) return;
        if (found) {
          follow(i.x, text, at, inner, threads, mark);
          return;
        }
        pc = i.x;
        break;
      }
      default:
        if (!holds(i, text, at)) return;
        ++pc;
    }
  }
}

// The first match in order of preference, from `at` or anywhere after it, to the end or anywhere.
bool TriggerPattern::run(uint32_t start, std::string_view text, size_t at, bool anywhere,
                         bool whole, Slots& slots) const {
  Threads now, next;
  now.seen.assign(program_.size(), 0);
  next.seen.assign(program_.size(), 0);
  bool found = false;
  Slots result;
  uint32_t mark = 1;
  Slots fresh = slots;
  follow(start, text, at, fresh, now, mark);
  for (;; ++at) {
    ++mark;
    next.at.clear();
    next.slots.clear();
    for (size_t t = 0; t < now.at.size(); ++t) {
      const Instruction& i = program_[now.at[t]];
      if (i.op == Op::match) {
        if (whole && at < text.size()) continue;
        found = true;
        result = now.slots[t];
        break;  // the threads after it are less preferred
      }
      if (at < text.size() && sets_[i.x][static_cast<uint8_t>(text[at])])
        follow(now.at[t] + 1, text, at + 1, now.slots[t], next, mark);
    }
    if (at >= text.size()) break;
    if (anywhere && !found) follow(start, text, at + 1, fresh, next, mark);
    if (next.at.empty() && (found || !anywhere)) break;
    std::swap(now, next);
  }
  if (found) slots = std::move(result);
  return found;
}

// Whether `pc` reaches the match here; adds the instructions that want a byte to consuming_.
bool TriggerPattern::reach(uint32_t pc, std::string_view text, size_t at) {
  bool found = false;
  std::vector<uint32_t> todo{pc};
  while (!todo.empty()) {
    pc = todo.back();
    todo.pop_back();
    if (seen_[pc] == mark_) continue;
    seen_[pc] = mark_;
    const Instruction& i = program_[pc];
    switch (i.op) {
      case Op::byte_set:
        consuming_.push_back(pc);
        break;
      case Op::match:
        found = true;
        break;
      case Op::jump:
        todo.push_back(i.x);
        break;
      case Op::split:
        todo.push_back(i.x);
        todo.push_back(i.y);
        break;
      case Op::save:
        todo.push_back(pc + 1);
        break;
      default:
        if (holds(i, text, at)) todo.push_back(pc + 1);
    }
  }
  return found;
}

// Whether there is a match, reading only what is new since the last call.
bool TriggerPattern::may_match(std::string_view text) {
  if (looks_) return true;
  const auto begin_again = [&] {
    read_.clear();
    found_ = false;
    now_.assign(1, 0);
  };
  if (text.substr(0, read_.size()) != read_) begin_again();
  // The last position is looked at twice: as the end, and once it is known what follows.
  for (size_t at = read_.size(); !found_ && at < text.size(); ++at) {
    ++mark_;
    consuming_.clear();
    for (const uint32_t pc : now_) found_ |= reach(pc, text, at);
    next_.clear();
    for (const uint32_t pc : consuming_)
      if (sets_[program_[pc].x][static_cast<uint8_t>(text[at])]) next_.push_back(pc + 1);
    next_.push_back(0);
    std::swap(now_, next_);
    read_ += text[at];
  }
  if (found_) {
    begin_again();
    return true;
  }
  ++mark_;
  consuming_.clear();
  for (const uint32_t pc : now_)
    if (reach(pc, text, text.size())) return true;
  return false;
}

std::optional<size_t> TriggerPattern::find(std::string_view text) {
  if (!may_match(text)) return std::nullopt;
  const Slots none(2 * (static_cast<size_t>(n_groups_) + 1), kUnset);
  Slots slots = none;
  const bool framed = !pattern_.empty() && pattern_.front() == '^' && pattern_.back() == '$';
  if (!(framed && run(0, text, 0, false, true, slots))) {
    slots = none;
    if (!run(0, text, 0, true, false, slots)) return std::nullopt;
  }
  for (size_t group = 1; group <= n_groups_; ++group)
    if (slots[2 * group] != kUnset && slots[2 * group + 1] != kUnset &&
        slots[2 * group] < slots[2 * group + 1])
      return slots[2 * group];
  return slots[0];
}

}  // namespace aleator
