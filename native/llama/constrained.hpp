// A constraint in a chain with llama.cpp's numbers.
#pragma once

#include "llama/sampler.hpp"
#include "samplers/constrained.hpp"

namespace aleator::llama {

class ConstraintSampler : public ConstraintIn<LlamaCloned<ConstraintSampler>> {
 public:
  using ConstraintIn::ConstraintIn;
  void apply(Row& row, const History&) override {
    if (!constrained.waiting() && !row.mask(constrained.mask())) nothing_allowed();
  }
};

}  // namespace aleator::llama
