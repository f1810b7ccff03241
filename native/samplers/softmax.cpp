// Contract: src/aleator/samplers/softmax.py
#include "samplers/making.hpp"

namespace aleator {

static void softmax(Candidates& c) { c.record_full_mass(); }

ALEATOR_BIND(sampler_softmax) { bind_stateless<softmax>(m, "Softmax"); }

}  // namespace aleator
