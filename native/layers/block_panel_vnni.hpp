// Products of a panel with tokens on AVX-512 with VNNI.  Included by block_many.hpp only.
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

// Tokens [t, t + T): acc [T][lanes] += the panel's n elements, which begin at element k.
template <class B, int T>
static void panel_tokens(const Panel<B>& panel, int64_t n, const Rounded& x, int64_t t, int64_t k,
                         float (*acc)[lanes]) {
  const int8_t* q[T];
  const int16_t* sums[T];
  const float* d[T];
  vf total[T];
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) {
    q[i] = x.q + (t + i) * x.in + k;
    sums[i] = x.sums + ((t + i) * x.in + k) / 16;
    d[i] = x.d + ((t + i) * x.in + k) / Panel<B>::block;
    total[i] = load(acc[i]);
  }
  for (int64_t b = 0; b < n / Panel<B>::block; b++) {
    const vf dw = load(panel.d[b]);
    if constexpr (large<B>) {
      vi sum[T] = {};
      for (int64_t j = b * 16; j < b * 16 + 16; j++) {
        vi dot[T];
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) dot[i] = splat_int(-zero_of<B> * sums[i][j]);
#pragma GCC unroll 4
        for (int64_t e = j * 4; e < j * 4 + 4; e++) {
          const vi u = load_as<vi>(panel.u[e]);
#pragma GCC unroll 8
          for (int i = 0; i < T; i++) dot[i] = dot_lanes(dot[i], u, load_as<int32_t>(q[i] + 4 * e));
        }
        const vi scale = load_as<vi>(panel.scale[j]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) sum[i] += scale * dot[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < T; i++)
        total[i] = fused(dw * splat(d[i][b]), __builtin_convertvector(sum[i], vf), total[i]);
      if constexpr (B::has_least) {
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
      vi dot[T];
#pragma GCC unroll 8
      for (int i = 0; i < T; i++) dot[i] = splat_int(-zero_of<B> * sum32(sums[i] + 2 * b));
#pragma GCC unroll 8
      for (int64_t e = b * 8; e < b * 8 + 8; e++) {
        const vi u = load_as<vi>(panel.u[e]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) dot[i] = dot_lanes(dot[i], u, load_as<int32_t>(q[i] + 4 * e));
      }
#pragma GCC unroll 8
      for (int i = 0; i < T; i++) {
        const float dx = d[i][b];
        total[i] = fused(dw * splat(dx), __builtin_convertvector(dot[i], vf), total[i]);
        if constexpr (B::has_m)
          total[i] = fused(load(panel.m[b]), splat(dx * float(sum32(sums[i] + 2 * b))), total[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) store(acc[i], total[i]);
}

template <class B>
static void all_tokens(const Panel<B>& panel, int64_t n, const Rounded& x, int64_t first,
                       int64_t tokens, int64_t k, float (*acc)[panel_rows]) {
  int64_t t = 0;
  for (; t + 8 <= tokens; t += 8) panel_tokens<B, 8>(panel, n, x, first + t, k, acc + t);
  for (; t + 4 <= tokens; t += 4) panel_tokens<B, 4>(panel, n, x, first + t, k, acc + t);
  for (; t < tokens; t++) panel_tokens<B, 1>(panel, n, x, first + t, k, acc + t);
}

}  // namespace aleator::ALEATOR_ISA
