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
    c.compact();
    const auto& z = c.logits();
    const float top = c.top();
    int64_t sum = 0;
    uint64_t squares = 0;
    for (const float logit : z) {
      const float d = logit - top;
      const auto q = static_cast<int64_t>(std::rint((d > -256.0f ? d : -256.0f) * 4096.0f));
      sum += q;
      squares += static_cast<uint64_t>(q * q);
    }
    const auto n = static_cast<int64_t>(z.size());
    const i128 spread =
        static_cast<i128>(n) * static_cast<i128>(squares) - static_cast<i128>(sum) * sum;
    const double sigma = std::sqrt(static_cast<double>(spread)) / static_cast<double>(n) / 4096.0;
    c.keep_distance(static_cast<float>(-(static_cast<double>(n_) * sigma)), 0);
  }

 private:
  float n_;
};

ALEATOR_BIND(sampler_top_n_sigma) {
  nb::class_<TopNSigma, Sampler>(m, "TopNSigma").def(nb::init<float>(), nb::arg("top_n_sigma"));
}

}  // namespace aleator
