// Contract: src/aleator/samplers/logit_bias.py
#include "samplers/making.hpp"

namespace aleator {

static void logit_bias(Candidates& c, const std::vector<std::pair<int32_t, float>>& biases) {
  if (biases.empty()) return;
  for (const auto& [token, bias] : biases) require_token("logit_bias", token, c.n_vocab());
  for (const auto& [token, bias] : biases)
    if (float* z = c.edit(token)) *z += bias;
  c.settle();
}

ALEATOR_BIND(sampler_logit_bias) { bind_stateless<logit_bias>(m, "LogitBias", "biases"_a); }

}  // namespace aleator
