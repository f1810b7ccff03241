// Contract: docs/numerics.md.  Plain loops, which the compiler vectorises for each instruction set;
// only compaction, which it cannot, is written with intrinsics.
#include "samplers/tiles.hpp"

#include <bit>
#include <cmath>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace aleator::ALEATOR_ISA {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// One Q40 weight: 2^(d * scale) with d = x - zmax <= 0.  Each multiply and each add is rounded by
// itself (the file is compiled without contraction).  A masked logit has d = -inf, and -inf * 0 is
// NaN when the temperature is so large that the scale is 0: both clamp to -100 bits, which weighs
// 0.
inline uint64_t weight(float x, float zmax, float scale) {
  const float d = x - zmax;
  float t = d * scale;
  t = t >= -100.0f ? t : -100.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  const float r = t + magic;
  const float f = t - (r - magic);
  float p = 0.001326472731307149f;
  p = p * f + 0.009671512991189957f;
  p = p * f + 0.05550733581185341f;
  p = p * f + 0.24022242426872253f;
  p = p * f + 0.6931470036506653f;
  p = p * f + 1.0f;
  const uint32_t b = std::bit_cast<uint32_t>(p);
  const int32_t n = std::bit_cast<int32_t>(r) - 0x4B400000;
  const int32_t below =
      127 - static_cast<int32_t>(b >> 23) - n;  // bits below the maximum: 0 to 101
  const uint64_t mantissa = (b & 0x7FFFFFu) | 0x800000u;
  return (mantissa << 17) >> (below < 63 ? below : 63);
}

inline float widen_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

}  // namespace

// One register: GCC does badly with vectors of several.
#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif
using Floats = float __attribute__((vector_size(4 * lanes)));
using Ints = int32_t __attribute__((vector_size(4 * lanes)));

void tile_scan(const float* x, int64_t n_tiles, float* maxima, uint8_t* has_nan) {
  for (int64_t tile = 0; tile < n_tiles; ++tile, x += tile_size) {
    Floats v, best0, best1;
    __builtin_memcpy(&best0, x, sizeof v);
    __builtin_memcpy(&best1, x + lanes, sizeof v);
    Ints nan = (best0 != best0) | (best1 != best1);
    for (int i = 2 * lanes; i < tile_size; i += 2 * lanes) {
      __builtin_memcpy(&v, x + i, sizeof v);
      best0 = v > best0 ? v : best0;
      nan |= v != v;
      __builtin_memcpy(&v, x + i + lanes, sizeof v);
      best1 = v > best1 ? v : best1;
      nan |= v != v;
    }
    best0 = best1 > best0 ? best1 : best0;
    float top = best0[0];
    int32_t any = nan[0];
    for (int j = 1; j < lanes; ++j) top = best0[j] > top ? best0[j] : top, any |= nan[j];
    maxima[tile] = top + 0.0f;  // -0 becomes +0
    has_nan[tile] = any != 0;
  }
}

void group_maxima(const float* x, float* maxima) {
  for (int g = 0; g < groups_per_tile; ++g) {
    float best = x[g * 8];
    for (int i = 1; i < 8; ++i) best = x[g * 8 + i] > best ? x[g * 8 + i] : best;
    maxima[g] = best;
  }
}

uint64_t tile_mass(const float* x, float zmax, float scale) {
  uint64_t total = 0;
  for (int i = 0; i < tile_size; ++i) total += weight(x[i], zmax, scale);
  return total;
}

void weigh(const float* x, int64_t n, float zmax, float scale, uint64_t* weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = weight(x[i], zmax, scale);
}

void add_moments(const float* x, int64_t n, float zmax, Moments* moments) {
  uint64_t squares = 0;
  int64_t sum = 0, count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float d = x[i] - zmax;
    const float scaled = (d > -256.0f ? d : -256.0f) * 4096.0f;
    const auto q = static_cast<int64_t>(static_cast<int32_t>(__builtin_rintf(scaled)));
    const bool in = x[i] > minus_infinity;
    sum += in ? q : 0;
    squares += in ? static_cast<uint64_t>(q * q) : 0;
    count += in;
  }
  moments->count += static_cast<uint64_t>(count);
  moments->sum += sum;
  moments->squares += squares;
}

int collect(const float* x, float zmax, float threshold, int32_t first_id, int32_t* ids,
            float* logits) {
  int count = 0;
#if defined(__AVX512F__)
  const __m512 top = _mm512_set1_ps(zmax), bound = _mm512_set1_ps(threshold);
  const __m512 masked = _mm512_set1_ps(minus_infinity);
  __m512i id =
      _mm512_add_epi32(_mm512_set1_epi32(first_id),
                       _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (int i = 0; i < tile_size; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __mmask16 keep = _mm512_cmp_ps_mask(_mm512_sub_ps(v, top), bound, _CMP_GE_OQ) &
                           _mm512_cmp_ps_mask(v, masked, _CMP_GT_OQ);
    if (keep) {
      // Whole vectors are stored: there is room, and a masked store to memory is slow on some
      // processors.
      const __m512 kept = _mm512_add_ps(v, _mm512_setzero_ps());
      _mm512_storeu_ps(logits + count, _mm512_maskz_compress_ps(keep, kept));
      _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(keep, id));
      count += std::popcount(static_cast<unsigned>(keep));
    }
    id = _mm512_add_epi32(id, _mm512_set1_epi32(16));
  }
#else
  for (int i = 0; i < tile_size; ++i) {
    const float v = x[i];
    ids[count] = first_id + i;
    logits[count] = v + 0.0f;
    count += (v - zmax >= threshold) & (v > minus_infinity);
  }
#endif
  return count;
}

int find_at_least(const float* x, float bound, int32_t first_id, int32_t* ids) {
  int count = 0;
  for (int first = 0; first < tile_size; first += 16) {
    unsigned found = 0;
#if defined(__AVX512F__)
    found = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + first), _mm512_set1_ps(bound), _CMP_GE_OQ);
#elif defined(__SSE2__)
    const __m128 least = _mm_set1_ps(bound);
    for (int j = 0; j < 16; j += 4)
      found |=
          static_cast<unsigned>(_mm_movemask_ps(_mm_cmpge_ps(_mm_loadu_ps(x + first + j), least)))
          << j;
#else
    for (int j = 0; j < 16; ++j) found |= static_cast<unsigned>(x[first + j] >= bound) << j;
#endif
    for (; found; found &= found - 1) ids[count++] = first_id + first + std::countr_zero(found);
  }
  return count;
}

void widen_f16(const uint16_t* x, int64_t n, float* out) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) out[i] = widen_half(x[i]);
}

void widen_bf16(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

}  // namespace aleator::ALEATOR_ISA
