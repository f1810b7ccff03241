// Contract: src/aleator/samplers/top_a.py
#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void top_a(Candidates& c, float top_a) {
  const Fraction32 a(top_a);
  if (!a.numerator) return;
  // w / Z >= a * (2^40 / Z)^2  <=>  w >= ceil(a * 2^80 / Z), with a = numerator / 2^shift
  const uint64_t total = c.mass();
  u128 bound = ((static_cast<u128>(a.numerator) << 80) + (total - 1)) / total;
  bound = a.shift >= 127 ? 1 : (bound + ((u128{1} << a.shift) - 1)) >> a.shift;
  if (!c.keep_run(uint64_t(bound))) c.keep_only(c.argmax());
}

ALEATOR_BIND(sampler_top_a) { bind_stateless<top_a>(m, "TopA", "top_a"_a); }

}  // namespace aleator
