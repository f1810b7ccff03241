// Contract: src/aleator/samplers/typical_p.py
#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void typical_p(Candidates& c, float typical_p, int64_t min_keep) {
  if (typical_p >= 1) return;
  const Entropy entropy = c.entropy();
  const auto mean = int32_t(entropy.depth * contract::depth_unit + 0.5);
  c.keep_mass(Fraction32(typical_p).ceil_of(entropy.mass), entropy.mass, min_keep, mean);
}

ALEATOR_BIND(sampler_typical_p) {
  bind_stateless<typical_p>(m, "TypicalP", "typical_p"_a, "min_keep"_a);
}

}  // namespace aleator
