// Contract: src/aleator/samplers/top_p.py
#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void top_p(Candidates& c, float top_p, int64_t min_keep, bool full) {
  if (top_p >= 1) return;
  if (full && !c.full_mass()) throw_no_full_mass("top_p");
  const uint64_t total = full ? c.full_mass() : c.mass();
  c.keep_mass(Fraction32(top_p).ceil_of(total), total, min_keep);
}

ALEATOR_BIND(sampler_top_p) { bind_stateless<top_p>(m, "TopP", "top_p"_a, "min_keep"_a, "full"_a); }

}  // namespace aleator
