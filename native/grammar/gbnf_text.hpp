// The text of a grammar as its parser reads it: names, numbers, characters, and errors that show
// their place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace aleator {

constexpr bool is_digit(char c) { return '0' <= c && c <= '9'; }
constexpr bool is_word(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '-' || is_digit(c);
}

class GbnfText {
 public:
  explicit GbnfText(std::string_view text) : text_(text) {}

 protected:
  // Throws GrammarError with line, column and the line itself.
  [[noreturn]] void fail(size_t at, const std::string& reason) const;

  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0';
  }
  // What stands here, for messages.
  std::string found() const;
  void expect(char c, const char* where);
  // Blanks and comments, and line ends where they mean nothing.
  void skip_space(bool newlines);
  // The name of a rule.
  std::string_view name();
  uint64_t integer(const char* what);
  // A code point of a literal or class, escaped or not.
  uint32_t character();

  std::string_view text_;
  size_t pos_ = 0;

 private:
  uint32_t hexadecimal(size_t at, int digits);
};

}  // namespace aleator
