// Rows of W in BF16 by AVX512-BF16, whose instruction takes the products of a pair one after the
// other, each rounded with its addend at once, and counts subnormal numbers as 0.  Where weights
// are 0 or at least 2^-60 nothing is subnormal: rows are looked through meanwhile. Included by
// linear.isa.cpp only.
#pragma once

#include "layers/linear.hpp"
#include "layers/tile_sums.hpp"

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

// R rows times T tokens of x, of `stride`; `ask(r, bytes)` asks for memory.
template <int R, int T, bool looks, class Ask>
[[ALEATOR_BF16, gnu::always_inline]] static inline void dots_of_rows(
    const Weights& w, const uint8_t* rows, const uint16_t* x, int64_t stride, Ask&& ask,
    v16 (*total)[tile_rows], __m512i& least) {
  const int64_t whole = w.in / 32 * 32;
  __m512 sums[T][R] = {};
  __m512i weights[R];
  for (int64_t i = 0; i < whole; i += 32) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      if (looks) ask(r, 2 * i);
      weights[r] = load_as<__m512i>(rows + r * w.row_bytes + 2 * i);
    }
    add_dots<R, T, looks>(weights, x + i, stride, sums, least);
  }
  if (whole < w.in) {
    const auto there = __mmask32((uint64_t(1) << (w.in - whole)) - 1);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
      weights[r] = _mm512_maskz_loadu_epi16(there, rows + r * w.row_bytes + 2 * whole);
    add_dots<R, T, looks>(weights, x + whole, stride, sums, least);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; t++)
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) total[t][r].part[0] = sums[t][r];
}

// Rows in fours times T tokens of x, of `stride`; the first row that is left, or of the first four
// with a weight too small, whose results are not written.
template <int T, bool looks>
[[ALEATOR_BF16, gnu::noinline]] static int64_t dots(const Weights& w, int64_t row, int64_t end,
                                                    const Asking& asking, const uint16_t* x,
                                                    int64_t stride, float* y, int64_t y_stride) {
  constexpr uint16_t enough = 2 * 0x2180 - 1;  // 2^-60
  const bool alone =
      looks && from_memory(w) && one_after_another(T, 4, T * w.in * int64_t(sizeof *x));
  for (; row + tile_rows <= end; row += tile_rows) {
    const uint8_t* const rows = w.data + row * w.row_bytes;
    __m512i least = _mm512_set1_epi16(-1);
    v16 total[T][tile_rows];
    if (alone) {
      for (int r = 0; r < tile_rows; r++) {
        const uint8_t* const own = rows + r * w.row_bytes;
        v16 one[T][tile_rows];
        dots_of_rows<1, T, looks>(
            w, own, x, stride, [&](int, int64_t i) { __builtin_prefetch(own + onward + i, 0, 3); },
            one, least);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) total[t][r] = one[t][0];
      }
    } else {
      const Asked asked = asking(row);
      dots_of_rows<tile_rows, T, looks>(
          w, rows, x, stride,
          [&](int r, int64_t i) {
            __builtin_prefetch(asked.first + r * asked.apart + asked.along * i, 0, 2);
          },
          total, least);
    }
    if (looks && _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(enough))) break;
    finish<tile_rows, T>(total, w.bias ? w.bias + row : nullptr, y + row, y_stride);
  }
  return row;
}

}  // namespace aleator::ALEATOR_ISA
#endif
