// What the bindings of both chains share: NumPy results, and candidates that own their row.
#pragma once

#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

#include "bind.hpp"
#include "samplers/candidates.hpp"
#include "samplers/in_use.hpp"
#include "samplers/logits_row.hpp"

namespace aleator {

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T>&& values) {
  auto* heap = new std::vector<T>(std::move(values));
  nb::capsule owner(heap, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(heap->data(), {heap->size()}, owner);
}

// The candidates of one step as Python sees them: with their own copy of the logits, or, in a
// user's sampler, those of the step under way.
class PyCandidates {
 public:
  explicit PyCandidates(const Logits& logits) : dtype(dtype_of(logits.type)) {
    const auto* data = static_cast<const uint8_t*>(logits.data);
    bytes.assign(data, data + logits.n * logits.type.bits / 8);
    own_.load(bytes.data(), logits.n, dtype);
  }
  explicit PyCandidates(Candidates& borrowed) : borrowed_(&borrowed) {}
  PyCandidates(const PyCandidates&) = delete;

  Candidates& get() {
    if (expired_) step_is_over();
    return borrowed_ ? *borrowed_ : own_;
  }
  void expire() { expired_ = true; }
  [[noreturn]] static void step_is_over() {
    throw LogitsError(
        "these candidates belong to a step that is over: copy what you need in apply()");
  }

  Dtype dtype = Dtype::f32;
  std::vector<uint8_t> bytes;

 private:
  Candidates own_;
  Candidates* borrowed_ = nullptr;
  bool expired_ = false;
};

}  // namespace aleator
