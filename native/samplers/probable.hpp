// What epsilon and eta cut-offs share; see src/aleator/samplers/epsilon_cutoff.py.
#pragma once

#include <algorithm>

#include "samplers/sampler.hpp"

namespace aleator {

// Keeps the run of weights that reach `bound`; where it is shorter than `min_keep`, or empty, the
// first `min_keep` of the order with all that tie with the last of them.
inline void keep_probable(Candidates& c, uint64_t bound, int64_t min_keep) {
  constexpr uint64_t ties = ~uint64_t{0} << 32;  // a key without its token
  if (min_keep <= 1) {
    const bool some = bound <= uint64_t{1} << 40 && c.keep_run(bound);  // the best weighs 2^40
    if (!some) c.keep_through(order_key(c.top(), 0) & ties);
    return;
  }
  const auto& best = c.first(std::min(min_keep, c.count()));
  const bool all =
      std::all_of(best.begin(), best.end(), [&](const auto& pair) { return pair.second >= bound; });
  const uint64_t last = best.back().first & ties;
  if (!all || !c.keep_run(bound)) c.keep_through(last);
}

}  // namespace aleator
