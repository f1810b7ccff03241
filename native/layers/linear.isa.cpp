#include "layers/linear.hpp"

#include <type_traits>

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

// Rows of W read side by side, and rows of x that share one reading: as many sums as there are registers.
constexpr int tile_rows = 4;
constexpr int tile_tokens = lanes == 16 ? 4 : 2;
// Memory ahead of the reading is asked for, by cache line: the processor's own prefetching stops at each page.
constexpr int64_t line = 64;

template <int R, int T>
static inline void finish(const vf (&total)[R][T], const float (&rest)[R][T], const Weights &w,
                          int64_t row, float *y, int64_t y_stride) {
  for (int t = 0; t < T; t++)
    for (int r = 0; r < R; r++)
      y[t * y_stride + row + r] = sum(total[r][t]) + rest[r][t] + (w.bias ? w.bias[row + r] : 0.0f);
}

template <class Read, int R, int T>
static void tile(const Weights &w, int64_t row, const float *x, int64_t x_stride, float *y,
                 int64_t y_stride) {
  const uint8_t *p = w.data + row * w.row_bytes;
  const int64_t ahead = R * w.row_bytes;
  vf total[R][T] = {};
  float rest[R][T] = {};
  int64_t i = 0;
  constexpr int step = Read::size * lanes < line ? line / Read::size : lanes;
  for (; i + step <= w.in; i += step) {
    for (int r = 0; r < R; r++)
      __builtin_prefetch(p + r * w.row_bytes + i * Read::size + ahead, 0, 3);
    for (int k = 0; k < step; k += lanes) {
      vf xs[T];
      for (int t = 0; t < T; t++) xs[t] = load(x + t * x_stride + i + k);
      for (int r = 0; r < R; r++) {
        const vf ws = Read::vector(p + r * w.row_bytes, i + k);
        for (int t = 0; t < T; t++) total[r][t] += ws * xs[t];
      }
    }
  }
  for (; i + lanes <= w.in; i += lanes)
    for (int r = 0; r < R; r++) {
      const vf ws = Read::vector(p + r * w.row_bytes, i);
      for (int t = 0; t < T; t++) total[r][t] += ws * load(x + t * x_stride + i);
    }
  for (; i < w.in; i++)
    for (int r = 0; r < R; r++)
      for (int t = 0; t < T; t++)
        rest[r][t] += Read::one(p + r * w.row_bytes, i) * x[t * x_stride + i];
  finish<R, T>(total, rest, w, row, y, y_stride);
}

struct ReadQ8_0 {};

// A block's scale multiplies the block's sums: d * (q0 x0 + q1 x1 + ...), with q and d exact.
template <int R, int T>
static void tile_q8_0(const Weights &w, int64_t row, const float *x, int64_t x_stride, float *y,
                      int64_t y_stride) {
  const uint8_t *p = w.data + row * w.row_bytes;
  const int64_t ahead = R * w.row_bytes;
  vf total[R][T] = {};
  for (int64_t b = 0, n = w.in / q8_0_block; b < n; b++) {
    for (int r = 0; r < R; r++) {
      const uint8_t *block = p + r * w.row_bytes + b * q8_0_bytes;
      __builtin_prefetch(block + ahead, 0, 3);
      const auto *q = reinterpret_cast<const int8_t *>(block + 2);
      vf part[T] = {};
      for (int k = 0; k < q8_0_block; k += lanes) {
        const vf ws = vf_of_i8(q + k);
        for (int t = 0; t < T; t++) part[t] += ws * load(x + t * x_stride + b * q8_0_block + k);
      }
      const vf d = splat(f32_of_f16(load_as<uint16_t>(block)));
      for (int t = 0; t < T; t++) total[r][t] += d * part[t];
    }
  }
  finish<R, T>(total, {}, w, row, y, y_stride);
}

template <class Read, int R, int T>
static inline void any_tile(const Weights &w, int64_t row, const float *x, int64_t x_stride,
                            float *y, int64_t y_stride) {
  if constexpr (std::is_same_v<Read, ReadQ8_0>)
    tile_q8_0<R, T>(w, row, x, x_stride, y, y_stride);
  else
    tile<Read, R, T>(w, row, x, x_stride, y, y_stride);
}

template <class Read, int R>
static void tokens_of(const Weights &w, int64_t row, const float *x, int64_t x_stride,
                      int64_t tokens, float *y, int64_t y_stride) {
  int64_t t = 0;
  for (; t + tile_tokens <= tokens; t += tile_tokens)
    any_tile<Read, R, tile_tokens>(w, row, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
  x += t * x_stride, y += t * y_stride;
  if (tile_tokens > 2 && tokens - t == 3) return any_tile<Read, R, 3>(w, row, x, x_stride, y, y_stride);
  if (tile_tokens > 2 && tokens - t == 2) return any_tile<Read, R, 2>(w, row, x, x_stride, y, y_stride);
  if (tokens - t == 1) return any_tile<Read, R, 1>(w, row, x, x_stride, y, y_stride);
}

template <class Read>
static void rows_of(const Weights &w, int64_t begin, int64_t end, const float *x, int64_t x_stride,
                    int64_t tokens, float *y, int64_t y_stride) {
  int64_t row = begin;
  for (; row + tile_rows <= end; row += tile_rows)
    tokens_of<Read, tile_rows>(w, row, x, x_stride, tokens, y, y_stride);
  for (; row < end; row++) tokens_of<Read, 1>(w, row, x, x_stride, tokens, y, y_stride);
}

void linear_rows(const Weights &w, int64_t begin, int64_t end, const float *x, int64_t x_stride,
                 int64_t tokens, float *y, int64_t y_stride) {
  switch (w.type) {
    case Stored::f32: return rows_of<ReadF32>(w, begin, end, x, x_stride, tokens, y, y_stride);
    case Stored::f16: return rows_of<ReadF16>(w, begin, end, x, x_stride, tokens, y, y_stride);
    case Stored::bf16: return rows_of<ReadBF16>(w, begin, end, x, x_stride, tokens, y, y_stride);
    case Stored::q8_0: return rows_of<ReadQ8_0>(w, begin, end, x, x_stride, tokens, y, y_stride);
  }
}

void read_row(const Weights &w, int64_t row, float *y) {
  const uint8_t *p = w.data + row * w.row_bytes;
  switch (w.type) {
    case Stored::f32: std::memcpy(y, p, size_t(w.in) * 4); return;
    case Stored::f16:
      for (int64_t i = 0; i < w.in; i++) y[i] = ReadF16::one(p, i);
      return;
    case Stored::bf16:
      for (int64_t i = 0; i < w.in; i++) y[i] = ReadBF16::one(p, i);
      return;
    case Stored::q8_0:
      for (int64_t b = 0; b < w.in / q8_0_block; b++, p += q8_0_bytes) {
        const float d = f32_of_f16(load_as<uint16_t>(p));
        for (int k = 0; k < q8_0_block; k++)
          y[b * q8_0_block + k] = d * float(reinterpret_cast<const int8_t *>(p)[2 + k]);
      }
  }
}

}  // namespace aleator::ALEATOR_ISA
