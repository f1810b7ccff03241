// What the bindings of both chains share: NumPy results, and candidates that own their row.
#pragma once

#include "bind.hpp"
#include "samplers/candidates.hpp"
#include "samplers/in_use.hpp"
#include "samplers/logits_row.hpp"

namespace aleator {

template <typename T>
auto to_numpy(std::vector<T>&& values) {
  return owned_array<nb::ndim<1>>(std::move(values));
}

// The candidates of one step as Python sees them: with their own copy of the logits, or, in a
// user's sampler, those of the step under way.
template <typename Row>
class Shown {
 public:
  Shown(const Shown&) = delete;
  Row& get() {
    if (expired_)
      throw LogitsError(
          "these candidates belong to a step that is over: copy what you need in apply()");
    return borrowed_ ? *borrowed_ : own_;
  }
  void expire() { expired_ = true; }

  std::vector<uint8_t> bytes;

 protected:
  Shown() = default;
  explicit Shown(Row& borrowed) : borrowed_(&borrowed) {}
  Row own_;

 private:
  Row* borrowed_ = nullptr;
  bool expired_ = false;
};

class PyCandidates : public Shown<Candidates> {
 public:
  explicit PyCandidates(const Logits& logits) : dtype(dtype_of(logits.type)) {
    const auto* data = static_cast<const uint8_t*>(logits.data);
    bytes.assign(data, data + logits.n * logits.type.bits / 8);
    own_.load(bytes.data(), logits.n, dtype);
  }
  explicit PyCandidates(Candidates& borrowed) : Shown(borrowed) {}

  Dtype dtype = Dtype::f32;
};

}  // namespace aleator
