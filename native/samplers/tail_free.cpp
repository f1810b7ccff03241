// Contract: src/aleator/samplers/tail_free.py
#include <algorithm>
#include <cmath>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"

namespace aleator {

struct Slopes {
  std::vector<uint64_t> sorted, curvature;
};

static void tail_free(Candidates& c, Slopes& room, float tfs_z, int64_t min_keep) {
  if (tfs_z >= 1) return;
  const auto& w = c.weights();
  const size_t n = w.size();
  if (n <= 2) return;
  const auto& order = c.in_order();
  auto& [sorted, curvature] = room;
  sorted.resize(n);
  for (size_t i = 0; i < n; ++i) sorted[i] = w[order[i].index];
  curvature.resize(n - 2);
  uint64_t total = 0;
  for (size_t i = 0; i + 2 < n; ++i) {
    const auto slope = int64_t(sorted[i] - sorted[i + 1]);
    const auto next = int64_t(sorted[i + 1] - sorted[i + 2]);
    total += curvature[i] = uint64_t(std::abs(slope - next));
  }
  if (!total) {
    std::fill(curvature.begin(), curvature.end(), 1);
    total = n - 2;
  }
  // sum > z * total, exactly: sum >= floor(z * total) + 1
  const Fraction32 z(tfs_z);
  const uint64_t ceiling = z.ceil_of(total);
  const bool whole = (static_cast<u128>(z.numerator) * total) ==
                     (z.shift >= 127 ? u128{0} : static_cast<u128>(ceiling) << z.shift);
  const uint64_t wanted = ceiling + (whole ? 1 : 0);
  uint64_t sum = 0;
  for (size_t i = 0; i < curvature.size(); ++i) {
    sum += curvature[i];
    if (sum < wanted || int64_t(i) < min_keep) continue;
    const uint32_t last = order[i ? i - 1 : 0].index;
    return c.keep_through(order_key(c.logits()[last], c.ids()[last]));
  }
}

ALEATOR_BIND(sampler_tail_free) {
  bind_stateless<tail_free>(m, "TailFree", "tfs_z"_a, "min_keep"_a);
}

}  // namespace aleator
