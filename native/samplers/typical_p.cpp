// Contract: src/aleator/samplers/typical_p.py
#include <cmath>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TypicalP : public Cloned<TypicalP> {
 public:
  TypicalP(float typical_p, int64_t min_keep)
      : neutral_(typical_p >= 1), fraction_(typical_p), min_keep_(min_keep) {}

  void apply(Candidates& c, const Step&) override {
    if (neutral_) return;
    // Weights below 2^20 do not enter the mean, and rarely the set.
    const uint64_t wanted = fraction_.ceil_of(c.mass());
    const int64_t mean = mean_bits(c.near_top(20), c);
    const Candidates::Part* part = &c.near_top(within(mean));
    score(*part, c, mean);
    // What near_top may have left out scores worse than this: its bits are below those of the
    // bound.
    uint64_t reached = 0;
    int64_t ranked = 0;
    for (size_t i = 0; i < scores_.size(); ++i)
      if (scores_[i] < reach_) {
        reached += part->weights[i];
        ++ranked;
      }
    if (reached < wanted || ranked < min_keep_) {
      part = &c.near_top(Candidates::everything);
      score(*part, c, mean);
    }
    c.keep_scored(scores_, wanted, min_keep_);
  }

 private:
  // Bits to look at: as far below the mean as the top is above it, and ten more.
  double within(int64_t mean) {
    const double bits = 2.0 * static_cast<double>(-mean) / 65536 + 10;
    reach_ = static_cast<int64_t>(bits * 65536) + mean;
    return bits;
  }

  int64_t mean_bits(const Candidates::Part& part, const Candidates& c) {
    bits_q16(part.logits, c, scores_);
    return mean_q16(part.weights, scores_);
  }

  void score(const Candidates::Part& part, const Candidates& c, int64_t mean) {
    bits_q16(part.logits, c, scores_);
    for (int64_t& s : scores_) s = std::abs(s - mean);
  }

  int64_t reach_ = 0;
  bool neutral_;
  Fraction32 fraction_;
  int64_t min_keep_;
  std::vector<int64_t> scores_;
};

ALEATOR_BIND(sampler_typical_p) {
  nb::class_<TypicalP, Sampler>(m, "TypicalP")
      .def(nb::init<float, int64_t>(), nb::arg("typical_p"), nb::arg("min_keep"));
}

}  // namespace aleator
