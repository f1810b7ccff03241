// llama.cpp's array of candidates as Python sees it: with its own copy of the logits, or, in a
// user's sampler, the row of the step under way.
#pragma once

#include <cstdint>
#include <vector>

#include "llama/row.hpp"
#include "samplers/binding.hpp"

namespace aleator::llama {

class LlamaCandidates {
 public:
  explicit LlamaCandidates(PyCandidates& from) : bytes_(from.bytes) {
    own_.wants_p = true;
    own_.load(bytes_.data(), from.get().n_vocab(), from.dtype);
  }
  explicit LlamaCandidates(Row& borrowed) : borrowed_(&borrowed) {}
  LlamaCandidates(const LlamaCandidates&) = delete;

  Row& get() {
    if (expired_) PyCandidates::step_is_over();
    return borrowed_ ? *borrowed_ : own_;
  }
  void expire() { expired_ = true; }

 private:
  Row own_;
  Row* borrowed_ = nullptr;
  bool expired_ = false;
  std::vector<uint8_t> bytes_;
};

}  // namespace aleator::llama
