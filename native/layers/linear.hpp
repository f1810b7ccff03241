// y = x W^T + b with W as it is stored.
#pragma once

#include "layers/forms.hpp"
#include "layers/stored.hpp"
#include "simd/dispatch.hpp"
#include "threads/pool.hpp"

namespace aleator {

// Rows [begin, end) of W times x into y[token * y_stride + row].  The bits of y[t][r] depend on row
// r and x[t] only (docs/numerics.md, part 2).
ALEATOR_KERNEL(void, linear_rows,
               (const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                int64_t y_stride))
// The same with float32 rows of x, W being in single numbers or in Q8_0.
ALEATOR_KERNEL(void, float_rows,
               (const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                int64_t y_stride))
// Row `row` of W as float32 [in].
ALEATOR_KERNEL(void, read_row, (const Weights& w, int64_t row, float* y))

// y [tokens, out] = x [tokens, in] W^T, shared out among the threads of a pool.
void multiply(Pool& pool, const Weights& w, const float* x, int64_t tokens, float* y);

// Rows that one thread takes at a time: enough to hide the taking (and, of many tokens, to use x
// several times while it is near), few enough to share evenly; whole tiles of every kernel.
inline int64_t rows_per_unit(const Weights& w, int64_t tokens) {
  const int64_t tile = tokens > 2 ? 16 : 8;
  const int64_t rows = tokens > few_rounded ? 64 : 16384 / w.row_bytes / tile * tile;
  return rows < tile ? tile : rows > 64 ? 64 : rows;
}
inline int64_t units(const Weights& w, int64_t tokens) {
  return (w.out + rows_per_unit(w, tokens) - 1) / rows_per_unit(w, tokens);
}

}  // namespace aleator
