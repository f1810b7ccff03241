// Rows of float32 into ggml's blocks, with the rounding of its reference quantiser, so that equal
// values give equal bytes.
#pragma once

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// n values, a multiple of 32, into blocks of any type in blocks.  A block with a NaN or an infinity
// in it reads as NaN.
ALEATOR_KERNEL(void, quantise_row, (const float* x, int64_t n, Stored type, uint8_t* row))
// A row of any stored type as float32 [n].
ALEATOR_KERNEL(void, widen_row, (const uint8_t* row, Stored type, int64_t n, float* x))

}  // namespace aleator
