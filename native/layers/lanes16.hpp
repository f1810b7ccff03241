// The decoder's sixteen virtual lanes: every sum of products of its contract (docs/numerics.md,
// part 2) is taken in them, whatever the width of the registers is. One register of 16 lanes, two
// of 8, or four of 4. Included by *.isa.cpp files only.
#pragma once

#include <utility>

#include "layers/lanes.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <emmintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

namespace aleator::ALEATOR_ISA {

// --- a * b + c, rounded once ---

#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3) || defined(__aarch64__)
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#elif defined(__wasm_relaxed_simd__)
static inline float fused(float a, float b, float c) {
  return __builtin_wasm_fma_f32x4(splat(a), splat(b), splat(c))[0];
}
#elif defined(__x86_64__) || defined(__wasm_simd128__)
// Without an instruction for it: the product of two float32 is exact in float64. Their sum with c
// is rounded to odd there (towards zero, and the last bit set where anything was lost), so that
// rounding it once more, to float32, gives what one rounding gives.
typedef double v2d __attribute__((vector_size(16)));
typedef int64_t v2l __attribute__((vector_size(16)));
static inline v2d sum_to_odd(v2d product, v2d c) {
  const v2d total = product + c, rest = total - product;
  const v2d lost =
      (product - (total - rest)) + (c - rest);  // exactly; NaN where total is not finite
  const v2l bits = reinterpret<v2l>(total), lost_bits = reinterpret<v2l>(lost);
  const v2l inexact = reinterpret<v2d>(lost_bits & INT64_MAX) > 0.0;
  typedef uint64_t v2u __attribute__((vector_size(16)));
  const v2l beyond = reinterpret<v2l>(reinterpret<v2u>(bits ^ lost_bits) >> 63);
  return reinterpret<v2d>((bits - (beyond & inexact)) | (inexact & 1));
}
static inline v2d fused_to_odd(v2d a, v2d b, v2d c) { return sum_to_odd(a * b, c); }
static inline float fused(float a, float b, float c) {
  return float(fused_to_odd(v2d{a, 0}, v2d{b, 0}, v2d{c, 0})[0]);
}
#else
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif

#if defined(__x86_64__) && !defined(ALEATOR_ISA_v4) && !defined(ALEATOR_ISA_v3)
// Thirty instructions: a function, and not wherever a loop is unrolled.
[[maybe_unused, gnu::noinline]] static vf fused(vf a, vf b, vf c) {
  const auto low = [](vf v) { return reinterpret<v2d>(_mm_cvtps_pd(v)); };
  const auto high = [](vf v) { return reinterpret<v2d>(_mm_cvtps_pd(_mm_movehl_ps(v, v))); };
  return _mm_movelh_ps(_mm_cvtpd_ps(fused_to_odd(low(a), low(b), low(c))),
                       _mm_cvtpd_ps(fused_to_odd(high(a), high(b), high(c))));
}
#elif defined(__wasm_relaxed_simd__)
// Fused on machines that run this module.
static inline vf fused(vf a, vf b, vf c) { return __builtin_wasm_fma_f32x4(a, b, c); }
#elif defined(__wasm_simd128__)
static inline v2d low_half(vf v) {
  return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1), v2d);
}
static inline v2d high_half(vf v) {
  return __builtin_convertvector(__builtin_shufflevector(v, v, 2, 3), v2d);
}
static inline vf narrow(v2d low, v2d high) {
  const auto half = [](v2d v) {
    return reinterpret<vf>(wasm_f32x4_demote_f64x2_zero(reinterpret<v128_t>(v)));
  };
  return __builtin_shufflevector(half(low), half(high), 0, 1, 4, 5);
}
[[maybe_unused, gnu::noinline]] static vf fused_by_odd(vf a, vf b, vf c) {
  return narrow(fused_to_odd(low_half(a), low_half(b), low_half(c)),
                fused_to_odd(high_half(a), high_half(b), high_half(c)));
}
// A sum that float64 has rounded once gives another float32 than the exact one only where it lies
// half-way between two of these: then, and where results are so small that they have fewer bits,
// it is rounded to odd.
static inline vf fused(vf a, vf b, vf c) {
  const v2d low = low_half(a) * low_half(b) + low_half(c);
  const v2d high = high_half(a) * high_half(b) + high_half(c);
  const auto half_way = [](v2d v) { return (reinterpret<v2l>(v) & 0x1fffffff) == 0x10000000; };
  const vf result = narrow(low, high);
  const vi small = (reinterpret<vi>(result) & INT32_MAX) < 0x01000000;
  const v2l seldom = half_way(low) | half_way(high) | reinterpret<v2l>(small);
  if (__builtin_expect(wasm_v128_any_true(reinterpret<v128_t>(seldom)), false))
    return fused_by_odd(a, b, c);
  return result;
}
#else
static inline vf fused(vf a, vf b, vf c) {
#if defined(ALEATOR_ISA_v4)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(ALEATOR_ISA_v3)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return reinterpret<vf>(vfmaq_f32(reinterpret<float32x4_t>(c), reinterpret<float32x4_t>(a),
                                   reinterpret<float32x4_t>(b)));
#else
  vf v;
  for (int i = 0; i < lanes; i++) v[i] = fused(a[i], b[i], c[i]);
  return v;
#endif
}
#endif

// Where that is a function, elements that are multiplied are widened to float32 first, which costs
// little beside it: one kernel does for every type.
#if defined(__x86_64__)
template <class Read>
constexpr bool widened_first = lanes == 4 && Read::type != Stored::f32;
#else
template <class Read>
constexpr bool widened_first = false;
#endif

// The higher of two; where one is no number, b.
[[maybe_unused]] static inline vf higher(vf a, vf b) { return a > b ? a : b; }

// --- sixteen lanes ---

constexpr int parts16 = 16 / lanes;

struct v16 {
  vf part[parts16];  // lane i is element i % lanes of part i / lanes
};

template <class F>
static inline v16 each_part(F&& f) {
  v16 v;
#pragma GCC unroll 4
  for (int k = 0; k < parts16; k++) v.part[k] = f(k);
  return v;
}
static inline v16 splat16(float x) {
  return each_part([&](int) { return splat(x); });
}
static inline v16 load16(const float* p) {
  return each_part([&](int k) { return load(p + k * lanes); });
}
// The first n lanes from p on, n < 16; +0 in the others.
static inline v16 load16(const float* p, int64_t n) {
#if defined(ALEATOR_ISA_v4)
  return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)};
#else
  float some[16] = {};
  for (int64_t i = 0; i < n; i++) some[i] = p[i];
  return load16(some);
#endif
}
static inline v16 load_up_to16(const float* p, int64_t n) {
  return n >= 16 ? load16(p) : load16(p, n);
}
// Elements i to i + 16 of a row in single numbers, widened; or the first n of them, n < 16.
template <class Read>
static inline v16 load16_as(const uint8_t* row, int64_t i) {
  return each_part([&](int k) { return Read::vector(row, i + k * lanes); });
}
template <class Read>
static inline v16 load16_as(const uint8_t* row, int64_t i, int64_t n) {
  float some[16] = {};
  for (int64_t k = 0; k < n; k++) some[k] = Read::one(row, i + k);
  return load16(some);
}
static inline void store16(float* p, v16 v) {
#pragma GCC unroll 4
  for (int k = 0; k < parts16; k++) store(p + k * lanes, v.part[k]);
}
// The first n lanes, n < 16.
static inline void store16(float* p, v16 v, int64_t n) {
  float all[16];
  store16(all, v);
  std::memcpy(p, all, size_t(n) * 4);
}
static inline v16 fused(v16 a, v16 b, v16 c) {
  return each_part([&](int k) { return fused(a.part[k], b.part[k], c.part[k]); });
}
static inline v16 operator+(v16 a, v16 b) {
  return each_part([&](int k) { return a.part[k] + b.part[k]; });
}
static inline v16 operator-(v16 a, v16 b) {
  return each_part([&](int k) { return a.part[k] - b.part[k]; });
}
static inline v16 operator*(v16 a, v16 b) {
  return each_part([&](int k) { return a.part[k] * b.part[k]; });
}

// --- the tree: lanes 8 apart, then 4, then 2, then the last two ---

// The first two steps.
static inline v4 fold16(v16 v) {
#if defined(ALEATOR_ISA_v4)
  return fold(v.part[0]);
#elif defined(ALEATOR_ISA_v3)
  return fold(v.part[0] + v.part[1]);
#else
  return (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]);
#endif
}
static inline float sum16(v16 v) {
  const v4 q = fold16(v);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
// The last two steps of four trees.
static inline v4 sums_of_folds(v4 a, v4 b, v4 c, v4 d) {
  const v4 ab =
      __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  const v4 cd =
      __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}
// The trees of four vectors.
static inline v4 sums16(v16 a, v16 b, v16 c, v16 d) {
  return sums_of_folds(fold16(a), fold16(b), fold16(c), fold16(d));
}
template <int apart, int... i>
static inline vf half_sum(vf a, vf b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (i & apart ? lanes + i : i)...) +
         __builtin_shufflevector(a, b, (i & apart ? lanes + i - apart : i + apart)...);
}
// Steps of trees, down from lanes `apart` from each other: of vectors as far apart, each in half
// the lanes of one, in the end in the lane of its number. A blend takes the place of a shuffle.
template <int apart>
static inline void half_sums(vf* v) {
  for (int i = 0; i < apart; i++)
    v[i] = half_sum<apart>(v[i], v[i + apart], std::make_integer_sequence<int, lanes>());
  if constexpr (apart > 1) half_sums<apart / 2>(v);
}
// The trees of sixteen vectors: lane i is that of vector i.
static inline v16 sums16(const v16 (&v)[16]) {
#if defined(ALEATOR_ISA_v4)
  vf all[16];
  for (int i = 0; i < 16; i++) all[i] = v[i].part[0];
  half_sums<8>(all);
  return {all[0]};
#else
  float all[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const v4 four = sums16(v[i], v[i + 1], v[i + 2], v[i + 3]);
    std::memcpy(all + i, &four, sizeof four);
  }
  return load16(all);
#endif
}

// The sum over i < n of a[i] * b[i], by the contract.
static inline float dot16(const float* a, const float* b, int64_t n) {
  v16 total = splat16(0);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) total = fused(load16(a + i), load16(b + i), total);
  if (i < n) total = fused(load16(a + i, n - i), load16(b + i, n - i), total);
  return sum16(total);
}

// The sum over i < n of a[i], in the same lanes and by the same tree.
static inline float total16(const float* a, int64_t n) {
  v16 total = splat16(0);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) total = total + load16(a + i);
  if (i < n) total = total + load16(a + i, n - i);
  return sum16(total);
}

}  // namespace aleator::ALEATOR_ISA
