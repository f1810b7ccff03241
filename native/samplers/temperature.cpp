// Contract: src/aleator/samplers/temperature.py
#include <algorithm>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static double dynamic_temperature(Candidates& c, double temperature, double range,
                                  double exponent) {
  const double low = std::max(0.0, temperature - range), high = temperature + range;
  double level = 0;  // of one candidate the entropy is 0 of 0
  if (const int64_t n = c.count(); n > 1) {
    level = std::min(1.0, c.entropy().bits / log2_double(double(n)));
    if (level > 0 && exponent != 1) level = exp2_double(exponent * log2_double(level));
    if (exponent == 0) level = 1;
  }
  return low + (high - low) * level;
}

static void temperature(Candidates& c, double temperature, double range, double exponent) {
  c.multiply_temperature(range > 0 ? dynamic_temperature(c, temperature, range, exponent)
                                   : temperature);
}

ALEATOR_BIND(sampler_temperature) {
  bind_stateless<temperature>(m, "Temperature", "temperature"_a, "dynatemp_range"_a,
                              "dynatemp_exponent"_a);
}

}  // namespace aleator
