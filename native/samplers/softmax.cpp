// Contract: src/aleator/samplers/softmax.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Softmax : public Cloned<Softmax> {
 public:
  void apply(Candidates& c, const Step&) override { c.record_full_mass(); }
};

ALEATOR_BIND(sampler_softmax) { nb::class_<Softmax, Sampler>(m, "Softmax").def(nb::init<>()); }

}  // namespace aleator
