// Contract: src/aleator/samplers/epsilon_cutoff.py
#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/probable.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class EpsilonCutoff : public Cloned<EpsilonCutoff> {
 public:
  EpsilonCutoff(float epsilon, int64_t min_keep) : epsilon_(epsilon), min_keep_(min_keep) {}

  void apply(Candidates& c, const Step&) override {
    if (epsilon_.numerator) keep_probable(c, epsilon_.ceil_of(c.mass()), min_keep_);
  }

 private:
  Fraction32 epsilon_;
  int64_t min_keep_;
};

ALEATOR_BIND(sampler_epsilon_cutoff) {
  nb::class_<EpsilonCutoff, Sampler>(m, "EpsilonCutoff")
      .def(nb::init<float, int64_t>(), "epsilon_cutoff"_a, "min_keep"_a);
}

}  // namespace aleator
