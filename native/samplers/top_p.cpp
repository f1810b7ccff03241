// Contract: src/aleator/samplers/top_p.py
#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TopP : public Cloned<TopP> {
 public:
  TopP(float top_p, int64_t min_keep, bool full)
      : neutral_(top_p >= 1), fraction_(top_p), min_keep_(min_keep), full_(full) {}
  void apply(Candidates& c, const Step&) override {
    if (neutral_) return;
    if (full_ && !c.full_mass()) throw_no_full_mass("top_p");
    const uint64_t total = full_ ? c.full_mass() : c.mass();
    c.keep_mass(fraction_.ceil_of(total), total, min_keep_);
  }

 private:
  bool neutral_;
  Fraction32 fraction_;
  int64_t min_keep_;
  bool full_;
};

ALEATOR_BIND(sampler_top_p) {
  nb::class_<TopP, Sampler>(m, "TopP").def(nb::init<float, int64_t, bool>(), "top_p"_a,
                                           "min_keep"_a, "full"_a);
}

}  // namespace aleator
