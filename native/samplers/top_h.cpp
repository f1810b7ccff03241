// Contract: src/aleator/samplers/top_h.py
#include <algorithm>
#include <bit>

#include "samplers/making.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TopH : public Cloned<TopH> {
 public:
  explicit TopH(float top_h) : share_(top_h) {}

  void apply(Candidates& c, const Step&) override {
    if (share_ >= 1) return;
    const double most = share_ * c.entropy().bits;
    // A list of the first will do if all of it has clearly more entropy than may stay: more tokens
    // only have more.  What roundings come to is a millionth.
    for (int64_t n = 128;; n *= 8) {
      list(c, n);
      const int64_t listed = std::ssize(values_);
      EntropySums sums;
      add(0, listed, &sums);
      if (listed == n && entropy(c, listed, sums) <= 1.001 * most) continue;
      return c.keep_first(longest(c, most));
    }
  }

 private:
  // The first n of the order, and what entropies of prefixes are measured from.
  void list(Candidates& c, int64_t n) {
    const auto& first = c.first(n);
    values_.resize(first.size());
    for (size_t i = 0; i < first.size(); ++i)
      values_[i] = from_ordered(uint32_t(first[i].first >> 32));
    tops_ = std::find_if(values_.begin(), values_.end(), [&](float z) { return z < c.top(); }) -
            values_.begin();
    second_ = tops_ < std::ssize(values_) ? values_[tops_] : c.top();
    scale_ = c.scale();
  }

  // Adds what stands at the places from `begin` to `end`, without those at the top.
  void add(int64_t begin, int64_t end, EntropySums* sums) const {
    float rest[tile_size];
    for (int64_t i = std::max(begin, tops_); i < end; i += tile_size) {
      const float* x = values_.data() + i;
      if (end - i < tile_size) {
        std::fill(std::copy(x, values_.data() + end, rest), rest + tile_size, -infinity);
        x = rest;
      }
      add_entropy_(&x, x, 1, second_, scale_, sums);  // the first is the largest
    }
  }

  double entropy(const Candidates& c, int64_t length, const EntropySums& sums) const {
    if (length <= tops_) return entropy_of(length, 0, sums).bits;
    const double gap = (double(c.top()) - second_) * (contract::log2_e / c.temperature());
    return entropy_of(tops_, gap, sums).bits;
  }

  int64_t longest(const Candidates& c, double most) const {
    const int64_t listed = std::ssize(values_);
    int64_t kept = 0;
    EntropySums sums;
    for (auto bit = int64_t(std::bit_floor(values_.size())); bit; bit /= 2) {
      if (kept + bit > listed) continue;
      EntropySums more = sums;
      add(kept, kept + bit, &more);
      if (entropy(c, kept + bit, more) <= most) kept += bit, sums = more;
    }
    return kept;
  }

  double share_;
  std::vector<float> values_;
  int64_t tops_ = 0;
  float second_ = 0, scale_ = 0;
};

ALEATOR_BIND(sampler_top_h) { bind_sampler<TopH(float)>(m, "TopH", "top_h"_a); }

}  // namespace aleator
