// Contract: src/aleator/samplers/eta_cutoff.py
#include <algorithm>
#include <cmath>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void eta_cutoff(Candidates& c, float eta_cutoff, int64_t min_keep) {
  const auto most = double(eta_cutoff);
  if (most == 0) return;
  const Entropy entropy = c.entropy();
  const double eta = std::sqrt(most) * exp2_double(-entropy.bits);
  const Fraction32 least(float(std::min(most, eta)));
  c.keep_probable(least.ceil_of(entropy.mass), min_keep);
}

ALEATOR_BIND(sampler_eta_cutoff) {
  bind_stateless<eta_cutoff>(m, "EtaCutoff", "eta_cutoff"_a, "min_keep"_a);
}

}  // namespace aleator
