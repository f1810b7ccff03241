// Products of a panel with tokens on AVX-512 with VNNI.  Included by block_many.isa.cpp only.
#pragma once

#include "layers/block_panel.hpp"

namespace aleator::ALEATOR_ISA {

// acc + the products of `lanes` rows' four bytes with the same four of x.
static inline vi dot_lanes(vi acc, vi u, int32_t x) {
  return reinterpret<vi>(_mm512_dpbusd_epi32(reinterpret<__m512i>(acc), reinterpret<__m512i>(u),
                                             _mm512_set1_epi32(x)));
}
static inline vi pairs_lanes(vi acc, vi a, int32_t x) {
  return reinterpret<vi>(_mm512_dpwssd_epi32(reinterpret<__m512i>(acc), reinterpret<__m512i>(a),
                                             _mm512_set1_epi32(x)));
}
static inline vi splat_int(int32_t x) { return x - vi{}; }

// The sums of (u - zero) * x over group j of T tokens.
template <class F, int T>
static inline __attribute__((always_inline)) void group_dots(const uint8_t (*u)[lanes][4],
                                                             const int8_t* const (&q)[T],
                                                             const int16_t* const (&sums)[T],
                                                             int64_t j, int zero, vi (&dot)[T]) {
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) {
    const int32_t sum = F::group == 32 ? sum32(sums[i] + 2 * j) : sums[i][j];
    dot[i] = splat_int(F::zero == 0 ? 0 : -zero * sum);
  }
#pragma GCC unroll 8
  for (int e = 0; e < F::group / 4; e++) {
    const vi rows = load_as<vi>(u[e]);
#pragma GCC unroll 8
    for (int i = 0; i < T; i++)
      dot[i] = dot_lanes(dot[i], rows, load_as<int32_t>(q[i] + F::group * j + 4 * e));
  }
}

// Tokens [t, t + T): acc [T][lanes] += the panel's n elements, which begin at element k.  Not
// inlined: among what takes rows apart, registers would run short.
template <class F, int T>
[[gnu::noinline]] static void panel_tokens(const Panel& panel, int64_t n, const Rounded& x,
                                           int64_t t, int64_t k, float (*acc)[lanes],
                                           Ahead& ahead) {
  const int8_t* q[T];
  const int16_t* sums[T];
  const float* d[T];
  vf total[T];
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) {
    q[i] = x.q + (t + i) * x.in + k;
    sums[i] = x.sums + ((t + i) * x.in + k) / 16;
    d[i] = x.d + ((t + i) * x.in + k) / F::block;
    total[i] = load(acc[i]);
  }
  constexpr int group = F::group;
  const int zero = F::zero < 0 ? panel.zero : F::zero;
  for (int64_t b = 0; b < n / F::block; b++) {
    const vf dw = load(panel.d[b]);
    if constexpr (F::block == 256) {
      vi sum[T] = {};
      for (int64_t j = b * (256 / group); j < (b + 1) * (256 / group); j++) {
        ahead.step();
        vi dot[T];
        group_dots<F, T>(panel.u + j * group / 4, q, sums, j, zero, dot);
        const vi scale = load_as<vi>(panel.scale[j]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) sum[i] += scale * dot[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < T; i++)
        total[i] = fused(dw * splat(d[i][b]), __builtin_convertvector(sum[i], vf), total[i]);
      if constexpr (F::has_least) {
        const vf dmin = load(panel.m[b]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) {
          vi least = {};
          for (int64_t j = b * 8; j < b * 8 + 8; j++)
            least =
                pairs_lanes(least, load_as<vi>(panel.two[j]), load_as<int32_t>(sums[i] + 2 * j));
          total[i] = fused(-(dmin * splat(d[i][b])), __builtin_convertvector(least, vf), total[i]);
        }
      }
    } else {
      ahead.step();
      vi dot[T];
      group_dots<F, T>(panel.u + b * group / 4, q, sums, b, zero, dot);
#pragma GCC unroll 8
      for (int i = 0; i < T; i++) {
        const float dx = d[i][b];
        total[i] = fused(dw * splat(dx), __builtin_convertvector(dot[i], vf), total[i]);
        if constexpr (F::has_least)
          total[i] = fused(load(panel.m[b]), splat(dx * float(sum32(sums[i] + 2 * b))), total[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) store(acc[i], total[i]);
}

template <class F>
constexpr int tokens_at_once = 8;

template <class F>
static void all_tokens(const Panel& panel, int64_t n, const Rounded& x, int64_t first,
                       int64_t tokens, int64_t k, float (*acc)[panel_rows], Ahead& ahead) {
  int64_t t = 0;
  for (; t + 8 <= tokens; t += 8) panel_tokens<F, 8>(panel, n, x, first + t, k, acc + t, ahead);
  for (; t + 4 <= tokens; t += 4) panel_tokens<F, 4>(panel, n, x, first + t, k, acc + t, ahead);
  for (; t < tokens; t++) panel_tokens<F, 1>(panel, n, x, first + t, k, acc + t, ahead);
}

}  // namespace aleator::ALEATOR_ISA
