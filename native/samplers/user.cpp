// Contract: src/aleator/samplers/user.py
#include "samplers/user.hpp"

#include "samplers/binding.hpp"

namespace aleator {

class UserSampler : public Called<Sampler, Candidates, Step, PyCandidates> {
 public:
  using Called::Called;
  void set_ordinal(uint32_t ordinal) override { adapter_.call("set_ordinal", ordinal); }
  std::shared_ptr<Sampler> clone() const override { return cloned<UserSampler>(); }
};

ALEATOR_BIND(sampler_user) { bind_user<UserSampler, Sampler>(m, "UserSampler"); }

}  // namespace aleator
