// y = x W^T + b with W as it is stored, for a few rows of x.
#pragma once

#include <initializer_list>
#include <vector>

#include "layers/block_linear.hpp"
#include "layers/stored.hpp"
#include "simd/dispatch.hpp"
#include "threads/pool.hpp"

namespace aleator {

// Up to so many tokens the reading of W is what takes time, with more it is the arithmetic: there
// are two kernels.
constexpr int64_t few_tokens = 8;

// The forms of x that products with these matrices read.
struct Forms {
  bool floats = false, small = false, large = false;  // float32; int8 in blocks of 32; of 256
};
inline Forms forms_of(std::initializer_list<const Weights*> list) {
  Forms forms;
  for (const Weights* w : list) {
    const int64_t block = block_shape(w->type).elements;
    (block == 1 ? forms.floats : block == 32 ? forms.small : forms.large) = true;
  }
  return forms;
}

// What W is multiplied with: few tokens as rows, more of them packed; and rounded.
struct Input {
  const float* x = nullptr;
  int64_t stride = 0;  // from row to row; unused when packed
  int64_t tokens = 0;
  bool packed = false;
  Rounded small, large;
};

// Room for rounded rows.
class RoundedRows {
 public:
  void resize(int64_t tokens, int64_t in, int64_t block);
  void round(int64_t token, const float* x);
  Rounded view(int64_t tokens) const { return {q_.data(), d_.data(), sums_.data(), in_, tokens}; }

 private:
  int64_t in_ = 0, block_ = 32;
  std::vector<int8_t> q_;
  std::vector<float> d_;
  std::vector<int16_t> sums_;
};

constexpr int64_t pack_tokens = 32;  // packed in one go: a multiple of every kernel's width
inline int64_t packs(int64_t tokens) { return (tokens + pack_tokens - 1) / pack_tokens; }
inline int64_t packed_size(int64_t tokens, int64_t in) { return packs(tokens) * pack_tokens * in; }

// Packs rows [first, first + pack_tokens) of x, those past `tokens` as zeros; packed holds
// packed_size floats.
ALEATOR_DECLARE(void pack(const float* x, int64_t stride, int64_t tokens, int64_t in, int64_t first,
                          float* packed))
// Rows [begin, end) of W times x into y[token * y_stride + row].  W in floats: products and sums in
// float32; the bits of y[t][r] depend on row r, on x[t], on the instruction set and on `packed`, on
// nothing else.  W in blocks: on row r and x[t] only.
ALEATOR_DECLARE(void linear_rows(const Weights& w, int64_t begin, int64_t end, const Input& x,
                                 float* y, int64_t y_stride))
// Row `row` of W as float32 [in].
ALEATOR_DECLARE(void read_row(const Weights& w, int64_t row, float* y))

// Rows that one thread takes at a time: enough to hide the taking (and, of many tokens, to use x
// several times while it is near), few enough to share evenly; whole tiles of every kernel.
inline int64_t rows_per_unit(const Weights& w, int64_t tokens) {
  const bool many = tokens > (in_blocks(w.type) ? few_rounded : few_tokens);
  const int64_t rows = many ? 64 : 16384 / w.row_bytes / 8 * 8;
  return rows < 8 ? 8 : rows > 64 ? 64 : rows;
}
inline int64_t units(const Weights& w, int64_t tokens) {
  return (w.out + rows_per_unit(w, tokens) - 1) / rows_per_unit(w, tokens);
}

}  // namespace aleator
