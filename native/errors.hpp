// Exceptions that native/module.cpp translates into the classes of aleator.core.errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace aleator {

// Its parts one after the other, numbers in digits.
template <typename... Parts>
std::string message(Parts... parts) {
  std::string all;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>)
      all += std::to_string(part);
    else
      all += part;
  };
  (add(parts), ...);
  return all;
}

struct LogitsError : std::runtime_error {
  template <typename... Parts>
  explicit LogitsError(Parts... parts) : std::runtime_error(message(parts...)) {}
};
struct ParameterError : std::runtime_error {
  template <typename... Parts>
  explicit ParameterError(const char* p, Parts... parts)
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
  explicit ConstraintError(int32_t t, Parts... parts)
      : std::runtime_error(message(parts...)), token(t) {}
  int32_t token;
};

struct StateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What only a caller of the native code can get wrong: ValueError in Python.
template <typename... Parts>
[[noreturn]] void refuse(Parts... parts) {
  throw std::invalid_argument(message(parts...));
}
template <typename... Parts>
void require(bool holds, Parts... parts) {
  if (!holds) refuse(parts...);
}

// A parameter names tokens that the row of logits may not have.
inline void require_token(const char* parameter, int64_t token, int64_t n_vocab) {
  if (token >= n_vocab)
    throw ParameterError(parameter, message(parameter, " names token ", token,
                                            ", but the logits have ", n_vocab, " values"));
}

[[noreturn]] inline void nothing_finite() {
  throw LogitsError(
      "no token has a finite logit: every one is -inf or NaN; check the model's output, logit_bias "
      "and masks");
}

}  // namespace aleator
