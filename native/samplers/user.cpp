// Contract: src/aleator/samplers/user.py
#include "samplers/user.hpp"

#include "samplers/binding.hpp"

namespace aleator {

class UserSampler : public Called<Sampler, Candidates, Step, PyCandidates> {
 public:
  using Called::Called;
  void set_ordinal(uint32_t ordinal) override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("set_ordinal")(ordinal);
  }
  std::shared_ptr<Sampler> clone() const override { return cloned<UserSampler>(); }
};

ALEATOR_BIND(sampler_user) {
  nb::class_<UserSampler, Sampler>(m, "UserSampler")
      .def(nb::init<nb::object>(), nb::arg("adapter"))
      .def_prop_ro("adapter", &UserSampler::adapter);
}

}  // namespace aleator
