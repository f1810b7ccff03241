// Products in WebAssembly's vectors.  Included by block_linear.isa.cpp only.
#pragma once

#include <wasm_simd128.h>

#include "layers/block_linear.hpp"
#include "layers/block_types.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// Four rows and a few tokens at a time.
constexpr int tile_rows = 4, tile_tokens = 4;

// Where elements go to 255 they are taken as signed, and have no zero to subtract.
template <class B>
constexpr int zero_of = B::wide ? 0 : B::zero;

// Sixteen bytes as int16.
struct Wide {
  v128_t low, high;
  explicit Wide(v128_t v)
      : low(wasm_i16x8_extend_low_i8x16(v)), high(wasm_i16x8_extend_high_i8x16(v)) {}
};
template <class B>
static inline Wide elements(const uint8_t* u) {
  const v128_t v = wasm_v128_load(u);
  return Wide(B::wide ? wasm_v128_xor(v, wasm_i8x16_const_splat(-128)) : v);
}
// Lanes whose sum is that of the products.
static inline vi dot(const Wide& a, const Wide& b) {
  return reinterpret<vi>(
      wasm_i32x4_add(wasm_i32x4_dot_i16x8(a.low, b.low), wasm_i32x4_dot_i16x8(a.high, b.high)));
}
static inline vi dot16_s16(const int16_t* a, const int16_t* b) {
  const auto half = [&](int i) {
    return wasm_i32x4_dot_i16x8(wasm_v128_load(a + i), wasm_v128_load(b + i));
  };
  return reinterpret<vi>(wasm_i32x4_add(half(0), half(8)));
}
// The lanes' sums of four rows.
static inline vf row_sums(const vi (&v)[tile_rows]) {
  const auto pairs = [](vi a, vi b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  };
  const vi ab = pairs(v[0], v[1]), cd = pairs(v[2], v[3]);
  return __builtin_convertvector(
      __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
      vf);
}
template <class F>
static inline vf each_row(F&& f) {
  return vf{f(0), f(1), f(2), f(3)};
}

template <class B, int T>
static void tile(const Weights& w, int64_t row, int64_t rows, const Rounded& x, int64_t t0,
                 float* y, int64_t y_stride) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  const uint8_t* p[tile_rows];
  for (int r = 0; r < tile_rows; r++)
    p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  vf total[T] = {};
  const int64_t n = x.in / block;
  for (int64_t b = 0; b < n; b++) {
    vi dots[T][tile_rows], least[T][tile_rows];
    for (int r = 0; r < tile_rows; r++) {
      if constexpr (large<B>) {
        Parts part;
        B::unpack(p[r] + b * bytes, part);
        for (int t = 0; t < T; t++) {
          const int8_t* q = x.q + (t0 + t) * x.in + b * 256;
          const int16_t* sums = x.sums + ((t0 + t) * n + b) * 16;
          vi acc = {};
          for (int j = 0; j < 16; j++)
            acc += dot(elements<B>(part.u + 16 * j), Wide(wasm_v128_load(q + 16 * j))) *
                   int32_t(part.scale[j]);
          if constexpr (zero_of<B> != 0) acc -= dot16_s16(part.scale, sums) * int32_t(zero_of<B>);
          dots[t][r] = acc;
          if constexpr (B::has_least) least[t][r] = dot16_s16(part.least, sums);
        }
      } else {
        const vu8x32 u = B::unpack(p[r] + b * bytes);
        const auto* from = reinterpret_cast<const uint8_t*>(&u);
        const Wide low = elements<B>(from), high = elements<B>(from + 16);
        for (int t = 0; t < T; t++) {
          const int8_t* q = x.q + (t0 + t) * x.in + b * 32;
          dots[t][r] = dot(low, Wide(wasm_v128_load(q))) + dot(high, Wide(wasm_v128_load(q + 16)));
        }
      }
    }
    const int64_t at = b * bytes;
    vf d, m = {};
    if constexpr (large<B>) {
      d = each_row([&](int r) { return large_scale_of<B>(p[r] + at); });
      if constexpr (B::has_least)
        m = each_row([&](int r) { return half_at(p[r] + at + B::dmin_at); });
    } else {
      d = each_row([&](int r) { return scale_of<B>(p[r] + at); });
      if constexpr (B::has_m) m = each_row([&](int r) { return half_at(p[r] + at + 2); });
    }
    for (int t = 0; t < T; t++) {
      const float dx = x.d[(t0 + t) * n + b];
      if constexpr (large<B>) {
        total[t] = fused(d * dx, row_sums(dots[t]), total[t]);
        if constexpr (B::has_least) total[t] = fused(-(m * dx), row_sums(least[t]), total[t]);
      } else {
        const int32_t sum = sum32(x.sums + (t0 + t) * 2 * n + 2 * b);
        if constexpr (zero_of<B> != 0)
          for (vi& each : dots[t]) each[0] -= zero_of<B> * sum;
        total[t] = fused(d * dx, row_sums(dots[t]), total[t]);
        if constexpr (B::has_m) total[t] = fused(m, splat(dx * float(sum)), total[t]);
      }
    }
  }
  for (int t = 0; t < T; t++)
    for (int r = 0; r < rows; r++)
      y[(t0 + t) * y_stride + row + r] = w.bias ? total[t][r] + w.bias[row + r] : total[t][r];
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  for (int64_t row = begin; row < end; row += tile_rows) {
    const int64_t rows = end - row < tile_rows ? end - row : tile_rows;
    int64_t t = 0;
    for (; t + tile_tokens <= x.tokens; t += tile_tokens)
      tile<B, tile_tokens>(w, row, rows, x, t, y, y_stride);
    for (; t < x.tokens; t++) tile<B, 1>(w, row, rows, x, t, y, y_stride);
  }
}

}  // namespace aleator::ALEATOR_ISA
