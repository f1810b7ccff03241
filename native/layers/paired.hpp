// What a matrix in BF16 is multiplied with: rows of x rounded to bfloat16, in pairs of elements
// (docs/numerics.md, part 2).
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// Whole groups of 32 elements, the last filled with zeros.
struct Paired {
  const float* floats = nullptr;     // of each group the odd elements, then the even ones
  const uint16_t* halves = nullptr;  // in bfloat16, in their order; none where no kernel takes them
  int64_t stride = 0;                // elements from row to row
};

// Rounds a row to nearest, ties to even, after magnitudes below 2^-52 have become +0; halves may be
// null.
ALEATOR_KERNEL(void, pair_row, (const float* x, int64_t in, float* floats, uint16_t* halves))

}  // namespace aleator
