// Exceptions that native/samplers/chain.cpp translates into the classes of aleator.core.errors.
#pragma once

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

[[noreturn]] inline void nothing_finite() {
  throw LogitsError(
      "no token has a finite logit: every one is -inf or NaN; check the model's output, logit_bias "
      "and masks");
}

}  // namespace aleator
