// Contract: src/aleator/samplers/min_p.py
#include <cmath>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class MinP : public Cloned<MinP> {
 public:
  MinP(float min_p, int64_t min_keep, bool full)
      : min_p_(min_p),
        log_min_p_(std::log(static_cast<double>(min_p))),
        min_keep_(min_keep),
        full_(full) {}
  void apply(Candidates& c, const Step&) override {
    if (min_p_ <= 0) return;
    // A ratio of two masses is the same whatever both are divided by; only the missing Softmax can
    // be wrong.
    if (full_ && !c.full_mass()) throw_no_full_mass("min_p");
    c.keep_near(static_cast<float>(c.temperature() * log_min_p_), min_keep_);
  }

 private:
  float min_p_;
  double log_min_p_;
  int64_t min_keep_;
  bool full_;
};

ALEATOR_BIND(sampler_min_p) {
  nb::class_<MinP, Sampler>(m, "MinP").def(nb::init<float, int64_t, bool>(), "min_p"_a,
                                           "min_keep"_a, "full"_a);
}

}  // namespace aleator
