// Contract: src/aleator/samplers/penalties.py
#include "samplers/making.hpp"
#include "samplers/sampler.hpp"
#include "samplers/window_counts.hpp"

namespace aleator {

class Penalties : public Penalised<Cloned<Penalties>> {
 public:
  // Whether prompt tokens count for the repetition penalty, and for the other two; whether a token
  // that occurs often is penalised for its repetition as often.
  Penalties(int64_t last_n, float repetition, float frequency, float presence, bool prompt_repeats,
            bool prompt_counts, bool per_occurrence)
      : Penalised(last_n, repetition, frequency, presence),
        prompt_repeats_(prompt_repeats),
        prompt_counts_(prompt_counts),
        per_occurrence_(per_occurrence) {}

  void apply(Candidates& c, const Step&) override {
    if (!active_ || window_.distinct().empty()) return;
    for (const int32_t token : window_.distinct()) {
      float* z = c.edit(token);
      if (!z) continue;
      const auto count = window_.count(token);
      if (const int32_t times = prompt_repeats_ ? count.all : count.generated) {
        *z = *z > 0 ? *z / repetition_ : *z * repetition_;
        if (per_occurrence_) [[unlikely]]
          for (int32_t i = 1; i < times; ++i) *z = *z > 0 ? *z / repetition_ : *z * repetition_;
      }
      if (const int32_t times = prompt_counts_ ? count.all : count.generated) {
        const float by_count = float(times) * frequency_;
        *z = *z - (by_count + presence_);
      }
    }
    c.settle();
  }

 private:
  bool prompt_repeats_, prompt_counts_, per_occurrence_;
};

ALEATOR_BIND(sampler_penalties) {
  bind_sampler<Penalties(int64_t, float, float, float, bool, bool, bool)>(
      m, "Penalties", "penalty_last_n"_a, "repetition_penalty"_a, "frequency_penalty"_a,
      "presence_penalty"_a, "prompt_repeats"_a, "prompt_counts"_a, "per_occurrence"_a);
}

}  // namespace aleator
