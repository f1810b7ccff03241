// Contract: src/aleator/samplers/top_p.py
#include <cmath>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TopP : public Cloned<TopP> {
 public:
  TopP(float top_p, int64_t min_keep) : top_p_(top_p), min_keep_(min_keep) {
    // The float32 as an exact fraction: numerator / 2^shift with a numerator of at most 24 bits.
    int exponent = 0;
    const float fraction = std::frexp(top_p, &exponent);
    numerator_ = static_cast<uint64_t>(std::ldexp(fraction, 24));
    shift_ = 24 - exponent;
  }
  void apply(Candidates &c, const Step &) override {
    if (top_p_ < 1) c.keep_mass(numerator_, shift_, min_keep_);
  }

 private:
  float top_p_;
  int64_t min_keep_;
  uint64_t numerator_;
  int shift_;
};

ALEATOR_BIND(sampler_top_p) {
  nb::class_<TopP, Sampler>(m, "TopP")
      .def(nb::init<float, int64_t>(), nb::arg("top_p"), nb::arg("min_keep"));
}

}  // namespace aleator
