// y = x W^T + b with W as it is stored.
#pragma once

#include <initializer_list>
#include <vector>

#include "layers/block_linear.hpp"
#include "layers/stored.hpp"
#include "simd/dispatch.hpp"
#include "threads/pool.hpp"

namespace aleator {

// The forms of x that products with these matrices read.
struct Forms {
  bool floats = false, small = false, large = false;  // float32; int8 in blocks of 32; of 256
  const int32_t* order = nullptr;                     // of all matrices in blocks, see Weights
};
inline Forms forms_of(std::initializer_list<const Weights*> list) {
  Forms forms;
  for (const Weights* w : list) {
    const bool small = block_shape(w->type).elements == 32;
    (!in_blocks(w->type) ? forms.floats : small ? forms.small : forms.large) = true;
    if (w->order) forms.order = w->order;
  }
  return forms;
}

// What W is multiplied with: rows of x, and the same rounded.
struct Input {
  const float* x = nullptr;
  int64_t stride = 0;  // from row to row
  int64_t tokens = 0;
  Rounded small, large;
};

// Room for rounded rows.
class RoundedRows {
 public:
  void resize(int64_t tokens, int64_t in, int64_t block);
  // order: of the elements of x; null: as they are.
  void round(int64_t token, const float* x, const int32_t* order = nullptr);
  // Row `to` becomes row `from` of others, in blocks of the same size.
  void copy(int64_t to, const Rounded& rows, int64_t from);
  Rounded view(int64_t tokens) const { return {q_.data(), d_.data(), sums_.data(), in_, tokens}; }
  Rounded view(int64_t first, int64_t tokens) const {
    const int64_t at = first * in_;
    return {q_.data() + at, d_.data() + at / block_, sums_.data() + at / 16, in_, tokens};
  }

 private:
  int64_t in_ = 0, block_ = 32;
  std::vector<int8_t> q_;
  std::vector<float> d_;
  std::vector<int16_t> sums_;
};

// Rows [begin, end) of W times x into y[token * y_stride + row].  The bits of y[t][r] depend on row
// r and x[t] only (docs/numerics.md, part 2).
ALEATOR_KERNEL(void, linear_rows,
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
