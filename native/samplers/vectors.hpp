// Vectors of one register and loops over tiles, for the *.isa.cpp files of this folder.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "layers/lanes.hpp"
#include "samplers/tiles.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace aleator::ALEATOR_ISA {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

using Floats = vf;  // one register: GCC does badly with vectors of several
using Ints = vi;
using Words = uint32_t __attribute__((vector_size(4 * lanes)));

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

// Not 0 in the lanes in which a or b is NaN.
inline Ints unordered(Floats a, Floats b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
#elif defined(__SSE2__) && !defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm_cmpunord_ps(a, b));
#else
  return (a != a) | (b != b);
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

using Longs = uint64_t __attribute__((vector_size(4 * lanes)));

// Products of the lower halves, unsigned.
inline Longs low_products(Longs a, Longs b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Longs>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Longs>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
#endif
}

// Of pairs of lanes, unsigned: the sum of their products.
template <typename V>
inline Longs pair_products(V a, V b) {
  const auto x = reinterpret_cast<Longs>(a), y = reinterpret_cast<Longs>(b);
  return low_products(x, y) + low_products(x >> 32, y >> 32);
}

// The upper 32 bits of each product.
inline Words high_product(Words a, uint32_t m) {
#if defined(__SSE2__)
  const auto x = reinterpret_cast<Longs>(a);
  const Longs by = Longs{} + m, even = low_products(x, by), odd = low_products(x >> 32, by);
  return reinterpret_cast<Words>(even >> 32 | (odd & 0xFFFFFFFF00000000u));
#else
  for (int i = 0; i < lanes; ++i) a[i] = uint32_t(uint64_t{a[i]} * m >> 32);
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

// Unsigned lanes, each pair's sum in one.
template <typename V>
inline Longs widened(V v) {
  const auto pairs = reinterpret_cast<Longs>(v);
  return (pairs & 0xFFFFFFFF) + (pairs >> 32);
}

inline uint64_t sum_of(Longs v) {
  uint64_t sum = 0;
  for (int i = 0; i < lanes / 2; ++i) sum += v[i];
  return sum;
}

// Weights, at most 2^40 and integers but for their fractions, as high * 2^20 + low.
struct Weight {
  Ints high, low;
};
inline Weight split(Floats w) {
  const Ints high = __builtin_convertvector(w * 0x1p-20f, Ints);
  const Floats whole = __builtin_convertvector(high, Floats);
  const Floats rest = add_exact_product(whole, Floats{} - 0x1p20f, w);
  return {high, __builtin_convertvector(rest, Ints)};
}

// Their sum over a tile.
template <typename Weigh>
inline uint64_t sum_of_tile(const float* x, Weigh weigh) {
  Ints high{}, low{};  // at most 2^20 in each of 128: nothing overflows
  for (int i = 0; i < tile_size; i += lanes) {
    const Weight w = split(weigh(load(x + i)));
    high += w.high;
    low += w.low;
  }
  return (uint64_t(sum_of(high)) << 20) + uint64_t(sum_of(low));
}

// Of a weight; there are instructions for signed integers.
inline uint64_t rounded_down(float w) { return uint64_t(int64_t(w)); }

// One bit per lane of a comparison.
inline unsigned mask_of(Ints in) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(in));
#elif defined(__AVX2__)
  return unsigned(_mm256_movemask_ps(reinterpret_cast<__m256>(in)));
#elif defined(__SSE2__)
  return unsigned(_mm_movemask_ps(reinterpret_cast<__m128>(in)));
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
      if (mask >> lane & 1) table[mask][at++] = uint8_t(lane);
  return table;
}();
#endif

// The ids of a tile's elements: in a row they count on from `first`, in a list they are listed.
struct Ids {
  const int32_t* listed;
  int32_t first;
  Ids from(int i) const { return {listed ? listed + i : nullptr, first + i}; }
  Words numbers() const {  // of one register's elements
    if (listed) return load_as<Words>(listed);
    Words v;
    for (int j = 0; j < lanes; ++j) v[j] = j;
    return v + uint32_t(first);
  }
};

// Appends the lanes of `keep` with their ids; returns how many.  Whole vectors are stored: there is
// room, and a masked store to memory is slow on some processors.
inline int append(Floats v, Ids from, unsigned keep, int32_t* ids, float* logits) {
  v = v + 0.0f;  // -0 becomes +0
#if defined(__AVX512F__)
  const auto id = reinterpret_cast<__m512i>(from.numbers());
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
    count += int(keep >> j & 1);
  }
#endif
  return std::popcount(keep);
}

// Appends the elements of a tile of which keep(logits of a register) has a bit set; returns how
// many.
template <typename Keep>
inline int append_tile(const float* x, Ids from, int32_t* ids, float* logits, Keep keep) {
  int count = 0;
  for (int i = 0; i < tile_size; i += lanes) {
    const Floats v = load(x + i);
    if (const unsigned kept = keep(v))
      count += append(v, from.from(i), kept, ids + count, logits + count);
  }
  return count;
}

// Fills n values by tiles: make(logits of a tile, its values).  The last tile is filled up with
// masked tokens.
template <typename T, typename Make>
inline void fill_by_tiles(const float* x, int64_t n, T* values, Make make) {
  int64_t first = 0;
  for (; first + tile_size <= n; first += tile_size) make(x + first, values + first);
  if (first == n) return;
  float last[tile_size];
  T made[tile_size];
  for (int i = 0; i < tile_size; ++i) last[i] = first + i < n ? x[first + i] : minus_infinity;
  make(last, made);
  __builtin_memcpy(values + first, made, (n - first) * sizeof *made);
}

}  // namespace

}  // namespace aleator::ALEATOR_ISA
