// A constraint in a chain with llama.cpp's numbers.
#pragma once

#include "llama/sampler.hpp"
#include "samplers/constrained.hpp"

namespace aleator::llama {

class ConstraintSampler : public LlamaCloned<ConstraintSampler> {
 public:
  ConstraintSampler(const Constraint& constraint, std::vector<int32_t> ends)
      : constrained(constraint.clone(), std::move(ends)) {}

  void apply(Row& row, const History&) override;
  void accept(const History& h) override { constrained.accept(h); }
  void unaccept(const History& h) override { constrained.unaccept(h); }
  void reset() override { constrained.reset(); }
  void restart() override { constrained.reset(); }
  void write_state(StateWriter& out) const override { constrained.write_state(out); }
  void read_state(StateReader& in, const History& h) override { constrained.read_state(in, h); }

  Constrained constrained;
};

}  // namespace aleator::llama
