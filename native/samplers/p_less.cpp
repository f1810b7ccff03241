// Contract: src/aleator/samplers/p_less.py
#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void p_less(Candidates& c, bool on, bool normalized) {
  if (!on) return;
  const SquareSums sums = c.squares();
  const uint64_t total = sums.weight;
  auto bound = uint64_t((sums.squares + (total - 1)) / total);
  if (normalized) {
    const auto n = uint64_t(c.count());
    if (n > 1) bound = (n * bound - total + (n - 2)) / (n - 1);
  }
  c.keep_run(bound);
}

ALEATOR_BIND(sampler_p_less) { bind_stateless<p_less>(m, "PLess", "on"_a, "normalized"_a); }

}  // namespace aleator
