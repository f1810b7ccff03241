// Contract: src/aleator/samplers/greedy.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Greedy : public Cloned<Greedy> {
 public:
  void apply(Candidates& c, const Step&) override { c.selected = c.argmax(); }
};

ALEATOR_BIND(sampler_greedy) { nb::class_<Greedy, Sampler>(m, "Greedy").def(nb::init<>()); }

}  // namespace aleator
