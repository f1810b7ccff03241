// Exceptions that native/module.cpp translates into the classes of aleator.core.errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace aleator {

struct LogitsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ParameterError : std::runtime_error {
  ParameterError(const char* p, const std::string& message)
      : std::runtime_error(message), parameter(p) {}
  const char* parameter;
};
// Line and column count from 1, 0 if unknown.
struct GrammarError : std::runtime_error {
  explicit GrammarError(const std::string& message, int64_t l = 0, int64_t c = 0)
      : std::runtime_error(message), line(l), column(c) {}
  int64_t line, column;
};
struct ConstraintError : std::runtime_error {
  ConstraintError(int32_t t, const std::string& message) : std::runtime_error(message), token(t) {}
  int32_t token;
};

struct StateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What only a caller of the native code can get wrong: ValueError in Python.
inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// A parameter names tokens that the row of logits may not have.
inline void require_token(const char* parameter, int64_t token, int64_t n_vocab) {
  if (token >= n_vocab)
    throw ParameterError(parameter, std::string(parameter) + " names token " +
                                        std::to_string(token) + ", but the logits have " +
                                        std::to_string(n_vocab) + " values");
}

[[noreturn]] inline void nothing_finite() {
  throw LogitsError(
      "no token has a finite logit: every one is -inf or NaN; check the model's output, logit_bias "
      "and masks");
}

}  // namespace aleator
