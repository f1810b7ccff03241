// y = x W^T + b with W as it is stored, for a few rows of x.
#pragma once

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"
#include "threads/pool.hpp"

namespace aleator {

// Rows [begin, end) of W against `tokens` rows of x (float32, x_stride apart) into y[token *
// y_stride + row]. Products and sums in float32.  The bits of y[t][r] depend on row r, on x[t] and
// on the instruction set only: not on the number of tokens, nor on how the rows are shared out.
ALEATOR_DECLARE(void linear_rows(const Weights& w, int64_t begin, int64_t end, const float* x,
                                 int64_t x_stride, int64_t tokens, float* y, int64_t y_stride))
// Row `row` of W as float32 [in].
ALEATOR_DECLARE(void read_row(const Weights& w, int64_t row, float* y))

// Rows that one thread takes at a time: enough to hide the taking (and, with many tokens, to use x
// several times while it is near), few enough to share evenly.
inline int64_t rows_per_unit(const Weights& w, int64_t tokens) {
  const int64_t rows = tokens > 8 ? 64 : 16384 / w.row_bytes / 4 * 4;
  return rows < 4 ? 4 : rows > 64 ? 64 : rows;
}
inline int64_t units(const Weights& w, int64_t tokens) {
  return (w.out + rows_per_unit(w, tokens) - 1) / rows_per_unit(w, tokens);
}

}  // namespace aleator
