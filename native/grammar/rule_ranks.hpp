// Which rules of a grammar may begin with which, and an order of the rules that follows it.
#pragma once

#include "grammar/gbnf.hpp"

namespace aleator {

// Gives every rule its rank: one that may begin with another has a smaller or equal rank.  Returns
// a rule that can begin with itself, which llama.cpp refuses or does not end on; -1 if none can.
int32_t rank_rules(Gbnf& g);

}  // namespace aleator
