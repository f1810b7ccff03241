// Contract: src/aleator/samplers/epsilon_cutoff.py
#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void epsilon_cutoff(Candidates& c, float epsilon, int64_t min_keep) {
  const Fraction32 least(epsilon);
  if (least.numerator) c.keep_probable(least.ceil_of(c.mass()), min_keep);
}

ALEATOR_BIND(sampler_epsilon_cutoff) {
  bind_stateless<epsilon_cutoff>(m, "EpsilonCutoff", "epsilon_cutoff"_a, "min_keep"_a);
}

}  // namespace aleator
