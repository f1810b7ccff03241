// Contract: docs/llama-cpp.md
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"
#include "samplers/repeats.hpp"

namespace aleator::llama {

class DRY : public Repeating<LlamaCloned<DRY>, float> {
 public:
  DRY(float multiplier, float base, int64_t allowed, int64_t last_n,
      const std::vector<std::vector<int32_t>>& breakers)
      : Repeating(multiplier, base, allowed, last_n, breakers) {
    // The exponent at which the power leaves float32.
    if (base > 1.000001f) largest_ = int64_t(88.7228391f / std::log(base));
  }

  void apply(Row& row, const History& history) override {
    if (!active_ || !repeats_.find(history)) return;
    row.edit(repeats_.found(), [&](int32_t id, float& logit) {
      int64_t exponent = repeats_.excess(id);
      if (exponent < 0) return;
      if (largest_ > 0 && exponent > largest_) exponent = largest_;
      logit -= float(multiplier_ * std::pow(double(base_), double(exponent)));
    });
    row.sorted = false;
  }

 private:
  int64_t largest_ = 0;
};

ALEATOR_BIND(llama_dry) {
  bind_sampler<DRY(float, float, int64_t, int64_t, std::vector<std::vector<int32_t>>)>(
      m, "LlamaDRY", "dry_multiplier"_a, "dry_base"_a, "dry_allowed_length"_a,
      "dry_penalty_last_n"_a, "breakers"_a);
}

}  // namespace aleator::llama
