// Contract: src/aleator/samplers/eta_cutoff.py
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/probable.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class EtaCutoff : public Cloned<EtaCutoff> {
 public:
  EtaCutoff(float eta, int64_t min_keep)
      : most_(static_cast<double>(eta)), root_(std::sqrt(most_)), min_keep_(min_keep) {}

  void apply(Candidates& c, const Step&) override {
    if (most_ == 0) return;
    const Entropy entropy = c.entropy();
    const double eta = root_ * exp2_double(-entropy.bits);
    const Fraction32 least(static_cast<float>(std::min(most_, eta)));
    keep_probable(c, least.ceil_of(entropy.mass), min_keep_);
  }

 private:
  double most_, root_;
  int64_t min_keep_;
};

ALEATOR_BIND(sampler_eta_cutoff) {
  nb::class_<EtaCutoff, Sampler>(m, "EtaCutoff")
      .def(nb::init<float, int64_t>(), "eta_cutoff"_a, "min_keep"_a);
}

}  // namespace aleator
