// Contract: src/aleator/samplers/p_less.py
#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class PLess : public Cloned<PLess> {
 public:
  PLess(bool on, bool normalized) : on_(on), normalized_(normalized) {}

  void apply(Candidates& c, const Step&) override {
    if (!on_) return;
    const SquareSums sums = c.squares();
    const uint64_t total = sums.weight;
    auto bound = static_cast<uint64_t>((sums.squares + (total - 1)) / total);
    if (normalized_) {
      const auto n = static_cast<uint64_t>(c.count());
      if (n > 1) bound = (n * bound - total + (n - 2)) / (n - 1);
    }
    c.keep_run(bound);
  }

 private:
  bool on_, normalized_;
};

ALEATOR_BIND(sampler_p_less) {
  nb::class_<PLess, Sampler>(m, "PLess").def(nb::init<bool, bool>(), "on"_a, "normalized"_a);
}

}  // namespace aleator
