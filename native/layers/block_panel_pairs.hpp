// Products of a panel with tokens on AVX2: sums of products of bytes stay in 16 bits as long as
// they fit.  Included by block_many.isa.cpp only.
#pragma once

#include <type_traits>

#include "layers/block_panel.hpp"

namespace aleator::ALEATOR_ISA {

static inline __m256i four_bytes(const int8_t* q) { return _mm256_set1_epi32(load_as<int32_t>(q)); }
static inline __m256i two_sums(const int16_t* sums) {
  return _mm256_set1_epi32(load_as<int32_t>(sums));
}

// Sums of T tokens with sixteen rows, in 32 bits.
template <int T>
using Sums = __m256i[T][2];

// total += factor * the products of a group, of which vectors u hold four elements each.
template <class F, int T>
static inline __attribute__((always_inline)) void add_products(const uint8_t (*u)[panel_rows][4],
                                                               const int8_t* const (&q)[T],
                                                               int64_t e, const __m256i* factor,
                                                               Sums<T>& total) {
#pragma GCC unroll 8
  for (int first = 0; first < F::group / 4; first += F::at_once) {
    __m256i pairs[T][2];
#pragma GCC unroll 8
    for (int s = 0; s < F::at_once; s++) {
      const __m256i rows[2] = {load256(u[first + s]), load256(u[first + s] + 8)};
#pragma GCC unroll 4
      for (int i = 0; i < T; i++) {
        const __m256i x = four_bytes(q[i] + e + 4 * (first + s));
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          const __m256i two = two_products<F::wide>(rows[h], x);
          pairs[i][h] = s == 0 ? two : in_order(_mm256_add_epi16(pairs[i][h], two));
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < T; i++)
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++)
        total[i][h] =
            in_order(_mm256_add_epi32(total[i][h], _mm256_madd_epi16(pairs[i][h], factor[h])));
  }
}

// Tokens [t, t + T): acc [T][panel_rows] += the panel's n elements, which begin at element k.
template <class F, int T>
static void panel_tokens(const Panel& panel, int64_t n, const Rounded& x, int64_t t, int64_t k,
                         float (*acc)[panel_rows], Ahead& ahead) {
  constexpr int64_t block = F::block;
  constexpr int group = F::group;
  const int zero = F::zero < 0 ? panel.zero : F::zero;
  const int8_t* q[T];
  const int16_t* sums[T];
  const float* d[T];
#pragma GCC unroll 4
  for (int i = 0; i < T; i++) {
    q[i] = x.q + (t + i) * x.in + k;
    sums[i] = x.sums + ((t + i) * x.in + k) / 16;
    d[i] = x.d + ((t + i) * x.in + k) / block;
  }
  for (int64_t b = 0; b < n / block; b++) {
    Sums<T> sum = {};
    if constexpr (block == 256) {
      for (int64_t j = b * (256 / group); j < (b + 1) * (256 / group); j++) {
        ahead.step();
        const __m256i scale[2] = {load256(panel.scale[j]), load256(panel.scale[j] + 8)};
        add_products<F, T>(panel.u + j * group / 4, q, j * group, scale, sum);
      }
    } else {
      ahead.step();
      const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
      add_products<F, T>(panel.u + b * 8, q, b * 32, ones, sum);
    }
#pragma GCC unroll 4
    for (int i = 0; i < T; i++)
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        const float dx = d[i][b];
        vf total = load(acc[i] + 8 * h);
        const auto add = [&](vf factor, __m256i of) {
          total = fused(factor, _mm256_cvtepi32_ps(of), total);
        };
        const vf dw = load(panel.d[b] + 8 * h) * splat(dx);
        if constexpr (block == 256) {
          __m256i off = {};
          if constexpr (F::has_least || F::zero != 0)
            for (int64_t j = b * 8; j < b * 8 + 8; j++)
              off = _mm256_add_epi32(
                  off, _mm256_madd_epi16(load256(panel.two[j] + 8 * h), two_sums(sums[i] + 2 * j)));
          if constexpr (F::zero != 0)
            sum[i][h] =
                _mm256_sub_epi32(sum[i][h], _mm256_mullo_epi32(off, _mm256_set1_epi32(zero)));
          add(dw, sum[i][h]);
          if constexpr (F::has_least) add(-(load(panel.m[b] + 8 * h) * splat(dx)), off);
        } else {
          const int32_t all = sum32(sums[i] + 2 * b);
          add(dw, F::zero == 0 ? sum[i][h]
                               : _mm256_sub_epi32(sum[i][h], _mm256_set1_epi32(zero * all)));
          if constexpr (F::has_least)
            total = fused(load(panel.m[b] + 8 * h), splat(dx * float(all)), total);
        }
        store(acc[i] + 8 * h, total);
      }
  }
}

// The same as a function of its own: among what takes large blocks apart, registers run short.
template <class F, int T>
[[gnu::noinline]] static void panel_tokens_apart(const Panel& panel, int64_t n, const Rounded& x,
                                                 int64_t t, int64_t k, float (*acc)[panel_rows],
                                                 Ahead& ahead) {
  panel_tokens<F, T>(panel, n, x, t, k, acc, ahead);
}

// As many tokens at a time as registers hold.
template <class F>
constexpr int tokens_at_once = F::block == 32 && (F::wide || F::at_once == 8) ? 4 : 3;

template <class F>
static void all_tokens(const Panel& panel, int64_t n, const Rounded& x, int64_t first,
                       int64_t tokens, int64_t k, float (*acc)[panel_rows], Ahead& ahead) {
  int64_t t = 0;
  const auto tiles = [&](auto count) {
    for (; t + count() <= tokens; t += count())
      if constexpr (F::block == 256)
        panel_tokens_apart<F, count()>(panel, n, x, first + t, k, acc + t, ahead);
      else
        panel_tokens<F, count()>(panel, n, x, first + t, k, acc + t, ahead);
  };
  if constexpr (tokens_at_once<F> == 4) tiles(std::integral_constant<int, 4>());
  tiles(std::integral_constant<int, 3>());
  tiles(std::integral_constant<int, 2>());
  tiles(std::integral_constant<int, 1>());
}

}  // namespace aleator::ALEATOR_ISA
