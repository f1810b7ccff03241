#include "layers/linear.hpp"

#include <type_traits>

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// One kernel for any number of tokens: a tile of rows of W and rows of x, read side by side along
// their elements, each pair with sixteen lanes of its own. As many pairs as there are registers.
constexpr int tile_rows = 4;
#if defined(ALEATOR_ISA_v4) || defined(__aarch64__)
constexpr int tile_tokens = 6;
#else
constexpr int tile_tokens = 3;
#endif
// How many of a pair's registers are taken in one pass along the elements.
constexpr int parts_at_once(int pairs) {
  int parts = parts16;
  while (parts > 1 && pairs * parts > tile_rows * tile_tokens) parts /= 2;
  return parts;
}
// Elements of x's rows that one row of W after another meets: they stay in the second-level cache.
constexpr int64_t near_elements = 1 << 17;
// Elements of a tile's rows that stay in the first-level cache from pass to pass.
constexpr int64_t most_chunk = 512;
constexpr int64_t most_near_tokens = parts16 == 1 ? 256 : 16 * tile_tokens;
constexpr int64_t rows_ahead = 16;

// Elements [0, end) of a row as float32.
template <class Read>
static void widen(const uint8_t* p, int64_t end, float* y) {
  int64_t i = 0;
  for (; i + 16 <= end; i += 16) store16(y + i, load16_as<Read>(p, i));
  if (i < end) store16(y + i, load16_as<Read>(p, i, end - i), end - i);
}

// Keeps GCC from reading v from memory again in every instruction that takes it.
static inline vf loaded_once(vf v) {
#if defined(ALEATOR_ISA_v4)
  asm("" : "+v"(v));
#elif defined(ALEATOR_ISA_v3)
  asm("" : "+x"(v));
#endif
  return v;
}

// A tile's sums, to which the bias is added last.
template <int R, int T>
static inline void finish(const v16 (*total)[R], const float* bias, float* y, int64_t y_stride) {
  if constexpr (R == 4) {
    const v4 b = bias ? load_as<v4>(bias) : v4{};
    const auto put = [&](int t, v4 sums) {
      if (bias) sums += b;
      std::memcpy(y + t * y_stride, &sums, sizeof sums);
    };
    int t = 0;
    if constexpr (T >= 4) {
      const v16 sums = sums16({total[0][0], total[0][1], total[0][2], total[0][3],  //
                               total[1][0], total[1][1], total[1][2], total[1][3],  //
                               total[2][0], total[2][1], total[2][2], total[2][3],  //
                               total[3][0], total[3][1], total[3][2], total[3][3]});
      float out[16];
      store16(out, sums);
      for (; t < 4; t++) put(t, load_as<v4>(out + 4 * t));
    }
#pragma GCC unroll 4
    for (; t < T; t++) put(t, sums16(total[t][0], total[t][1], total[t][2], total[t][3]));
  } else {
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const float sum = sum16(total[t][r]);
        y[t * y_stride + r] = bias ? sum + bias[r] : sum;
      }
  }
}

// Adds elements [begin, end) of R rows of W times T rows of x to `total`. The first tile of these
// rows asks for the rows of a later one: by itself the processor looks no further than the page.
template <class Read, int R, int T>
static inline __attribute__((always_inline)) void add_tile(const uint8_t* w, int64_t row_bytes,
                                                           int64_t begin, int64_t end,
                                                           const float* x, int64_t x_stride,
                                                           bool first, v16 (*total)[R]) {
  constexpr int at_once = parts_at_once(R * T);
#pragma GCC unroll 4
  for (int part = 0; part < parts16; part += at_once) {
    vf sums[T][R][at_once];
    const auto each_sum = [&](auto&& f) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int t = 0; t < T; t++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
          for (int k = 0; k < at_once; k++) f(sums[t][r][k], total[t][r].part[part + k]);
    };
    const auto step = [&](auto&& ws, auto&& xs) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int k = 0; k < at_once; k++) {
        vf own[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) own[t] = loaded_once(xs(x + t * x_stride).part[part + k]);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          const vf row = loaded_once(ws(w + r * row_bytes).part[part + k]);
#pragma GCC unroll 8
          for (int t = 0; t < T; t++) sums[t][r][k] = fused(row, own[t], sums[t][r][k]);
        }
      }
    };
    each_sum([](vf& sum, const vf& from) { sum = from; });
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      if (first && part == 0 && Read::bytes(i) % 64 == 0)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
          __builtin_prefetch(w + (r + rows_ahead) * row_bytes + Read::bytes(i), 0, 2);
      step([&](const uint8_t* p) { return load16_as<Read>(p, i); },
           [&](const float* p) { return load16(p + i); });
    }
    if (i < end)
      step([&](const uint8_t* p) { return load16_as<Read>(p, i, end - i); },
           [&](const float* p) { return load16(p + i, end - i); });
    each_sum([](const vf& sum, vf& to) { to = sum; });
  }
}
template <int R, int T>
static inline void clear(v16 (*total)[R]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) total[t][r] = splat16(0);
}
// The whole of a tile.
template <class Read, int R, int T, bool first>
static void tile(const Weights& w, int64_t row, const float* x, int64_t x_stride, float* y,
                 int64_t y_stride) {
  v16 total[T][R];
  clear<R, T>(total);
  add_tile<Read, R, T>(w.data + row * w.row_bytes, w.row_bytes, 0, w.in, x, x_stride, first, total);
  finish<R, T>(total, w.bias ? w.bias + row : nullptr, y, y_stride);
}
// A chunk of it, with the sums kept in memory meanwhile.
template <class Read, int R, int T, bool first>
static void tile_chunk(const Weights& w, int64_t row, int64_t begin, int64_t end, const float* x,
                       int64_t x_stride, v16 (*total)[R], float* y, int64_t y_stride) {
  if (begin == 0) clear<R, T>(total);
  add_tile<Read, R, T>(w.data + row * w.row_bytes, w.row_bytes, begin, end, x, x_stride, first,
                       total);
  if (end == w.in) finish<R, T>(total, w.bias ? w.bias + row : nullptr, y, y_stride);
}

// tile_rows rows from `row` on times tokens [first, first + tokens), in tiles as equal as they can
// be.
template <class Read>
static void rows_of(const Weights& w, int64_t row, const Input& in, int64_t first, int64_t tokens,
                    float* y, int64_t y_stride) {
  const int64_t tiles = (tokens + tile_tokens - 1) / tile_tokens;
  const auto each_tile = [&](auto&& f) {
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t t = tokens * i / tiles, n = tokens * (i + 1) / tiles - t;
      const float* x = in.x + (first + t) * in.stride;
      float* to = y + (first + t) * y_stride + row;
      with_count<tile_tokens>(n, [&](auto count) {
        if constexpr (2 * count() > tile_tokens)  // of several tiles only the first may be smaller
          if (i > 0) return f(count, std::false_type(), t, x, to);
        f(count, std::true_type(), t, x, to);
      });
    }
  };
  const auto whole = [&](auto count, auto head, int64_t, const float* x, float* to) {
    // A pass for each half of the lanes would cost more than it saves where there are few tokens.
    constexpr int rows = parts16 > 1 && count() == 2 ? 2 : tile_rows;
    for (int r = 0; r < tile_rows; r += rows)
      tile<Read, rows, count(), head()>(w, row + r, x, in.stride, to + r, y_stride);
  };
  if constexpr (parts16 == 1) {
    each_tile(whole);
  } else {
    v16 total[most_near_tokens][tile_rows];
    const int64_t chunks = (w.in + most_chunk - 1) / most_chunk;
    const int64_t chunk = ((w.in + chunks - 1) / chunks + 15) / 16 * 16;
    for (int64_t begin = 0; begin < w.in; begin += chunk)
      each_tile([&](auto count, auto head, int64_t t, const float* x, float* to) {
        if constexpr (count() <= 2) {
          if (begin == 0) whole(count, head, t, x, to);
        } else {
          const int64_t end = w.in - begin < chunk ? w.in : begin + chunk;
          tile_chunk<Read, tile_rows, count(), head()>(w, row, begin, end, x, in.stride, total + t,
                                                       to, y_stride);
        }
      });
  }
}

template <class Read>
static void product(const Weights& w, int64_t begin, int64_t end, const Input& in, float* y,
                    int64_t y_stride) {
  const int64_t most = near_elements / w.in / tile_tokens * tile_tokens;
  const int64_t near = most < 2 * tile_tokens    ? 2 * tile_tokens
                       : most > most_near_tokens ? most_near_tokens
                                                 : most;
  for (int64_t first = 0; first < in.tokens; first += near) {
    const int64_t tokens = in.tokens - first < near ? in.tokens - first : near;
    int64_t row = begin;
    for (; row + tile_rows <= end; row += tile_rows)
      rows_of<Read>(w, row, in, first, tokens, y, y_stride);
    for (; row < end; row++)  // up to three are left
      for (int64_t t = first; t < first + tokens; t++)
        tile<Read, 1, 1, false>(w, row, in.x + t * in.stride, 0, y + t * y_stride + row, 0);
  }
}

void linear_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                 int64_t y_stride) {
  if (in_blocks(w.type))
    return block_rows(w, begin, end, block_shape(w.type).elements == 32 ? x.small : x.large, y,
                      y_stride);
  with_floats(w.type, [&](auto read) { product<decltype(read)>(w, begin, end, x, y, y_stride); });
}

void read_row(const Weights& w, int64_t row, float* y) {
  if (in_blocks(w.type)) return read_block_row(w, row, y);
  with_floats(w.type,
              [&](auto read) { widen<decltype(read)>(w.data + row * w.row_bytes, w.in, y); });
}

}  // namespace aleator::ALEATOR_ISA
