// Contract: src/aleator/samplers/greedy.py
#include "samplers/making.hpp"

namespace aleator {

static void greedy(Candidates& c) { c.selected = c.argmax(); }

ALEATOR_BIND(sampler_greedy) { bind_stateless<greedy>(m, "Greedy"); }

}  // namespace aleator
