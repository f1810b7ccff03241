// Exceptions that native/module.cpp translates into the classes of aleator.core.errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace aleator {

// What is said where something is wrong is made by functions of their own: it is long, and seldom.
[[gnu::cold, gnu::noinline]] inline void add_part(std::string& all, std::string_view part) {
  all += part;
}
template <typename Number>
  requires std::is_arithmetic_v<Number>
[[gnu::cold, gnu::noinline]] void add_part(std::string& all, Number part) {
  all += std::to_string(part);
}

// Its parts one after the other, numbers in digits.
template <typename... Parts>
[[gnu::cold, gnu::noinline]] std::string message(Parts... parts) {
  std::string all;
  (add_part(all, parts), ...);
  return all;
}

struct LogitsError : std::runtime_error {
  template <typename... Parts>
  [[gnu::cold]] explicit LogitsError(Parts... parts) : std::runtime_error(message(parts...)) {}
};
struct ParameterError : std::runtime_error {
  template <typename... Parts>
  [[gnu::cold]] explicit ParameterError(const char* p, Parts... parts)
      : std::runtime_error(message(parts...)), parameter(p) {}
  const char* parameter;
};
// Line and column count from 1, 0 if unknown.
struct GrammarError : std::runtime_error {
  explicit GrammarError(const std::string& what, int64_t l = 0, int64_t c = 0)
      : std::runtime_error(what), line(l), column(c) {}
  int64_t line, column;
};
struct ConstraintError : std::runtime_error {
  template <typename... Parts>
  [[gnu::cold]] explicit ConstraintError(int32_t t, Parts... parts)
      : std::runtime_error(message(parts...)), token(t) {}
  int32_t token;
};

struct StateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What only a caller of the native code can get wrong: ValueError in Python.
template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(Parts... parts) {
  throw std::invalid_argument(message(parts...));
}
template <typename... Parts>
void require(bool holds, Parts... parts) {
  if (!holds) refuse(parts...);
}

// A parameter names tokens that the row of logits may not have.
inline void require_token(const char* parameter, int64_t token, int64_t n_vocab) {
  if (token >= n_vocab)
    throw ParameterError(parameter, parameter, " names token ", token, ", but the logits have ",
                         n_vocab, " values");
}

[[noreturn]] inline void nothing_finite() {
  throw LogitsError(
      "no token has a finite logit: every one is -inf or NaN; check the model's output, logit_bias "
      "and masks");
}

}  // namespace aleator
