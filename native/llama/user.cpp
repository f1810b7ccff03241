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

ALEATOR_BIND(llama_user) {
  nb::class_<UserSampler, LlamaSampler>(m, "LlamaUserSampler")
      .def(nb::init<nb::object>(), nb::arg("adapter"))
      .def_prop_ro("adapter", &UserSampler::adapter);
}

}  // namespace aleator::llama
