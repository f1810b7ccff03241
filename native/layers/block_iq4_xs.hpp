// Products with few tokens of IQ4_XS: AVX-512 with VNNI.  Included by block_few.hpp only.
#pragma once

#include "layers/block_dots.hpp"
#include "layers/block_linear.hpp"

namespace aleator::ALEATOR_ISA {

// Sixteen bytes hold a group of 32: its first half in their low nibbles, its second in the high
// ones.  So 64 bytes are the first halves of four groups and the second ones, a group in each 128
// bits, and x's are brought into this order.
struct HalvesOfGroups {
  __m512i first, second;
};
static inline HalvesOfGroups halves_of_groups(const int8_t* x) {
  const __m512i a = load_as<__m512i>(x), b = load_as<__m512i>(x + 64);
  return {__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13),
          __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15)};
}
static inline HalvesOfGroups iq4_halves(const uint8_t* p) {
  const __m512i q = load_as<__m512i>(p), mask = _mm512_set1_epi8(15);
  const __m512i table = _mm512_maskz_broadcast_i32x4(0xffff, load_as<__m128i>(iq4_table.u));
  return {_mm512_shuffle_epi8(table, _mm512_and_si512(q, mask)),
          _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_maskz_srli_epi16(~0u, q, 4), mask))};
}
// The products of both halves, added to acc.
static inline __m512i halves_dot(__m512i acc, const HalvesOfGroups& u, const HalvesOfGroups& x) {
  return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc, u.first, x.first), u.second, x.second);
}
// The scales of a block's eight groups: four bits of each, and two above them.
static inline __m256i iq4_scales(const uint8_t* p) {
  const auto each = [](int32_t bits, __m256i by, int mask) {
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(bits), by),
                            _mm256_set1_epi32(mask));
  };
  const __m256i low =
      each(load_as<int32_t>(p + 4), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), 15);
  const __m256i high =
      each(load_as<uint16_t>(p + 2), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), 3);
  return _mm256_sub_epi32(_mm256_or_si256(low, _mm256_slli_epi32(high, 4)), _mm256_set1_epi32(32));
}

template <class B, int T>
static void few_iq4_xs(const Weights& w, int64_t row, int64_t rows, int64_t ahead, const Rounded& x,
                       int64_t t0, float* y, int64_t y_stride) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const uint8_t* p[4];
  for (int r = 0; r < 4; r++) p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  __m128 total[T];
  for (int t = 0; t < T; t++) total[t] = _mm_setzero_ps();
  const int64_t n = x.in / 256;
  const __m512i none = _mm512_setzero_si512(), zero = _mm512_set1_epi8(int8_t(B::zero));
  const __m512i four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i other_four = _mm512_add_epi32(four, _mm512_set1_epi32(4));
  for (int64_t b = 0; b < n; b++) {
    HalvesOfGroups xs[T][2];
    __m512i off[T][2];  // what `zero` is in a sum, the same for every row
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
      for (int k = 0; k < 2; k++) {
        xs[t][k] = halves_of_groups(x.q + (t0 + t) * x.in + b * 256 + 128 * k);
        off[t][k] = _mm512_sub_epi32(none, halves_dot(none, {zero, zero}, xs[t][k]));
      }
    __m256i dots[T][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      const uint8_t* at = p[r] + b * bytes;
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + ahead + line, 0, 2);
      const HalvesOfGroups u[2] = {iq4_halves(at + 8), iq4_halves(at + 72)};
      const __m512i scales = extended(iq4_scales(at));
      const __m512i scale[2] = {_mm512_maskz_permutexvar_epi32(0xffff, four, scales),
                                _mm512_maskz_permutexvar_epi32(0xffff, other_four, scales)};
#pragma GCC unroll 4
      for (int t = 0; t < T; t++)
        dots[t][r] = narrow(
            _mm512_add_epi32(_mm512_mullo_epi32(halves_dot(off[t][0], u[0], xs[t][0]), scale[0]),
                             _mm512_mullo_epi32(halves_dot(off[t][1], u[1], xs[t][1]), scale[1])));
    }
    const __m128 d = four_halves(p, b * bytes);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const __m128i sum = halves_sum(four_sums(dots[t][0], dots[t][1], dots[t][2], dots[t][3]));
      const __m128 dx = _mm_set1_ps(x.d[(t0 + t) * n + b]);
      total[t] = _mm_fmadd_ps(_mm_mul_ps(d, dx), _mm_cvtepi32_ps(sum), total[t]);
    }
  }
  store_four_rows(total, w, row, rows, y + t0 * y_stride, y_stride);
}

}  // namespace aleator::ALEATOR_ISA
