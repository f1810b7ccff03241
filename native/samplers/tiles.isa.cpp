// Contract: docs/numerics.md.  Plain loops, which the compiler vectorises for each instruction set;
// only compaction, which it cannot, is written with intrinsics.
#include "samplers/tiles.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "rng/philox.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace aleator::ALEATOR_ISA {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

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
using Words = uint32_t __attribute__((vector_size(4 * lanes)));

inline Floats load(const float* x) {
  Floats v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}

template <typename V, typename T>
inline void store(T* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

// a > b ? a : b in each lane, so b where a is NaN.  The masked forms of the intrinsics keep GCC 12
// from warning about their undefined source operand.
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xFFFF, a, b);
#elif defined(__AVX__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// a * b + c where a * b is exact, so that fusing changes nothing.
inline Floats add_exact_product(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// The upper 32 bits of each product.
inline Words high_product(Words a, uint32_t m) {
#if defined(__SSE2__)
  using Longs = uint64_t __attribute__((vector_size(4 * lanes)));
  const auto product = [m](Words even) {
#if defined(__AVX512F__)
    return reinterpret_cast<Longs>(
        _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(even), _mm512_set1_epi32(m)));
#elif defined(__AVX2__)
    return reinterpret_cast<Longs>(
        _mm256_mul_epu32(reinterpret_cast<__m256i>(even), _mm256_set1_epi32(m)));
#else
    return reinterpret_cast<Longs>(
        _mm_mul_epu32(reinterpret_cast<__m128i>(even), _mm_set1_epi32(m)));
#endif
  };
  const Longs even = product(a),
              odd = product(reinterpret_cast<Words>(reinterpret_cast<Longs>(a) >> 32));
  return reinterpret_cast<Words>(even >> 32 | (odd & 0xFFFFFFFF00000000u));
#else
  for (int i = 0; i < lanes; ++i) a[i] = static_cast<uint32_t>(uint64_t{a[i]} * m >> 32);
  return a;
#endif
}

template <typename V>
inline auto halves(V v) {  // added or compared by halves until one lane is left
  if constexpr (sizeof(V) == 64) {
    return std::pair{__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)};
  } else if constexpr (sizeof(V) == 32) {
    return std::pair{__builtin_shufflevector(v, v, 0, 1, 2, 3),
                     __builtin_shufflevector(v, v, 4, 5, 6, 7)};
  } else {
    return std::pair{v, __builtin_shufflevector(v, v, 2, 3, 0, 1)};
  }
}

template <typename V>
inline float largest(V v) {
  const auto [a, b] = halves(v);
  const auto best = a > b ? a : b;
  if constexpr (sizeof(V) > 16) {
    return largest(best);
  } else {
    return best[0] > best[1] ? best[0] : best[1];
  }
}

template <typename V>
inline int32_t sum_of(V v) {
  const auto [a, b] = halves(v);
  const auto sum = a + b;
  if constexpr (sizeof(V) > 16) {
    return sum_of(sum);
  } else {
    return sum[0] + sum[1];
  }
}

// t of the contract: bits of weight, negative, from -100 to 0.  A masked logit has d = -inf, and
// -inf * 0 is NaN when the temperature is so large that the scale is 0: both clamp to -100 bits,
// which weighs 0.
constexpr float least_bits = -100.0f;
inline Floats bits_of(Floats x, float zmax, float scale) {
  return larger((x - zmax) * scale, Floats{} + least_bits);
}

// 2^(t + 40), whose integer part is the Q40 weight.  Each multiply and each add is rounded by
// itself (the file is compiled without contraction); scaling by a power of two and cutting off the
// fraction are exact, and so are the same as the contract's shift of the mantissa.
inline Floats power(Floats t) {
  // 1.5 * 2^23: adding it rounds to an integer, ties to even.  The even 40 rides along.
  const float magic = 12582912.0f + 40.0f;
  const Floats r = t + magic;
  const Floats f = t - (r - magic);
  Floats p = f * 0.001326472731307149f + 0.009671512991189957f;
  p = p * f + 0.05550733581185341f;
  p = p * f + 0.24022242426872253f;
  p = p * f + 0.6931470036506653f;
  p = p * f + 1.0f;
  // The exponents added as integers; of r only the lowest bits count, the others are shifted out.
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(r) << 23));
}

// The weight as high * 2^20 + low.
struct Weight {
  Ints high, low;
};
inline Weight weight(Floats t) {
  const Floats w = power(t);
  const Ints high = __builtin_convertvector(w * 0x1p-20f, Ints);
  const Floats whole = __builtin_convertvector(high, Floats);
  const Floats rest = add_exact_product(whole, Floats{} - 0x1p20f, w);
  return {high, __builtin_convertvector(rest, Ints)};
}

// rint(-x * unit), a power of two, ties to even, for a product of at most 2^23: adding 2^23 leaves
// the integer in the mantissa.
inline Ints round_magnitude(Floats x, float unit) {
  const Floats r = add_exact_product(x, Floats{} + unit, Floats{} - 8388608.0f);
  return reinterpret_cast<Ints>(r) & 0x7FFFFF;
}

// -t in Q16.
inline Ints depth_of(Floats t) { return round_magnitude(t, 65536.0f); }

inline Ints score_of(Ints depth, int32_t mean) {
  const Ints away = depth - mean;
  return away < 0 ? -away : away;
}

// One bit per lane of a comparison.
inline unsigned mask_of(Ints in) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(in));
#elif defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(in)));
#elif defined(__SSE2__)
  return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(in)));
#else
  unsigned mask = 0;
  for (int j = 0; j < lanes; ++j) mask |= (in[j] & 1u) << j;
  return mask;
#endif
}

// Candidates (not masked) with x - zmax >= threshold.
inline unsigned near_mask(Floats x, float zmax, float threshold) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x - zmax, Floats{} + threshold, _CMP_GE_OQ) &
         _mm512_cmp_ps_mask(x, Floats{} + minus_infinity, _CMP_GT_OQ);
#else
  return mask_of((x - zmax >= threshold) & (x > minus_infinity));
#endif
}

// Candidates with from <= score <= to.
inline unsigned score_mask(Floats x, Ints score, int32_t from, int32_t to) {
#if defined(__AVX512F__)
  return _mm512_cmple_epu32_mask(reinterpret_cast<__m512i>(score - from),
                                 reinterpret_cast<__m512i>(Ints{} + (to - from))) &
         _mm512_cmp_ps_mask(x, Floats{} + minus_infinity, _CMP_GT_OQ);
#else
  return mask_of((score >= from) & (score <= to) & (x > minus_infinity));
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each mask of 8 lanes: the lanes that are set, in order.
constexpr auto set_lanes = [] {
  std::array<std::array<uint8_t, 8>, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask)
    for (unsigned lane = 0, at = 0; lane < 8; ++lane)
      if (mask >> lane & 1) table[mask][at++] = static_cast<uint8_t>(lane);
  return table;
}();
#endif

// The ids of a tile's elements: in a row they count on from `first`, in a list they are listed.
struct Ids {
  const int32_t* listed;
  int32_t first;
  Ids from(int i) const { return {listed ? listed + i : nullptr, first + i}; }
};

// Appends the lanes of `keep` with their ids; returns how many.  Whole vectors are stored: there is
// room, and a masked store to memory is slow on some processors.
inline int append(Floats v, Ids from, unsigned keep, int32_t* ids, float* logits) {
  v = v + 0.0f;  // -0 becomes +0
#if defined(__AVX512F__)
  const __m512i id = from.listed ? _mm512_loadu_si512(from.listed)
                                 : _mm512_add_epi32(_mm512_set1_epi32(from.first),
                                                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                                                      10, 11, 12, 13, 14, 15));
  const auto mask = static_cast<__mmask16>(keep);
  _mm512_storeu_ps(logits, _mm512_maskz_compress_ps(mask, v));
  _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(mask, id));
#elif defined(__AVX2__)
  const __m256i lane = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(set_lanes[keep].data())));
  const __m256i id =
      from.listed ? _mm256_permutevar8x32_epi32(
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from.listed)), lane)
                  : _mm256_add_epi32(_mm256_set1_epi32(from.first), lane);
  _mm256_storeu_ps(logits, _mm256_permutevar8x32_ps(v, lane));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(ids), id);
#else
  int count = 0;
  for (int j = 0; j < lanes; ++j) {
    ids[count] = from.listed ? from.listed[j] : from.first + j;
    logits[count] = v[j];
    count += static_cast<int>(keep >> j & 1);
  }
#endif
  return std::popcount(keep);
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

void tile_scan(const float* x, int64_t n_tiles, float* maxima, uint8_t* has_nan) {
  for (int64_t tile = 0; tile < n_tiles; ++tile, x += tile_size) {
    Floats best0 = Floats{} + minus_infinity, best1 = best0;
#if defined(__AVX512F__)
    unsigned nan = 0;
#else
    Ints nan{};
#endif
    for (int i = 0; i < tile_size; i += 2 * lanes) {
      const Floats v = load(x + i), w = load(x + i + lanes);
      best0 = larger(v, best0);
      best1 = larger(w, best1);
#if defined(__AVX512F__)
      nan |= _mm512_cmp_ps_mask(v, w, _CMP_UNORD_Q);
#else
      nan |= (v != v) | (w != w);
#endif
    }
    maxima[tile] = largest(larger(best0, best1)) + 0.0f;  // -0 becomes +0
#if defined(__AVX512F__)
    has_nan[tile] = nan != 0;
#else
    has_nan[tile] = mask_of(nan) != 0;
#endif
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
  Ints high{}, low{};  // at most 2^20 in each of 128: nothing overflows
  for (int i = 0; i < tile_size; i += lanes) {
    const Weight w = weight(bits_of(load(x + i), zmax, scale));
    high += w.high;
    low += w.low;
  }
  return (static_cast<uint64_t>(sum_of(high)) << 20) + static_cast<uint64_t>(sum_of(low));
}

uint64_t light_tile_mass(const float* x, float zmax, float scale) {
  Ints sum{};
  for (int i = 0; i < tile_size; i += lanes)
    sum += __builtin_convertvector(power(bits_of(load(x + i), zmax, scale)), Ints);
  return static_cast<uint64_t>(sum_of(sum));
}

uint64_t add_mean(const float* x, float zmax, float scale, Mean* mean) {
  uint32_t high[tile_size], depth[tile_size];
  Ints low{};
  for (int i = 0; i < tile_size; i += lanes) {
    const Floats t = bits_of(load(x + i), zmax, scale);
    const Weight w = weight(t);
    low += w.low;
    store(high + i, w.high);
    store(depth + i, depth_of(t));
  }
  uint32_t weight = 0;
  uint64_t weighted = 0;
  for (int i = 0; i < tile_size; ++i) {
    weight += high[i];
    weighted += uint64_t{high[i]} * depth[i];
  }
  mean->weight += weight;
  mean->weighted += weighted;
  return (uint64_t{weight} << 20) + static_cast<uint64_t>(sum_of(low));
}

namespace {

// Calls f(first, logits, n) for each tile of n logits; f may read a whole tile, and the last one is
// filled up with masked tokens.
template <typename F>
inline void each_tile(const float* x, int64_t n, F f) {
  int64_t first = 0;
  for (; first + tile_size <= n; first += tile_size) f(first, x + first, tile_size);
  if (first == n) return;
  float last[tile_size];
  for (int i = 0; i < tile_size; ++i) last[i] = first + i < n ? x[first + i] : minus_infinity;
  f(first, last, static_cast<int>(n - first));
}

inline void weigh_tile(const float* x, float zmax, float scale, int64_t* weights) {
  float w[tile_size];
  for (int i = 0; i < tile_size; i += lanes) store(w + i, power(bits_of(load(x + i), zmax, scale)));
  for (int i = 0; i < tile_size; ++i) weights[i] = static_cast<int64_t>(w[i]);  // rounds down
}

inline void score_tile(const float* x, float zmax, float scale, int32_t mean, int32_t* scores) {
  for (int i = 0; i < tile_size; i += lanes)
    store(scores + i, score_of(depth_of(bits_of(load(x + i), zmax, scale)), mean));
}

}  // namespace

void weigh(const float* x, int64_t n, float zmax, float scale, uint64_t* weights) {
  each_tile(x, n, [=](int64_t first, const float* tile, int here) {
    int64_t w[tile_size];
    weigh_tile(tile, zmax, scale, w);
    __builtin_memcpy(weights + first, w, here * sizeof *w);
  });
}

void score(const float* x, int64_t n, float zmax, float scale, int32_t mean, int32_t* scores) {
  each_tile(x, n, [=](int64_t first, const float* tile, int here) {
    int32_t s[tile_size];
    score_tile(tile, zmax, scale, mean, s);
    __builtin_memcpy(scores + first, s, here * sizeof *s);
  });
}

void add_bins(const float* x, float zmax, float scale, int32_t mean, uint64_t* bins) {
  int64_t w[tile_size];
  int32_t s[tile_size];
  weigh_tile(x, zmax, scale, w);
  score_tile(x, zmax, scale, mean, s);
  for (int i = 0; i < tile_size; ++i) bins[s[i] >> bin_shift] += static_cast<uint64_t>(w[i]);
}

float maximum(const float* x, int64_t n) {
  Floats best0 = Floats{} + minus_infinity, best1 = best0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    best0 = larger(load(x + i), best0);
    best1 = larger(load(x + i + lanes), best1);
  }
  float best = largest(larger(best0, best1));
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

int64_t count_at_least(const float* x, int64_t n, float bound) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] >= bound;
  return count;
}

int64_t find_tiles(const float* maxima, int64_t n, float zmax, float threshold, int32_t* tiles) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += lanes) {
    const Floats v = load(maxima + i);
    unsigned found = near_mask(v, zmax, threshold);
    for (; found; found &= found - 1)
      tiles[count++] = static_cast<int32_t>(i) + std::countr_zero(found);
  }
  return count;
}

void add_moments(const float* x, int64_t n, float zmax, Moments* moments) {
  each_tile(x, n, [=](int64_t, const float* tile, int) {
    uint32_t q[tile_size];  // without their sign, 0 for masked tokens; a tile's sum is below 2^28
    Ints sum{}, count{};
    for (int i = 0; i < tile_size; i += lanes) {
      const Floats v = load(tile + i);
      const Ints in = v > minus_infinity;
      const Ints rounded = round_magnitude(larger(v - zmax, Floats{} - 256.0f), 4096.0f) & in;
      store(q + i, rounded);
      sum += rounded;
      count -= in;
    }
    uint64_t squares = 0;
    for (int i = 0; i < tile_size; ++i) squares += uint64_t{q[i]} * q[i];
    moments->count += static_cast<uint64_t>(sum_of(count));
    moments->sum -= sum_of(sum);
    moments->squares += squares;
  });
}

int collect(const float* x, const int32_t* listed, int32_t first_id, float zmax, float threshold,
            int32_t* ids, float* logits) {
  const Ids from_ids{listed, first_id};
  int count = 0;
  for (int i = 0; i < tile_size; i += lanes) {
    const Floats v = load(x + i);
    if (const unsigned keep = near_mask(v, zmax, threshold))
      count += append(v, from_ids.from(i), keep, ids + count, logits + count);
  }
  return count;
}

int collect_scored(const float* x, const int32_t* listed, int32_t first_id, float zmax, float scale,
                   int32_t mean, int32_t from, int32_t to, int32_t* ids, float* logits) {
  const Ids from_ids{listed, first_id};
  int count = 0;
  for (int i = 0; i < tile_size; i += lanes) {
    const Floats v = load(x + i);
    const Ints scores = score_of(depth_of(bits_of(v, zmax, scale)), mean);
    if (const unsigned keep = score_mask(v, scores, from, to))
      count += append(v, from_ids.from(i), keep, ids + count, logits + count);
  }
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

// E = -2^32 log2(u / 2^64) is at least (2^32 - 1 - h) / ln 2, h the upper word of u: no logarithm
// is needed to see that most tokens lose.
int find_contenders(const int32_t* ids, const uint64_t* weights, int n, const RaceNoise& noise,
                    float bound, int32_t* found) {
  constexpr float below_1_over_ln2 = 1.4426f;  // by more than all roundings here come to
  int count = 0;
  for (int first = 0; first < n; first += lanes) {
    const int here = n - first < lanes ? n - first : lanes;
    Words c[4] = {};
    Floats most = {};
    __builtin_memcpy(&c[0], ids + first, sizeof(int32_t) * here);
    for (int i = 0; i < here; ++i)  // 2^20 more at most, rounded down to a multiple of that
      most[i] = static_cast<float>(static_cast<int32_t>(weights[first + i] >> 20) + 1) * 0x1p20f;
    c[1] += static_cast<uint32_t>(noise.position);
    c[2] += static_cast<uint32_t>(noise.position >> 32);
    c[3] += noise.stream;
    philox_rounds(
        [&](uint32_t m0, uint32_t m1, uint32_t k0, uint32_t k1) {
          const Words high0 = high_product(c[0], m0), high1 = high_product(c[2], m1);
          const Words low0 = c[0] * m0, low1 = c[2] * m1;
          c[0] = high1 ^ c[1] ^ k0;
          c[1] = low1;
          c[2] = high0 ^ c[3] ^ k1;
          c[3] = low0;
        },
        noise.seed);
    const Floats e = __builtin_convertvector(reinterpret_cast<Ints>(~c[1] >> 1), Floats) * 2.0f;
    uint32_t may = mask_of(e * below_1_over_ln2 <= bound * most) & ((1u << here) - 1);
    for (; may; may &= may - 1) found[count++] = first + std::countr_zero(may);
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
