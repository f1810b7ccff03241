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
    const auto& w = c.weights();
    bits_q16(c, scores_);
    const int64_t mean = mean_q16(w, scores_);
    uint64_t total = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      total += w[i];
      scores_[i] = std::abs(scores_[i] - mean);
    }
    c.keep_score_mass(scores_, fraction_.ceil_of(total), min_keep_);
  }

 private:
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
