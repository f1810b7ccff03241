// Contract: src/aleator/samplers/user.py
#include "samplers/user.hpp"

#include "llama/candidates.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class UserSampler : public Called<LlamaSampler, Row, History, LlamaCandidates> {
 public:
  using Called::Called;
  std::shared_ptr<LlamaSampler> clone() const override { return cloned<UserSampler>(); }
};

ALEATOR_BIND(llama_user) { bind_user<UserSampler, LlamaSampler>(m, "LlamaUserSampler"); }

}  // namespace aleator::llama
