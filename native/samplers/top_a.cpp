// Contract: src/aleator/samplers/top_a.py
#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TopA : public Cloned<TopA> {
 public:
  explicit TopA(float top_a) : top_a_(top_a) {}

  void apply(Candidates& c, const Step&) override {
    if (!top_a_.numerator) return;
    // w / Z >= a * (2^40 / Z)^2  <=>  w >= ceil(a * 2^80 / Z), with a = numerator / 2^shift
    const uint64_t total = c.mass();
    u128 bound = ((static_cast<u128>(top_a_.numerator) << 80) + (total - 1)) / total;
    bound = top_a_.shift >= 127 ? 1 : (bound + ((u128{1} << top_a_.shift) - 1)) >> top_a_.shift;
    if (!c.keep_run(static_cast<uint64_t>(bound))) c.keep_only(c.argmax());
  }

 private:
  Fraction32 top_a_;
};

ALEATOR_BIND(sampler_top_a) {
  nb::class_<TopA, Sampler>(m, "TopA").def(nb::init<float>(), "top_a"_a);
}

}  // namespace aleator
