// Masking tokens one by one.
#pragma once

#include <limits>
#include <vector>

#include "samplers/candidates.hpp"

namespace aleator {

// Masks the tokens; those that are no candidates do no harm.  Without any nothing is written.
inline void mask_tokens(Candidates& c, const std::vector<int32_t>& tokens) {
  if (tokens.empty()) return;
  for (const int32_t token : tokens)
    if (float* z = c.edit(token)) *z = -std::numeric_limits<float>::infinity();
  c.settle();
}

}  // namespace aleator
