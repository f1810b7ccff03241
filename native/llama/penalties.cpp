// Contract: docs/llama-cpp.md
#include "llama/sampler.hpp"
#include "samplers/making.hpp"
#include "samplers/window_counts.hpp"

namespace aleator::llama {

class Penalties : public Penalised<LlamaCloned<Penalties>> {
 public:
  using Penalised::Penalised;

  void apply(Row& row, const History&) override {
    if (!active_) return;
    row.edit(window_.distinct(), [&](int32_t id, float& logit) {
      const int32_t count = window_.count(id).all;
      if (!count) return;
      logit = logit <= 0 ? logit * repetition_ : logit / repetition_;
      logit -= float(count) * frequency_ + presence_;
    });
    row.sorted = false;
  }
};

ALEATOR_BIND(llama_penalties) {
  bind_sampler<Penalties(int64_t, float, float, float)>(
      m, "LlamaPenalties", "penalty_last_n"_a, "repetition_penalty"_a, "frequency_penalty"_a,
      "presence_penalty"_a);
}

}  // namespace aleator::llama
