// Contract: src/aleator/samplers/token_mask.py
#include "samplers/making.hpp"

namespace aleator {

// One bit a token, and tokens past the end are masked; without words all are allowed.
static void token_mask(Candidates& c, const std::optional<std::vector<uint32_t>>& words) {
  if (words && !c.keep_allowed(*words))
    throw LogitsError("the token mask allows none of the tokens that are left");
}

ALEATOR_BIND(sampler_token_mask) { bind_stateless<token_mask>(m, "TokenMask", "words"_a.none()); }

}  // namespace aleator
