#include "grammar/gbnf_text.hpp"

#include <algorithm>
#include <charconv>

#include "errors.hpp"

namespace aleator {

namespace {

bool begins_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }

}  // namespace

void GbnfText::fail(size_t at, const std::string& reason) const {
  at = std::min(at, text_.size());
  size_t begin = at;
  while (begin > 0 && text_[begin - 1] != '\n' && text_[begin - 1] != '\r') --begin;
  size_t end = at;
  while (end < text_.size() && text_[end] != '\n' && text_[end] != '\r') ++end;
  int64_t line = 1, column = 1;
  for (size_t i = 0; i < begin; ++i)  // \r\n is one line break
    line += text_[i] == '\n' || (text_[i] == '\r' && (i + 1 >= begin || text_[i + 1] != '\n'));
  for (size_t i = begin; i < at; ++i) column += begins_character(text_[i]);
  // The part of a long line around the place.
  constexpr int64_t kShown = 60;
  size_t from = at, to = at;
  int64_t before = 0;
  for (int64_t n = 0; from > begin && n < kShown; n += begins_character(text_[--from])) {
  }
  for (int64_t n = 0; to < end && n < kShown; ++to) n += begins_character(text_[to]);
  while (to < end && !begins_character(text_[to])) ++to;
  std::string shown;
  for (size_t i = from; i < to; ++i) {
    before += i < at && begins_character(text_[i]);
    shown += text_[i] == '\t' || text_[i] == '\0' ? ' ' : text_[i];
  }
  throw GrammarError("grammar, line " + std::to_string(line) + ", column " +
                         std::to_string(column) + ": " + reason + "\n  " + shown + "\n  " +
                         std::string(static_cast<size_t>(before), ' ') + "^",
                     line, column);
}

std::string GbnfText::found() const {
  if (at_end()) return "the end of the text";
  if (peek() == '\n' || peek() == '\r') return "the end of the line";
  size_t end = pos_ + 1;
  while (end < text_.size() && !begins_character(text_[end])) ++end;
  return "'" + std::string(text_.substr(pos_, end - pos_)) + "'";
}

void GbnfText::expect(char c, const char* where) {
  if (peek() != c) fail(pos_, std::string("expected '") + c + "' " + where + ", found " + found());
  ++pos_;
}

void GbnfText::skip_space(bool newlines) {
  for (; !at_end(); ++pos_) {
    const char c = peek();
    if (c == '#') {
      while (!at_end() && peek() != '\r' && peek() != '\n') ++pos_;
      --pos_;
    } else if (c != ' ' && c != '\t' && !(newlines && (c == '\r' || c == '\n'))) {
      return;
    }
  }
}

std::string_view GbnfText::name() {
  const size_t begin = pos_;
  while (is_word(peek())) ++pos_;
  if (pos_ == begin) fail(pos_, "expected the name of a rule, found " + found());
  return text_.substr(begin, pos_ - begin);
}

uint64_t GbnfText::integer(const char* what) {
  const size_t begin = pos_;
  while (is_digit(peek())) ++pos_;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + pos_, value);
  if (pos_ == begin) fail(pos_, std::string("expected ") + what + ", found " + found());
  if (error != std::errc()) fail(begin, std::string(what) + " is too large");
  return value;
}

uint32_t GbnfText::hexadecimal(size_t at, int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = peek();
    uint32_t digit = 0;
    const char* end = &c + 1;
    if (at_end() || std::from_chars(&c, end, digit, 16).ec != std::errc())
      fail(at, "this escape needs " + std::to_string(digits) + " hexadecimal digits");
    value = (value << 4) | digit;
    ++pos_;
  }
  return value;
}

uint32_t GbnfText::character() {
  const size_t at = pos_;
  if (at_end()) fail(at, "the text ends inside a literal or class");
  if (peek() == '\\') {
    pos_ += 2;
    switch (at + 1 < text_.size() ? text_[at + 1] : '\0') {
      case 'x':
        return hexadecimal(at, 2);
      case 'u':
        return hexadecimal(at, 4);
      case 'U':
        return hexadecimal(at, 8);
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
        return static_cast<uint8_t>(text_[at + 1]);
      default:
        fail(at,
             "unknown escape; known are \\x41 \\u0041 \\U00000041 \\t \\r \\n \\\\ \\\" \\[ \\] "
             "\\-");
    }
  }
  const auto first = static_cast<uint8_t>(text_[pos_++]);
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  uint32_t value = first & (0x3F >> more);
  for (int i = 0; i < more; ++i) {
    if (at_end() || begins_character(peek())) fail(at, "the grammar is not UTF-8");
    value = (value << 6) | (static_cast<uint8_t>(text_[pos_++]) & 0x3F);
  }
  return value;
}

}  // namespace aleator
