// Rows of W in BF16 by AVX512-BF16, whose instruction takes the products of a pair one after the
// other, each rounded with its addend at once, and counts subnormal numbers as 0.  Where weights
// are 0 or at least 2^-60 nothing is subnormal: rows are looked through meanwhile. Included by
// linear.isa.cpp only.
#pragma once

#include <algorithm>

#include "layers/float_tiles.hpp"
#include "layers/linear.hpp"

#if defined(ALEATOR_ISA_v4)
namespace aleator::ALEATOR_ISA {

#define ALEATOR_BF16 gnu::target("avx512bf16")

// 32 elements of R rows, and the least of their magnitudes: doubled, less 1, so that 0 is large.
template <int R, int T, bool looks>
[[ALEATOR_BF16, gnu::always_inline]] static inline void add_dots(const __m512i (&w)[R],
                                                                 const uint16_t* x,
                                                                 int64_t x_stride,
                                                                 __m512 (&sums)[T][R],
                                                                 __m512i& least) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    const auto own = reinterpret<__m512bh>(load_as<__m512i>(x + t * x_stride));
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
      sums[t][r] = _mm512_dpbf16_ps(sums[t][r], reinterpret<__m512bh>(w[r]), own);
  }
  if constexpr (looks) {
    const __m512i minus_one = _mm512_set1_epi16(-1);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
      least = _mm512_min_epu16(least, _mm512_add_epi16(_mm512_add_epi16(w[r], w[r]), minus_one));
  }
}

// Adds n elements of R rows times T tokens of x, of `stride`, to `from`, or to zeros; `ask(bytes)`
// asks for memory.
template <int R, int T, bool looks, class Ask>
[[ALEATOR_BF16, gnu::always_inline]] static inline void dots_of_rows(
    const uint8_t* rows, int64_t row_bytes, int64_t n, const uint16_t* x, int64_t stride, Ask&& ask,
    const v16 (*from)[R], v16 (*total)[R], __m512i& least) {
  const int64_t whole = n / 32 * 32;
  __m512 sums[T][R] = {};
  const auto each_sum = [&](auto&& f) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) f(t, r);
  };
  if (from) each_sum([&](int t, int r) { sums[t][r] = from[t][r].part[0]; });
  __m512i weights[R];
  for (int64_t i = 0; i < whole; i += 32) {
    ask(2 * i);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) weights[r] = load_as<__m512i>(rows + r * row_bytes + 2 * i);
    add_dots<R, T, looks>(weights, x + i, stride, sums, least);
  }
  if (whole < n) {
    const auto there = __mmask32((uint64_t(1) << (n - whole)) - 1);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
      weights[r] = _mm512_maskz_loadu_epi16(there, rows + r * row_bytes + 2 * whole);
    add_dots<R, T, looks>(weights, x + whole, stride, sums, least);
  }
  each_sum([&](int t, int r) { total[t][r].part[0] = sums[t][r]; });
}

// Whether a weight was too small.
[[ALEATOR_BF16]] static inline bool any_small(__m512i least) {
  constexpr uint16_t enough = 2 * 0x2180 - 1;  // 2^-60
  return _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(enough));
}

// Rows in fours times T tokens of x, of `stride`; the first row that is left, or of the first four
// with a weight too small, whose results are not written.
template <int T, bool looks>
[[ALEATOR_BF16, gnu::noinline]] static int64_t dots(const Weights& w, int64_t row, int64_t end,
                                                    const Asking& asking, const uint16_t* x,
                                                    int64_t stride, float* y, int64_t y_stride) {
  const bool alone =
      looks && from_memory(w) && one_after_another(T, 4, T * w.in * int64_t(sizeof *x));
  for (; row + tile_rows <= end; row += tile_rows) {
    const uint8_t* const rows = w.data + row * w.row_bytes;
    __m512i least = _mm512_set1_epi16(-1);
    v16 total[T][tile_rows];
    if (alone) {
      for (int r = 0; r < tile_rows; r++) {
        const uint8_t* const own = rows + r * w.row_bytes;
        v16 one[T][1];
        dots_of_rows<1, T, looks>(
            own, 0, w.in, x, stride, [&](int64_t i) { ask_onward(own + onward + i); }, nullptr, one,
            least);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) total[t][r] = one[t][0];
      }
    } else {
      const Asked asked = asking(row);
      dots_of_rows<tile_rows, T, looks>(
          rows, w.row_bytes, w.in, x, stride,
          [&](int64_t i) {
#pragma GCC unroll 4
            for (int r = 0; r < tile_rows && looks; r++)
              ask_for_later(asked.first + r * asked.apart + asked.along * i);
          },
          nullptr, total, least);
    }
    if (looks && any_small(least)) break;
    finish<tile_rows, T>(total, w.bias ? w.bias + row : nullptr, y + row, y_stride);
  }
  return row;
}

// Rows of each quarter times one token; the first row that is left, whose quarters have a weight
// too small.
[[ALEATOR_BF16, gnu::noinline]] static int64_t quarters_by_dots(const Weights& w, int64_t row,
                                                                int64_t end, const uint16_t* x,
                                                                float* y) {
  const int64_t apart = w.out / tile_rows * w.row_bytes;
  for (; row < end; row++) {
    __m512i least = _mm512_set1_epi16(-1);
    v16 total[1][tile_rows];
    dots_of_rows<tile_rows, 1, true>(
        w.data + row * w.row_bytes, apart, w.in, x, 0, [](int64_t) {}, nullptr, total, least);
    if (any_small(least)) break;
    finish_parts(w, row, total[0], y);
  }
  return row;
}

// A chunk of a tile, whose sums wait for the next one; where the rows end, their results.
template <int T, bool looks>
[[ALEATOR_BF16, gnu::noinline]] static void dots_of_chunk(const Chunk& of, const uint8_t* next,
                                                          const uint8_t* last, const uint16_t* x,
                                                          int64_t stride, v16 (*waiting)[tile_rows],
                                                          __m512i& least, const float* bias,
                                                          float* y, int64_t y_stride) {
  v16 total[T][tile_rows];
  dots_of_rows<tile_rows, T, looks>(
      of.rows, of.row_bytes, of.n, x, stride,
      [&](int64_t) {
        if (next >= last) return;
        ask_for_later(next);
        ask_for_later(next + 64);
        next += 128;
      },
      of.begins ? nullptr : waiting, total, least);
  if (of.ends) return finish<tile_rows, T>(total, bias, y, y_stride);
#pragma GCC unroll 8
  for (int t = 0; t < T; t++)
#pragma GCC unroll 4
    for (int r = 0; r < tile_rows; r++) waiting[t][r] = total[t][r];
}

// Of long rows eight meet a chunk of all tokens' rows at a time, as four whole ones leave no room
// in the first-level cache. Not so where rows lie a multiple of 4 KiB apart: chunks of these would
// push each other out. Returns the first row that is left: that of the first eight with a weight
// too small, if there are any.
constexpr int64_t short_row = 2048, columns_of_chunk = 1024;
constexpr int64_t rows_of_chunk = 8, tokens_of_chunk = 22 * tile_tokens;
static bool in_chunks(const Weights& w, int64_t tokens) {
  return tokens > tile_tokens && w.in > short_row && w.row_bytes % 4096;
}
static int64_t chunks_by_dots(const Weights& w, int64_t begin, int64_t end, const Paired& x,
                              int64_t all_tokens, float* y, int64_t y_stride) {
  v16 waiting[rows_of_chunk / tile_rows * tokens_of_chunk][tile_rows];
  const int64_t chunks = (w.in + columns_of_chunk - 1) / columns_of_chunk;
  const int64_t chunk = ((w.in + chunks - 1) / chunks + 31) / 32 * 32;
  const int64_t groups = (all_tokens + tokens_of_chunk - 1) / tokens_of_chunk;
  const int64_t until = end - (end - begin) % tile_rows;
  int64_t row = begin;
  for (int64_t group = 0; group < groups; group++) {
    const int64_t first = all_tokens * group / groups;
    const int64_t tokens = all_tokens * (group + 1) / groups - first;
    __m512i least = _mm512_set1_epi16(-1);
    int64_t rows;
    for (row = begin; row < until; row += rows) {
      rows = std::min(rows_of_chunk, until - row);
      for (int64_t at = 0; at < w.in; at += chunk) {
        const int64_t n = std::min(chunk, w.in - at);
        each_tile(tokens, [&](auto count, int64_t t, auto head) {
          for (int64_t r = row; r < row + rows; r += tile_rows) {
            const uint8_t* const from = w.data + r * w.row_bytes;
            const uint8_t* const next = from + 16 * w.row_bytes + tile_rows * 2 * at;
            dots_of_chunk<count(), head()>(
                Chunk{from + 2 * at, w.row_bytes, n, at == 0, at + n == w.in},
                next + tile_rows * 2 * n * t / tokens,
                next + tile_rows * 2 * n * (t + count()) / tokens,
                x.halves + (first + t) * x.stride + at, x.stride,
                waiting + (r - row) / tile_rows * tokens + t, least, w.bias ? w.bias + r : nullptr,
                y + (first + t) * y_stride + r, y_stride);
          }
        });
      }
      if (any_small(least)) break;
    }
  }
  return row;
}

}  // namespace aleator::ALEATOR_ISA
#endif
