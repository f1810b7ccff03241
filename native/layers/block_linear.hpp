// y = x W^T with W in ggml's blocks and x rounded to int8: exact integer products, and one float32
// operation per block and scale, in a fixed order (docs/numerics.md, part 2).
#pragma once

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// Rows of x in blocks of as many elements as W's: x is about d * q, |q| <= 127.
struct Rounded {
  const int8_t* q = nullptr;      // [tokens, in]
  const float* d = nullptr;       // [tokens, in / block]
  const int16_t* sums = nullptr;  // [tokens, in / 16], of q
  int64_t in = 0, tokens = 0;
};

// Up to so many tokens the reading of W is what takes time.
constexpr int64_t few_rounded = 6;

// Rounds a row: d = max|x| / 127, q = x * (127 / max|x|) to nearest, ties to even.  A row of which
// an element is not finite has d = NaN; one whose largest is below 2^-100 is taken for zeros.
ALEATOR_KERNEL(void, round_row,
               (const float* x, int64_t in, int64_t block, int8_t* q, float* d, int16_t* sums))
// Rows [begin, end) of W times x, plus the bias, into y[token * y_stride + row].
ALEATOR_KERNEL(void, block_rows,
               (const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride))
// Row `row` of W as float32 [in].
ALEATOR_KERNEL(void, read_block_row, (const Weights& w, int64_t row, float* y))

}  // namespace aleator
