// Contract: src/aleator/samplers/top_n_sigma.py
#include <cmath>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

static void top_n_sigma(Candidates& c, float n_sigma) {
  if (n_sigma <= 0) return;
  const Moments m = c.moments();
  const auto n = int64_t(m.count), sum = m.sum;
  const i128 spread =
      static_cast<i128>(n) * static_cast<i128>(m.squares) - static_cast<i128>(sum) * sum;
  const double sigma = std::sqrt(double(spread)) / double(n) / contract::sigma_unit;
  c.keep_near(float(-(double(n_sigma) * sigma)), 0);
}

ALEATOR_BIND(sampler_top_n_sigma) { bind_stateless<top_n_sigma>(m, "TopNSigma", "top_n_sigma"_a); }

}  // namespace aleator
