// Contract: src/aleator/samplers/typical_p.py
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
    const Entropy entropy = c.entropy();
    const auto mean = static_cast<int32_t>(entropy.depth * contract::depth_unit + 0.5);
    c.keep_mass(fraction_.ceil_of(entropy.mass), entropy.mass, min_keep_, mean);
  }

 private:
  bool neutral_;
  Fraction32 fraction_;
  int64_t min_keep_;
};

ALEATOR_BIND(sampler_typical_p) {
  nb::class_<TypicalP, Sampler>(m, "TypicalP")
      .def(nb::init<float, int64_t>(), "typical_p"_a, "min_keep"_a);
}

}  // namespace aleator
