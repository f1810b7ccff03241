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
// Rows [begin, end) of each of 4 or 8 parts of W, whole groups of 32 single numbers, times one
// token.
ALEATOR_KERNEL(void, rows_of_parts,
               (const Weights& w, int64_t parts, int64_t begin, int64_t end, const Input& x,
                float* y))
// The same as linear_rows with float32 rows of x, W being in single numbers or in Q8_0.
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

// How a product's rows are shared out among threads: in pieces of so many rows of each of W's
// parts, which are as many rows each.
struct Shares {
  int64_t parts, rows_of_part, rows;
  int64_t pieces() const { return (rows_of_part + rows - 1) / rows; }
  auto operator<=>(const Shares&) const = default;
  // f(begin, end) of each part.
  template <class F>
  void each_part(int64_t begin, int64_t end, F&& f) const {
    for (int64_t i = 0; i < parts; i++) f(i * rows_of_part + begin, i * rows_of_part + end);
  }
};
// Rows of four quarters side by side are four streams that go on from page to page, which the
// processor sees and reads ahead: faster than one stream that instructions ask for, but on Zen 5
// (benchmarks/results/token_floats_zen4.2026-11-29.md), and but where more of x than of W would
// come from the second-level cache. Where all of x does, eight rows that meet it together are
// faster again (rows_of_eighths.2026-11-30.md). Where others use the memory too, one stream is
// faster: steps try both (two_ways.hpp). Pieces of a power of two of rows are mostly as many for
// each thread.
inline Shares shares_of(const Weights& w, int64_t tokens, bool in_order = false) {
  const int64_t bytes_of_x = w.in * (w.type == Stored::bf16 && bfloat16_products() ? 2 : 4);
  const bool quarters = bytes_of_x <= 16 << 10 || bytes_of_x <= w.row_bytes;
  const bool eighths = !quarters && bytes_of_x > 24 << 10 && isa() >= Isa::v4;
  const int64_t parts = eighths ? 8 : 4;
  const bool apart = tokens == 1 && !in_order && single(w.type) && w.out % parts == 0 &&
                     w.in % 32 == 0 && (quarters || eighths) && from_memory(w) &&
                     isa() >= Isa::v3 && !is_zen_5;
  if (!apart) return {1, w.out, rows_per_unit(w, tokens)};
  int64_t rows = 128 / parts;
  while (rows > 1 && rows * w.row_bytes > 64 << 10) rows /= 2;
  return {parts, w.out / parts, rows};
}

}  // namespace aleator
