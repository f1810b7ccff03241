// Contract: src/aleator/samplers/min_k.py
#include <algorithm>

#include "samplers/making.hpp"

namespace aleator {

// How many stand before the steepest fall.  A list of the first shows it once no later fall can be
// as steep: all that is left to fall, over its place.
static int64_t cliff(Candidates& c, double least) {
  double steepest = -1, above = c.top();
  int64_t found = 1, rank = 1;
  for (int64_t n = 128;; n *= 8) {
    const auto& first = c.first(n);
    for (; rank < std::ssize(first); ++rank) {
      const double value = from_ordered(uint32_t(first[rank].first >> 32));
      const double fall = (above - value) / double(rank);
      if (fall > steepest) steepest = fall, found = rank;
      above = value;
    }
    if (rank < n || (above - least) / double(rank) <= steepest) return found;
  }
}

static void min_k(Candidates& c, float tau) {
  if (tau < 0) return;
  float least = infinity;
  for (int64_t t = 0; t < c.n_tiles(); ++t) least = std::min(least, least_finite_(c.tile(t)));
  const double range = double(c.top()) - least;
  if (range == 0) return;
  const double wanted = std::min(tau / range, double(contract::max_vocab));
  c.keep_first(std::max(int64_t(wanted), cliff(c, least)));
}

ALEATOR_BIND(sampler_min_k) { bind_stateless<min_k>(m, "MinK", "min_k_tau"_a); }

}  // namespace aleator
