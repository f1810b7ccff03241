// Rows of floats that are widened or copied first, for many tokens. Included by linear.isa.cpp
// only.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "layers/float_tiles.hpp"
#include "layers/linear.hpp"

namespace aleator::ALEATOR_ISA {

// Where registers hold a part of the lanes, rows of W are read twice for every tile, and scaled
// ones take longer to read. For so many tokens they are widened first, a chunk at a time, which
// stays in the first-level cache.
constexpr int64_t most_chunk = 768;

// Elements [0, end) of a row as float32; in blocks whole ones, zeros after the last element.
template <class Read>
static void widen(const uint8_t* p, int64_t end, float* y) {
  int64_t i = 0;
  if constexpr (Grouped<Read>) {
    const auto group = [&](const uint8_t* at) {
      typename OfGroup<Read, 1>::Block block(at);
#pragma GCC unroll 4
      for (int j = 0; j < Read::step; j += 16) store16(y + i + j, block.sixteen(j));
    };
    for (; i + Read::step <= end; i += Read::step) group(p + Read::bytes(i));
    if constexpr (!scaled(Read::type))  // those are whole groups
      if (i < end) {
        alignas(64) uint8_t last[Read::bytes(Read::step)] = {};
        std::memcpy(last, p + Read::bytes(i), size_t(Read::bytes(end - i)));
        group(last);
      }
  } else {
    for (; i + 16 <= end; i += 16) store16(y + i, load16_as<Read>(p, i));
    if (i < end) store16(y + i, load16_as<Read>(p, i, end - i), end - i);
  }
}

// Rows of F32 times many tokens where registers hold half of the lanes. Parts of eight rows are
// copied side by side and stay in the first-level cache, half of which they fill; tiles of x come
// from the second-level cache, and each asks for rows of the next one. Sums wait there too.
constexpr int64_t panel_rows = 2 * tile_rows, panel_tokens = 43 * tile_tokens;
constexpr int64_t panels_waiting = 4, least_in_panels = 48;
// A short row is not taken apart: then no sums wait.
static int64_t panel_columns(int64_t in) { return in <= most_chunk ? in : 512; }

struct Panel {
  const uint8_t* w;     // its first row
  const uint8_t* next;  // that of the panel which follows
  int64_t rows, row_bytes;
  int64_t begin, n;  // columns
  bool ends;         // with the last column
};
// y and bias: of the panel's first row.
template <class Read>
static void panel_times(const Panel& of, const float* x, int64_t x_stride, int64_t tokens,
                        v16* waiting, const float* bias, float* y, int64_t y_stride) {
  alignas(64) float wide[panel_rows][most_chunk];
  for (int64_t r = 0; r < of.rows; r++) widen<Read>(of.w + r * of.row_bytes, of.n, wide[r]);
  each_tile(tokens, [&](auto count, int64_t t, auto) {
    for (int64_t r = of.rows * t / tokens; r < of.rows * (t + count()) / tokens; r++)
      for (int64_t i = 0; i < Read::bytes(of.n); i += 64)
        ask_for_later(of.next + r * of.row_bytes + i);
    const float* const own = x + t * x_stride;
    for (int64_t r = 0; r < of.rows; r += tile_rows) {
      const float* const onward = own + (count() + r / tile_rows) * x_stride;
      tile<ReadF32, tile_rows, count()>(
          Chunk{reinterpret_cast<const uint8_t*>(wide[r]), sizeof wide[0], of.n, of.begin == 0,
                of.ends},
          AskOnward{reinterpret_cast<const uint8_t*>(onward)}, own, x_stride,
          reinterpret_cast<v16(*)[tile_rows]>(waiting + t * of.rows + r * count()),
          bias ? bias + r : nullptr, y + t * y_stride + r, y_stride);
    }
  });
}
template <class Read>
[[gnu::noinline]] static void times_panels(const Weights& w, int64_t row, int64_t end,
                                           const Input& in, float* y, int64_t y_stride) {
  static thread_local std::vector<v16> waiting;
  const int64_t most = panel_columns(w.in), chunks = (w.in + most - 1) / most;
  const int64_t chunk = ((w.in + chunks - 1) / chunks + 15) / 16 * 16;
  const int64_t groups = (in.tokens + panel_tokens - 1) / panel_tokens;
  const auto at = [&](int64_t r, int64_t i) { return w.data + r * w.row_bytes + Read::bytes(i); };
  waiting.resize(panels_waiting * panel_rows * panel_tokens);
  for (int64_t rows; (rows = (end - row) / tile_rows * tile_rows) > 0; row += rows) {
    rows = std::min(rows, panels_waiting * panel_rows);
    for (int64_t group = 0; group < groups; group++) {
      const int64_t first = in.tokens * group / groups;
      const int64_t tokens = in.tokens * (group + 1) / groups - first;
      for (int64_t begin = 0; begin < w.in; begin += chunk) {
        const int64_t n = std::min(chunk, w.in - begin);
        const bool ends = begin + n == w.in;
        for (int64_t r = row; r < row + rows; r += panel_rows) {
          const int64_t here = std::min(panel_rows, row + rows - r);
          const uint8_t* const next = r + here < row + rows ? at(r + here, begin)
                                      : ends                ? at(row + rows, 0)
                                                            : at(row, begin + n);
          panel_times<Read>({at(r, begin), next, here, w.row_bytes, begin, n, ends},
                            in.x + first * in.stride + begin, in.stride, tokens,
                            waiting.data() + (r - row) * tokens, w.bias ? w.bias + r : nullptr,
                            y + first * y_stride + r, y_stride);
        }
      }
    }
  }
}

}  // namespace aleator::ALEATOR_ISA
