// Products on aarch64 with sdot.  Included by block_linear.isa.cpp only.
#pragma once

#include <arm_neon.h>

#include "layers/block_linear.hpp"
#include "layers/block_types.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// Four rows and a few tokens at a time: sdot adds the products of sixteen bytes to four lanes.
constexpr int arm_rows = 4, arm_tokens = 4;

static inline int8x16_t load_s8(const void* p) { return load_as<int8x16_t>(p); }
// Where elements go to 255 they are taken as signed, and have no zero to subtract.
template <class B>
constexpr int zero_of = B::wide ? 0 : B::zero;
template <class B>
static inline int8x16_t signed_bytes(const uint8_t* u) {
  const uint8x16_t v = load_as<uint8x16_t>(u);
  return vreinterpretq_s8_u8(B::wide ? veorq_u8(v, vdupq_n_u8(128)) : v);
}
static inline int32x4_t row_sums(const int32x4_t (&v)[arm_rows]) {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}
template <class F>
static inline float32x4_t each_row(F&& f) {
  const float all[] = {f(0), f(1), f(2), f(3)};
  return vld1q_f32(all);
}
static inline float32x4_t row_halves(const uint8_t* const (&p)[arm_rows], int64_t at) {
  return each_row([&](int r) { return half_at(p[r] + at); });
}
template <class B>
static inline float32x4_t row_scales(const uint8_t* const (&p)[arm_rows], int64_t at) {
  return each_row([&](int r) {
    if constexpr (large<B>) return large_scale_of<B>(p[r] + at);
    return scale_of<B>(p[r] + at);
  });
}
// Lanes whose sum is that of sixteen products of int16.
static inline int32x4_t dot16_s16(const int16_t* a, const int16_t* b) {
  int32x4_t acc = vdupq_n_s32(0);
  for (int i = 0; i < 16; i += 4) acc = vmlal_s16(acc, vld1_s16(a + i), vld1_s16(b + i));
  return acc;
}

template <class B, int T>
static void arm_tile(const Weights& w, int64_t row, int64_t rows, const Rounded& x, int64_t t0,
                     float* y, int64_t y_stride) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  const uint8_t* p[arm_rows];
  for (int r = 0; r < arm_rows; r++)
    p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  float32x4_t total[T];
  for (int t = 0; t < T; t++) total[t] = vdupq_n_f32(0);
  const int64_t n = x.in / block;
  for (int64_t b = 0; b < n; b++) {
    int32x4_t dots[T][arm_rows], least[T][arm_rows];
    for (int r = 0; r < arm_rows; r++) {
      if constexpr (large<B>) {
        Parts part;
        B::unpack(p[r] + b * bytes, part);
        for (int t = 0; t < T; t++) {
          const int8_t* q = x.q + (t0 + t) * x.in + b * 256;
          const int16_t* sums = x.sums + ((t0 + t) * n + b) * 16;
          int32x4_t acc = vdupq_n_s32(0);
          for (int j = 0; j < 16; j++) {
            const int32x4_t dot =
                vdotq_s32(vdupq_n_s32(0), signed_bytes<B>(part.u + 16 * j), load_s8(q + 16 * j));
            acc = vmlaq_n_s32(acc, dot, part.scale[j]);
          }
          if constexpr (zero_of<B> != 0)
            acc = vmlsq_n_s32(acc, dot16_s16(part.scale, sums), zero_of<B>);
          dots[t][r] = acc;
          if constexpr (B::has_least) least[t][r] = dot16_s16(part.least, sums);
        }
      } else {
        const vu8x32 u = B::unpack(p[r] + b * bytes);
        const auto* from = reinterpret_cast<const uint8_t*>(&u);
        const int8x16_t low = signed_bytes<B>(from), high = signed_bytes<B>(from + 16);
        for (int t = 0; t < T; t++) {
          const int8_t* q = x.q + (t0 + t) * x.in + b * 32;
          dots[t][r] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), low, load_s8(q)), high, load_s8(q + 16));
        }
      }
    }
    for (int t = 0; t < T; t++) {
      const float dx = x.d[(t0 + t) * n + b];
      int32x4_t dot = row_sums(dots[t]);
      if constexpr (large<B>) {
        total[t] =
            vfmaq_f32(total[t], vmulq_n_f32(row_scales<B>(p, b * bytes), dx), vcvtq_f32_s32(dot));
        if constexpr (B::has_least)
          total[t] = vfmsq_f32(total[t], vmulq_n_f32(row_halves(p, b * bytes + B::dmin_at), dx),
                               vcvtq_f32_s32(row_sums(least[t])));
      } else {
        const int32_t sum = sum32(x.sums + (t0 + t) * 2 * n + 2 * b);
        dot = vsubq_s32(dot, vdupq_n_s32(zero_of<B> * sum));
        total[t] =
            vfmaq_f32(total[t], vmulq_n_f32(row_scales<B>(p, b * bytes), dx), vcvtq_f32_s32(dot));
        if constexpr (B::has_m)
          total[t] = vfmaq_n_f32(total[t], row_halves(p, b * bytes + 2), dx * float(sum));
      }
    }
  }
  for (int t = 0; t < T; t++) {
    float out[arm_rows];
    vst1q_f32(out, total[t]);
    for (int r = 0; r < rows; r++)
      y[(t0 + t) * y_stride + row + r] = w.bias ? out[r] + w.bias[row + r] : out[r];
  }
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  for (int64_t row = begin; row < end; row += arm_rows) {
    const int64_t rows = end - row < arm_rows ? end - row : arm_rows;
    int64_t t = 0;
    for (; t + arm_tokens <= x.tokens; t += arm_tokens)
      arm_tile<B, arm_tokens>(w, row, rows, x, t, y, y_stride);
    for (; t < x.tokens; t++) arm_tile<B, 1>(w, row, rows, x, t, y, y_stride);
  }
}

}  // namespace aleator::ALEATOR_ISA
