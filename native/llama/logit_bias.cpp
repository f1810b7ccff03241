// Contract: docs/llama-cpp.md
#include <algorithm>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

class LogitBias : public LlamaCloned<LogitBias> {
 public:
  // By ascending token, each at most once.
  explicit LogitBias(const std::vector<std::pair<int32_t, float>>& biases) {
    for (const auto& [token, bias] : biases) tokens_.push_back(token), biases_.push_back(bias);
  }

  void apply(Row& row, const History&) override {
    if (tokens_.empty()) return;
    require_token("logit_bias", tokens_.back(), row.n_vocab());
    row.edit(tokens_, [&](int32_t id, float& logit) {
      const auto at = std::lower_bound(tokens_.begin(), tokens_.end(), id);
      if (at != tokens_.end() && *at == id) logit += biases_[at - tokens_.begin()];
    });
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<float> biases_;
};

ALEATOR_BIND(llama_logit_bias) {
  bind_sampler<LogitBias(std::vector<std::pair<int32_t, float>>)>(m, "LlamaLogitBias", "biases"_a);
}

}  // namespace aleator::llama
