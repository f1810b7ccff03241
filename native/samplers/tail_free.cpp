// Contract: src/aleator/samplers/tail_free.py
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "bind.hpp"
#include "rng/fixed.hpp"
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
    sort(c.logits(), w);
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
        const uint32_t last = order_[i ? i - 1 : 0].index;
        c.keep_through(order_key(c.logits()[last], c.ids()[last]));
        return;
      }
    }
  }

 private:
  struct Entry {
    uint32_t key, index;
  };

  // The weights in the order of the candidates, by digits of the logits: equal ones stay by id.
  void sort(const Buffer<float>& logits, const Buffer<uint64_t>& w) {
    constexpr int digits = 3, bits = 11, buckets = 1 << bits;
    const size_t n = logits.size();
    order_.resize(n);
    other_.resize(n);
    std::array<std::array<uint32_t, buckets>, digits> counts{};
    for (size_t i = 0; i < n; ++i) {
      const uint32_t key = ~ordered(logits[i]);
      order_[i] = {key, static_cast<uint32_t>(i)};
      for (int d = 0; d < digits; ++d) ++counts[d][key >> d * bits & (buckets - 1)];
    }
    for (int d = 0; d < digits; ++d) {
      std::exclusive_scan(counts[d].begin(), counts[d].end(), counts[d].begin(), uint32_t{0});
      for (const Entry& e : order_) other_[counts[d][e.key >> d * bits & (buckets - 1)]++] = e;
      order_.swap(other_);
    }
    sorted_.resize(n);
    for (size_t i = 0; i < n; ++i) sorted_[i] = w[order_[i].index];
  }

  bool neutral_;
  Fraction32 z_;
  int64_t min_keep_;
  std::vector<Entry> order_, other_;
  std::vector<uint64_t> sorted_, curvature_;
};

ALEATOR_BIND(sampler_tail_free) {
  nb::class_<TailFree, Sampler>(m, "TailFree")
      .def(nb::init<float, int64_t>(), nb::arg("tfs_z"), nb::arg("min_keep"));
}

}  // namespace aleator
