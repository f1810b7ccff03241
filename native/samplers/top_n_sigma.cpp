// Contract: src/aleator/samplers/top_n_sigma.py
#include <cmath>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TopNSigma : public Cloned<TopNSigma> {
 public:
  explicit TopNSigma(float top_n_sigma) : n_(top_n_sigma) {}

  void apply(Candidates& c, const Step&) override {
    if (n_ <= 0) return;
    const Moments m = c.moments();
    const auto n = static_cast<int64_t>(m.count), sum = m.sum;
    const uint64_t squares = m.squares;
    const i128 spread =
        static_cast<i128>(n) * static_cast<i128>(squares) - static_cast<i128>(sum) * sum;
    const double sigma =
        std::sqrt(static_cast<double>(spread)) / static_cast<double>(n) / contract::sigma_unit;
    c.keep_near(static_cast<float>(-(static_cast<double>(n_) * sigma)), 0);
  }

 private:
  float n_;
};

ALEATOR_BIND(sampler_top_n_sigma) {
  nb::class_<TopNSigma, Sampler>(m, "TopNSigma").def(nb::init<float>(), "top_n_sigma"_a);
}

}  // namespace aleator
