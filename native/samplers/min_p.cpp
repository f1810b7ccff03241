// Contract: src/aleator/samplers/min_p.py
#include <cmath>

#include "samplers/making.hpp"

namespace aleator {

static void min_p(Candidates& c, float min_p, int64_t min_keep, bool full) {
  if (min_p <= 0) return;
  // A ratio of two masses is the same whatever both are divided by; only the missing Softmax can be
  // wrong.
  if (full && !c.full_mass()) throw_no_full_mass("min_p");
  const double distance = std::log(double(min_p));
  c.keep_near(float(c.temperature() * distance), min_keep);
}

ALEATOR_BIND(sampler_min_p) { bind_stateless<min_p>(m, "MinP", "min_p"_a, "min_keep"_a, "full"_a); }

}  // namespace aleator
