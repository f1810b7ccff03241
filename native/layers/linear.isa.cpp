#include "layers/linear.hpp"

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

// Rows of W read side by side, and rows of x that share one reading: as many sums as there are
// registers.
constexpr int tile_rows = 4;
constexpr int tile_tokens = lanes == 16 ? 4 : 2;

template <class Read, int R, int T>
static void tile(const Weights& w, int64_t row, const float* x, int64_t x_stride, float* y,
                 int64_t y_stride) {
  const uint8_t* p = w.data + row * w.row_bytes;
  vf total[R][T] = {};
  int64_t i = 0;
  for (; i + Read::step <= w.in; i += Read::step)
    for (int r = 0; r < R; r++) {
      const uint8_t* pr = p + r * w.row_bytes;
      // The rows of the tile after the next: by itself the processor looks no further than the
      // page.
      __builtin_prefetch(pr + Read::bytes(i) + 2 * R * w.row_bytes, 0, 2);
      vf ws[Read::step / lanes];
      Read::group(pr, i, ws);
      for (int k = 0; k < Read::step / lanes; k++)
        for (int t = 0; t < T; t++) total[r][t] += ws[k] * load(x + t * x_stride + i + k * lanes);
    }
  if (i < w.in) {  // zeros fill the last step: the same operations as above, so the same rounding
                   // in every tile
    constexpr int step = Read::step;
    const int64_t n = w.in - i;
    float xs[T][step] = {};
    for (int t = 0; t < T; t++) std::memcpy(xs[t], x + t * x_stride + i, size_t(n) * 4);
    for (int r = 0; r < R; r++) {
      float ws[step] = {};
      for (int64_t k = 0; k < n; k++) ws[k] = Read::one(p + r * w.row_bytes, i + k);
      for (int k = 0; k < step; k += lanes)
        for (int t = 0; t < T; t++) total[r][t] += load(ws + k) * load(xs[t] + k);
    }
  }
  for (int t = 0; t < T; t++)
    for (int r = 0; r < R; r++)
      y[t * y_stride + row + r] = sum(total[r][t]) + (w.bias ? w.bias[row + r] : 0.0f);
}

template <class Read, int R>
static void tokens_of(const Weights& w, int64_t row, const float* x, int64_t x_stride,
                      int64_t tokens, float* y, int64_t y_stride) {
  int64_t t = 0;
  for (; t + tile_tokens <= tokens; t += tile_tokens)
    tile<Read, R, tile_tokens>(w, row, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
  x += t * x_stride, y += t * y_stride;
  if (tile_tokens > 2 && tokens - t == 3) return tile<Read, R, 3>(w, row, x, x_stride, y, y_stride);
  if (tile_tokens > 2 && tokens - t == 2) return tile<Read, R, 2>(w, row, x, x_stride, y, y_stride);
  if (tokens - t == 1) return tile<Read, R, 1>(w, row, x, x_stride, y, y_stride);
}

template <class Read>
static void rows_of(const Weights& w, int64_t begin, int64_t end, const float* x, int64_t x_stride,
                    int64_t tokens, float* y, int64_t y_stride) {
  constexpr int64_t block = 64;  // tokens whose rows of x stay in the second-level cache
  for (int64_t t = 0; t < tokens; t += block, x += block * x_stride, y += block * y_stride) {
    const int64_t n = tokens - t < block ? tokens - t : block;
    int64_t row = begin;
    for (; row + tile_rows <= end; row += tile_rows)
      tokens_of<Read, tile_rows>(w, row, x, x_stride, n, y, y_stride);
    for (; row < end; row++) tokens_of<Read, 1>(w, row, x, x_stride, n, y, y_stride);
  }
}

void linear_rows(const Weights& w, int64_t begin, int64_t end, const float* x, int64_t x_stride,
                 int64_t tokens, float* y, int64_t y_stride) {
  with_reader(w.type, [&](auto read) {
    rows_of<decltype(read)>(w, begin, end, x, x_stride, tokens, y, y_stride);
  });
}

void read_row(const Weights& w, int64_t row, float* y) {
  with_reader(w.type, [&](auto read) {
    using Read = decltype(read);
    const uint8_t* p = w.data + row * w.row_bytes;
    int64_t i = 0;
    for (; i + Read::step <= w.in; i += Read::step) {
      vf v[Read::step / lanes];
      Read::group(p, i, v);
      for (int k = 0; k < Read::step / lanes; k++) store(y + i + k * lanes, v[k]);
    }
    for (; i < w.in; i++) y[i] = Read::one(p, i);
  });
}

}  // namespace aleator::ALEATOR_ISA
