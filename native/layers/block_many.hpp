// Products with many tokens: as many rows of W as there are lanes are taken apart once, for all of
// them.  AVX2 and AVX-512; included by block_linear.isa.cpp only.
#pragma once

#include <type_traits>
#include <utility>

#include "layers/block_dots.hpp"
#include "layers/block_linear.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int64_t chunk =
    1024;  // elements of these rows at a time: with their scales they stay near
constexpr int64_t near_tokens = 256;
constexpr int panel_tile = lanes == 16 ? 8 : 4;

// Lanes of a whose bit `half` is set change places with those of b whose bit is not.
template <int half, int... i>
static inline void exchange(vi& a, vi& b, std::integer_sequence<int, i...>) {
  const vi low = __builtin_shufflevector(a, b, (i & half ? lanes + i - half : i)...);
  b = __builtin_shufflevector(a, b, (i & half ? lanes + i : i + half)...);
  a = low;
}
template <int half = 1>
static inline void transpose(vi (&v)[lanes]) {
  if constexpr (half < lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; i++)
      if (!(i & half)) exchange<half>(v[i], v[i + half], std::make_integer_sequence<int, lanes>());
    transpose<2 * half>(v);
  }
}

template <class B>
struct Panel {
  static constexpr int64_t block = block_shape(B::type).elements;
  alignas(64) uint8_t u[chunk / 4][lanes][4];
  alignas(64) float d[chunk / block][lanes], m[chunk / block][lanes];
  alignas(64) int32_t scale[chunk / 16][lanes];     // of large blocks
  alignas(64) int16_t least[chunk / 32][lanes][2];  // the same, of two neighbours

  // Elements [k, k + n) of rows [row, row + rows); the other lanes are as the last row.
  void fill(const Weights& w, int64_t row, int64_t rows, int64_t k, int64_t n) {
    const uint8_t* p[lanes];
    for (int r = 0; r < lanes; r++)
      p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes + k / block * bytes;
    if constexpr (large<B>)
      for (int64_t b = 0; b < n / block; b++) fill_large(p, b);
    else
      for (int64_t b = 0; b < n / block; b += together)
        fill_small(p, b, n / block - b < together ? n / block - b : together);
  }

 private:
  static constexpr int64_t bytes = block_shape(B::type).bytes;
  static constexpr int64_t together = lanes / 8;  // small blocks that fill a vector
  void fill_small(const uint8_t* const (&p)[lanes], int64_t b, int64_t blocks) {
    vi v[lanes];
#pragma GCC unroll 16
    for (int r = 0; r < lanes; r++) {
      vu8x32 part[together] = {};
      const auto take = [&](int64_t i) {
        const uint8_t* at = p[r] + (b + i) * bytes;
        part[i] = B::unpack(at);
        d[b + i][r] = scale_of<B>(at);
        if constexpr (B::has_m) m[b + i][r] = half_at(at + 2);
      };
      if (blocks == together) {  // numbers of blocks known here keep the parts in registers
#pragma GCC unroll 2
        for (int64_t i = 0; i < together; i++) take(i);
      } else {
        take(0);
      }
      v[r] = joined(part);
    }
    transpose(v);
    for (int64_t i = 0; i < blocks * 8; i++) std::memcpy(u[b * 8 + i], &v[i], sizeof v[i]);
  }
  void fill_large(const uint8_t* const (&p)[lanes], int64_t b) {
    Parts parts[lanes];
    for (int r = 0; r < lanes; r++) {
      B::unpack(p[r] + b * bytes, parts[r]);
      d[b][r] = large_scale_of<B>(p[r] + b * bytes);
      if constexpr (B::has_least) m[b][r] = half_at(p[r] + b * bytes + B::dmin_at);
    }
    vi v[lanes];
    for (int64_t at = 0; at < 64; at += lanes) {
      for (int r = 0; r < lanes; r++) v[r] = load_as<vi>(parts[r].u + 4 * at);
      transpose(v);
      for (int i = 0; i < lanes; i++) std::memcpy(u[b * 64 + at + i], &v[i], sizeof v[i]);
    }
    // Numbers of 16 bits, two of which a lane takes.
    for (int r = 0; r < lanes; r++) v[r] = two_by_two(parts[r].scale);
    transpose(v);
    for (int i = 0; i < 8; i++) {
      const vi low = v[i] << 16 >> 16, high = v[i] >> 16;
      std::memcpy(scale[b * 16 + 2 * i], &low, sizeof low);
      std::memcpy(scale[b * 16 + 2 * i + 1], &high, sizeof high);
    }
    if constexpr (B::has_least) {
      for (int r = 0; r < lanes; r++) v[r] = two_by_two(parts[r].least);
      transpose(v);
      for (int i = 0; i < 8; i++) std::memcpy(least[b * 8 + i], &v[i], sizeof v[i]);
    }
  }
  static vi joined(const vu8x32 (&part)[together]) {
#if defined(ALEATOR_ISA_v4)
    const __m512i first = _mm512_castsi256_si512(reinterpret<__m256i>(part[0]));
    return reinterpret<vi>(_mm512_inserti64x4(first, reinterpret<__m256i>(part[1]), 1));
#else
    return reinterpret<vi>(part[0]);
#endif
  }
  static vi two_by_two(const int16_t* p) {
    vi v = {};
    std::memcpy(&v, p, 32);
    return v;
  }
};

// acc + the products of `lanes` rows' four bytes with the same four of x.
template <class B>
static inline vi dot_lanes(vi acc, vi u, int32_t x) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vi>(_mm512_dpbusd_epi32(reinterpret<__m512i>(acc), reinterpret<__m512i>(u),
                                             _mm512_set1_epi32(x)));
#else
  return reinterpret<vi>(
      dot8<B>(reinterpret<__m256i>(acc), reinterpret<__m256i>(u), _mm256_set1_epi32(x)));
#endif
}
static inline vi pairs_lanes(vi acc, vi a, int32_t x) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vi>(_mm512_dpwssd_epi32(reinterpret<__m512i>(acc), reinterpret<__m512i>(a),
                                             _mm512_set1_epi32(x)));
#else
  return acc + reinterpret<vi>(_mm256_madd_epi16(reinterpret<__m256i>(a), _mm256_set1_epi32(x)));
#endif
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
          for (int i = 0; i < T; i++)
            dot[i] = dot_lanes<B>(dot[i], u, load_as<int32_t>(q[i] + 4 * e));
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
                pairs_lanes(least, load_as<vi>(panel.least[j]), load_as<int32_t>(sums[i] + 2 * j));
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
        for (int i = 0; i < T; i++)
          dot[i] = dot_lanes<B>(dot[i], u, load_as<int32_t>(q[i] + 4 * e));
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
static void many(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                 int64_t y_stride) {
  Panel<B> panel;
  alignas(64) float acc[near_tokens][lanes];
  for (int64_t first = 0; first < x.tokens; first += near_tokens) {
    const int64_t tokens = x.tokens - first < near_tokens ? x.tokens - first : near_tokens;
    for (int64_t row = begin; row < end; row += lanes) {
      const int64_t rows = end - row < lanes ? end - row : lanes;
      std::memset(acc, 0, size_t(tokens) * sizeof acc[0]);
      for (int64_t k = 0; k < x.in; k += chunk) {
        const int64_t n = x.in - k < chunk ? x.in - k : chunk;
        panel.fill(w, row, rows, k, n);
        int64_t t = 0;
        for (; t + panel_tile <= tokens; t += panel_tile)
          panel_tokens<B, panel_tile>(panel, n, x, first + t, k, acc + t);
        for (; t + panel_tile / 2 <= tokens; t += panel_tile / 2)
          panel_tokens<B, panel_tile / 2>(panel, n, x, first + t, k, acc + t);
        for (; t < tokens; t++) panel_tokens<B, 1>(panel, n, x, first + t, k, acc + t);
      }
      for (int64_t t = 0; t < tokens; t++)
        for (int64_t r = 0; r < rows; r++)
          y[(first + t) * y_stride + row + r] = w.bias ? acc[t][r] + w.bias[row + r] : acc[t][r];
    }
  }
}

}  // namespace aleator::ALEATOR_ISA
