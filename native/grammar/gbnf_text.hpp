// The text of a grammar as its parser reads it: names, numbers, characters, and errors that show
// their place.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace aleator {

constexpr bool begins_character(char c) { return (uint8_t(c) & 0xC0) != 0x80; }
constexpr bool is_digit(char c) { return '0' <= c && c <= '9'; }
constexpr bool is_word(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '-' || is_digit(c);
}

// Reads so many hexadecimal digits from `at` on, which moves past those that are there; none where
// one is missing.
inline std::optional<uint32_t> read_hexadecimal(std::string_view text, size_t& at, size_t digits) {
  uint32_t value = 0;
  const std::string_view read = text.substr(at, digits);
  const char* stop = std::from_chars(read.data(), read.data() + read.size(), value, 16).ptr;
  const auto found = size_t(stop - read.data());
  at += found;
  if (found < digits) return {};
  return value;
}

class GbnfText {
 public:
  explicit GbnfText(std::string_view text) : text_(text) {}

 protected:
  // Throws GrammarError with line, column and the line itself.
  [[noreturn]] void fail(size_t at, const std::string& reason) const {
    at = std::min(at, text_.size());
    const size_t begin = text_.substr(0, at).find_last_of("\r\n") + 1;
    const size_t end = std::min(text_.find_first_of("\r\n", at), text_.size());
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
    throw GrammarError(message("grammar, line ", line, ", column ", column, ": ", reason, "\n  ",
                               shown, "\n  ", std::string(size_t(before), ' '), "^"),
                       line, column);
  }

  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0';
  }
  // What stands here, for messages.
  std::string found() const {
    if (at_end()) return "the end of the text";
    if (peek() == '\n' || peek() == '\r') return "the end of the line";
    size_t end = pos_ + 1;
    while (end < text_.size() && !begins_character(text_[end])) ++end;
    return "'" + std::string(text_.substr(pos_, end - pos_)) + "'";
  }

  void expect(char c, const char* where) {
    if (peek() != c)
      fail(pos_, std::string("expected '") + c + "' " + where + ", found " + found());
    ++pos_;
  }

  // Blanks and comments, and line ends where they mean nothing.
  void skip_space(bool newlines) {
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

  // The name of a rule.
  std::string_view name() {
    const size_t begin = pos_;
    while (is_word(peek())) ++pos_;
    if (pos_ == begin) fail(pos_, "expected the name of a rule, found " + found());
    return text_.substr(begin, pos_ - begin);
  }

  uint64_t integer(const char* what) {
    const size_t begin = pos_;
    while (is_digit(peek())) ++pos_;
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + pos_, value);
    if (pos_ == begin) fail(pos_, std::string("expected ") + what + ", found " + found());
    if (error != std::errc()) fail(begin, std::string(what) + " is too large");
    return value;
  }

  // A code point of a literal or class, escaped or not.
  uint32_t character() {
    const size_t at = pos_;
    if (at_end()) fail(at, "the text ends inside a literal or class");
    if (peek() == '\\') {
      pos_ += 2;
      const char c = at + 1 < text_.size() ? text_[at + 1] : '\0';
      if (c == 'x') return hexadecimal(at, 2);
      if (c == 'u') return hexadecimal(at, 4);
      if (c == 'U') return hexadecimal(at, 8);
      constexpr std::string_view escapes("trn\\\"[]-"), meant("\t\r\n\\\"[]-");
      const size_t which = escapes.find(c);
      if (which != escapes.npos) return uint8_t(meant[which]);
      fail(at,
           "unknown escape; known are \\x41 \\u0041 \\U00000041 \\t \\r \\n \\\\ \\\" \\[ \\] "
           "\\-");
    }
    const auto first = uint8_t(text_[pos_++]);
    if (first < 0x80) return first;
    const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    uint32_t value = first & (0x3F >> more);
    for (int i = 0; i < more; ++i) {
      if (at_end() || begins_character(peek())) fail(at, "the grammar is not UTF-8");
      value = (value << 6) | (uint8_t(text_[pos_++]) & 0x3F);
    }
    return value;
  }

  std::string_view text_;
  size_t pos_ = 0;

 private:
  uint32_t hexadecimal(size_t at, size_t digits) {
    const auto value = read_hexadecimal(text_, pos_, digits);
    if (!value) fail(at, message("this escape needs ", digits, " hexadecimal digits"));
    return *value;
  }
};

}  // namespace aleator
