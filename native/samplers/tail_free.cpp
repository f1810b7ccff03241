// Contract: src/aleator/samplers/tail_free.py
#include <algorithm>
#include <cmath>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TailFree : public Cloned<TailFree> {
 public:
  TailFree(float tfs_z, int64_t min_keep) : neutral_(tfs_z >= 1), z_(tfs_z), min_keep_(min_keep) {}

  void apply(Candidates& c, const Step&) override {
    if (neutral_) return;
    const auto& w = c.weights();
    const size_t n = w.size();
    if (n <= 2) return;
    const auto& order = c.in_order();
    sorted_.resize(n);
    for (size_t i = 0; i < n; ++i) sorted_[i] = w[order[i].index];
    curvature_.resize(n - 2);
    uint64_t total = 0;
    for (size_t i = 0; i + 2 < n; ++i) {
      const auto slope = static_cast<int64_t>(sorted_[i] - sorted_[i + 1]);
      const auto next = static_cast<int64_t>(sorted_[i + 1] - sorted_[i + 2]);
      total += curvature_[i] = static_cast<uint64_t>(std::abs(slope - next));
    }
    if (!total) {
      std::fill(curvature_.begin(), curvature_.end(), 1);
      total = n - 2;
    }
    // sum > z * total, exactly: sum >= floor(z * total) + 1
    const uint64_t ceiling = z_.ceil_of(total);
    const bool whole = (static_cast<u128>(z_.numerator) * total) ==
                       (z_.shift >= 127 ? u128{0} : static_cast<u128>(ceiling) << z_.shift);
    const uint64_t wanted = ceiling + (whole ? 1 : 0);
    uint64_t sum = 0;
    for (size_t i = 0; i < curvature_.size(); ++i) {
      sum += curvature_[i];
      if (sum >= wanted && static_cast<int64_t>(i) >= min_keep_) {
        const uint32_t last = order[i ? i - 1 : 0].index;
        c.keep_through(order_key(c.logits()[last], c.ids()[last]));
        return;
      }
    }
  }

 private:
  bool neutral_;
  Fraction32 z_;
  int64_t min_keep_;
  std::vector<uint64_t> sorted_, curvature_;
};

ALEATOR_BIND(sampler_tail_free) {
  bind_sampler<TailFree(float, int64_t)>(m, "TailFree", "tfs_z"_a, "min_keep"_a);
}

}  // namespace aleator
