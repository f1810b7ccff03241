// Exceptions that native/samplers/chain.cpp and native/grammar/constraint.cpp translate into the
// classes of aleator.core.errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace aleator {

// Becomes aleator.core.errors.LogitsError in Python.
struct LogitsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Becomes aleator.core.errors.ParameterError in Python.
struct ParameterError : std::runtime_error {
  ParameterError(const char* p, const std::string& message)
      : std::runtime_error(message), parameter(p) {}
  const char* parameter;
};
// Becomes aleator.core.errors.GrammarError in Python; line and column count from 1, 0 if unknown.
struct GrammarError : std::runtime_error {
  explicit GrammarError(const std::string& message, int64_t l = 0, int64_t c = 0)
      : std::runtime_error(message), line(l), column(c) {}
  int64_t line, column;
};
// Becomes aleator.core.errors.ConstraintError in Python.
struct ConstraintError : std::runtime_error {
  ConstraintError(int32_t t, const std::string& message) : std::runtime_error(message), token(t) {}
  int32_t token;
};

// Becomes aleator.core.errors.StateError in Python.
struct StateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What only a caller of the native code can get wrong: ValueError in Python.
inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

[[noreturn]] inline void nothing_finite() {
  throw LogitsError(
      "no token has a finite logit: every one is -inf or NaN; check the model's output, logit_bias "
      "and masks");
}

}  // namespace aleator
