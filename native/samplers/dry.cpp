// Contract: src/aleator/samplers/dry.py
#include <algorithm>

#include "samplers/making.hpp"
#include "samplers/repeats.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class DRY : public Repeating<Cloned<DRY>, double> {
 public:
  using Repeating::Repeating;

  void apply(Candidates& c, const Step& step) override {
    if (!active_ || !step.history || !repeats_.find(*step.history)) return;
    if (repeats_.found().empty()) return;
    for (const int32_t token : repeats_.found())
      if (float* z = c.edit(token)) *z -= penalty(repeats_.excess(token));
    c.settle();
  }

 private:
  // multiplier * base^excess, by repeated squaring in float64, rounded to float32; never infinite.
  float penalty(int64_t excess) const {
    double power = 1, square = base_;
    for (int64_t e = excess; e; e >>= 1) {
      if (e & 1) power = std::min(power * square, contract::dry_largest_power);
      square = std::min(square * square, contract::dry_largest_power);
    }
    return float(std::clamp(multiplier_ * power, -contract::dry_largest_penalty,
                            contract::dry_largest_penalty));
  }
};

ALEATOR_BIND(sampler_dry) {
  bind_sampler<DRY(double, double, int64_t, int64_t, std::vector<std::vector<int32_t>>)>(
      m, "DRY", "dry_multiplier"_a, "dry_base"_a, "dry_allowed_length"_a, "dry_penalty_last_n"_a,
      "breakers"_a);
}

}  // namespace aleator
