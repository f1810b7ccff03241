#include "layers/linear.hpp"

#include <type_traits>

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

// Elements [begin, end) of a row as float32; begin is where a step begins.
template <class Read>
static void widen(const uint8_t* p, int64_t begin, int64_t end, float* y) {
  int64_t i = begin;
  for (; i + Read::step <= end; i += Read::step) {
    vf v[Read::step / lanes];
    Read::group(p, i, v);
    for (int k = 0; k < Read::step / lanes; k++) store(y + i - begin + k * lanes, v[k]);
  }
  for (; i < end; i++) y[i - begin] = Read::one(p, i);
}

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
      // The rows of a later tile: by itself the processor looks no further than the
      // page.
      __builtin_prefetch(pr + Read::bytes(i) + 4 * R * w.row_bytes, 0, 2);
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
  for (int t = 0; t < T; t++) {
    float* out = y + t * y_stride + row;
    if constexpr (R == 4) {
      v4 four = sums({total[0][t], total[1][t], total[2][t], total[3][t]});
      if (w.bias) four += load_as<v4>(w.bias + row);
      std::memcpy(out, &four, sizeof four);
    } else {
      for (int r = 0; r < R; r++) out[r] = sum(total[r][t]) + (w.bias ? w.bias[row + r] : 0.0f);
    }
  }
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
static void few(const Weights& w, int64_t begin, int64_t end, const Input& in, float* y,
                int64_t y_stride) {
  int64_t row = begin;
  for (; row + tile_rows <= end; row += tile_rows)
    tokens_of<Read, tile_rows>(w, row, in.x, in.stride, in.tokens, y, y_stride);
  for (; row < end; row++) tokens_of<Read, 1>(w, row, in.x, in.stride, in.tokens, y, y_stride);
}

// Many tokens lie side by side in the lanes: x is packed as [panel][in][panel_tokens], and single
// elements of W are broadcast.
constexpr int panel_tokens = 2 * lanes;
constexpr int panel_rows = lanes == 16 ? 8 : 4;  // so many rows of W at once fill the registers
constexpr int64_t depth = 512;  // elements of W's rows at once: with the panel's, they stay near
static_assert(pack_tokens % panel_tokens == 0);

void pack(const float* x, int64_t stride, int64_t tokens, int64_t in, int64_t first,
          float* packed) {
  for (int64_t t = first; t < first + pack_tokens; t += panel_tokens) {
    float* panel = packed + t * in;
    const int64_t n = tokens - t < panel_tokens ? tokens - t : panel_tokens;
    for (int64_t i = 0; i < in; i += lanes) {  // a block at a time, so that lines are used whole
      const int64_t end = i + lanes < in ? i + lanes : in;
      for (int64_t j = 0; j < panel_tokens; j++)
        for (int64_t k = i; k < end; k++)
          panel[k * panel_tokens + j] = j < n ? x[(t + j) * stride + k] : 0.0f;
    }
  }
}

// out[r][t] = sum over k < n of row r of w times x[k * panel_tokens + t], for V vectors of tokens.
template <int R, int V>
static void panel(const uint8_t* w, int64_t row_bytes, int64_t n, const float* x,
                  float (&out)[R][panel_tokens]) {
  vf total[R][V] = {};
  for (int64_t k = 0; k < n; k++) {
    vf xs[V];
    for (int v = 0; v < V; v++) xs[v] = load(x + k * panel_tokens + v * lanes);
    for (int r = 0; r < R; r++) {
      const float ws = load_as<float>(w + r * row_bytes + 4 * k);
      for (int v = 0; v < V; v++) total[r][v] += ws * xs[v];
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(out[r] + v * lanes, total[r][v]);
}

template <class Read, int R>
static void panels_of(const Weights& w, int64_t row, const Input& in, float* y, int64_t y_stride) {
  float wide[R][depth];
  for (int64_t k = 0; k < w.in; k += depth) {
    const int64_t n = w.in - k < depth ? w.in - k : depth;
    const uint8_t* p = w.data + row * w.row_bytes + 4 * k;
    int64_t row_bytes = w.row_bytes;
    if constexpr (!std::is_same_v<Read, ReadF32>) {
      for (int r = 0; r < R; r++) widen<Read>(w.data + (row + r) * w.row_bytes, k, k + n, wide[r]);
      p = reinterpret_cast<const uint8_t*>(wide);
      row_bytes = depth * 4;
    }
    for (int64_t t = 0; t < in.tokens; t += panel_tokens) {
      const float* x = in.x + t * w.in + k * panel_tokens;
      const int64_t tokens = in.tokens - t < panel_tokens ? in.tokens - t : panel_tokens;
      float out[R][panel_tokens];
      if (tokens > lanes)
        panel<R, 2>(p, row_bytes, n, x, out);
      else
        panel<R, 1>(p, row_bytes, n, x, out);
      for (int64_t j = 0; j < tokens; j++)
        for (int r = 0; r < R; r++) {
          float& to = y[(t + j) * y_stride + row + r];
          to = (k ? to : w.bias ? w.bias[row + r] : 0.0f) + out[r][j];
        }
    }
  }
}

template <class Read>
static void many(const Weights& w, int64_t begin, int64_t end, const Input& in, float* y,
                 int64_t y_stride) {
  constexpr int64_t near = 128;  // tokens that stay in the second-level cache from row to row
  for (int64_t t = 0; t < in.tokens; t += near, y += near * y_stride) {
    const int64_t tokens = in.tokens - t < near ? in.tokens - t : near;
    const Input part{in.x + t * w.in, 0, tokens, true};
    int64_t row = begin;
    for (; row + panel_rows <= end; row += panel_rows)
      panels_of<Read, panel_rows>(w, row, part, y, y_stride);
    for (; row < end; row++) panels_of<Read, 1>(w, row, part, y, y_stride);
  }
}

void linear_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                 int64_t y_stride) {
  if (in_blocks(w.type))
    return block_rows(w, begin, end, block_shape(w.type).elements == 32 ? x.small : x.large, y,
                      y_stride);
  with_floats(w.type, [&](auto read) {
    if (x.packed)
      many<decltype(read)>(w, begin, end, x, y, y_stride);
    else
      few<decltype(read)>(w, begin, end, x, y, y_stride);
  });
}

void read_row(const Weights& w, int64_t row, float* y) {
  if (in_blocks(w.type)) return read_block_row(w, row, y);
  with_floats(w.type,
              [&](auto read) { widen<decltype(read)>(w.data + row * w.row_bytes, 0, w.in, y); });
}

}  // namespace aleator::ALEATOR_ISA
