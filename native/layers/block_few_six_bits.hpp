// Q4_K and Q5_K with few tokens: AVX2.  Included by block_few.isa.cpp only.
//
// The headers of eight rows are taken apart side by side, and their scales put into memory, from
// where each comes to all lanes without a vector port.
#pragma once

#include "layers/block_few_pairs.hpp"

namespace aleator::ALEATOR_ISA {

constexpr WordOrders six_bits_orders([](int k, int n) {
  return n % 2 ? no_byte : 4 * k + n % 16 / 4;  // of row k's four, each twice
});
// Bit g of every byte, as its fifth.
static inline __m256i fifth_bits(__m256i of, int g) {
  return _mm256_and_si256(g < 4 ? _mm256_slli_epi16(of, 4 - g) : moved_right(of, g - 4),
                          bytes_of(16));
}

struct ScalesOfEight {
  // A group's scale of each row, twice in 16 bits: groups in fours, rows k and k + 4.
  alignas(32) int32_t of[2][4][2][4];
  __m256i least[2][2];  // words: groups in fours, of rows 0, 1, 4, 5 and of the others
  Factors factors;
};
static inline void put_scales(const uint8_t* const (&p)[8], int64_t at, ScalesOfEight& to) {
  const auto two = [&](int k) { return two_headers(p[k] + at, p[k + 4] + at); };
  const __m256i d_a[2] = {_mm256_unpacklo_epi32(two(0), two(1)),
                          _mm256_unpacklo_epi32(two(2), two(3))};
  const __m256i b_c[2] = {_mm256_unpackhi_epi32(two(0), two(1)),
                          _mm256_unpackhi_epi32(two(2), two(3))};
  to.factors = factors_of(_mm256_unpacklo_epi64(d_a[0], d_a[1]));
  // Six bits of a and b stand in one byte, of the others four in c and two in a and b.
  const __m256i six[2] = {_mm256_unpackhi_epi64(d_a[0], d_a[1]),
                          _mm256_unpacklo_epi64(b_c[0], b_c[1])};
  const __m256i c = _mm256_unpackhi_epi64(b_c[0], b_c[1]);
  const auto group = [&](int which, int half) {
    if (half == 0) return _mm256_and_si256(six[which], bytes_of(63));
    return _mm256_or_si256(_mm256_and_si256(which ? moved_right(c, 4) : c, bytes_of(15)),
                           _mm256_and_si256(moved_right(six[which], 2), bytes_of(48)));
  };
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const __m256i scales = group(0, half), least = group(1, half);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.of[half][k]),
                         _mm256_shuffle_epi8(scales, six_bits_orders[k]));
    to.least[half][0] = _mm256_unpacklo_epi8(least, _mm256_setzero_si256());
    to.least[half][1] = _mm256_unpackhi_epi8(least, _mm256_setzero_si256());
  }
  asm("" : "+m"(to.of));  // GCC would take them out of vectors, not read them
}
// The least values times the sums of a token's groups, of eight rows.
static inline __m256i least_of_eight(const ScalesOfEight& of, const int16_t* sums) {
  const __m128i groups = _mm_hadd_epi16(load_as<__m128i>(sums), load_as<__m128i>(sums + 8));
  const __m256i four[2] = {everywhere(_mm_unpacklo_epi64(groups, groups)),
                           everywhere(_mm_unpackhi_epi64(groups, groups))};
  const auto pairs = [&](int i) {
    return add_scaled(_mm256_madd_epi16(of.least[0][i], four[0]), of.least[1][i], four[1]);
  };
  return _mm256_hadd_epi32(pairs(0), pairs(1));
}

template <class B, int T>
static void few_six_bits(const FewTile& tile) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const __m256i nibble = kept(bytes_of(15));
  const int64_t n = tile.x.in / 256;
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    const int64_t at = b * bytes, first = tile.t0 * n + b;
    ScalesOfEight scales;
    put_scales(p, at, scales);
    __m256i dots[T][8];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      if (tile.asked.in_order())
        tile.ask_in_order(8 * at + 2 * k * bytes, 2 * bytes);
      else
        tile.block<B>(p[k], k, b), tile.block<B>(p[k + 4], k + 4, b);
      __m256i acc[2][T] = {}, q[2], high[2];
#pragma GCC unroll 8
      for (int g = 0; g < 8; g++) {
        __m256i x[T];
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
          x[t] = in_order(load256(tile.x.q + (first + t * n) * 256 + 32 * g));
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
          const uint8_t* const row = p[k + 4 * r] + at;
          if (g % 2 == 0) q[r] = in_order(load256(row + B::nibbles_of_groups_at + 16 * g));
          __m256i u = _mm256_and_si256(g % 2 ? moved_right(q[r], 4) : q[r], nibble);
          if constexpr (B::fifths_of_groups_at != 0) {
            if (g == 0) high[r] = load256(row + B::fifths_of_groups_at);
            u = _mm256_or_si256(u, fifth_bits(high[r], g));
          }
          const __m256i scale = _mm256_set1_epi32(scales.of[g / 4][k][r][g % 4]);
#pragma GCC unroll 2
          for (int t = 0; t < T; t++)
            acc[r][t] = in_order(add_scaled(acc[r][t], _mm256_maddubs_epi16(u, x[t]), scale));
        }
      }
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) dots[t][k] = acc[0][t], dots[t][k + 4] = acc[1][t];
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      const float dx = tile.x.d[first + t * n];
      const __m256i least = least_of_eight(scales, tile.x.sums + (first + t * n) * 16);
      add_times(scales.factors.d, dx, eight_sums(dots[t]), total[t]);
      subtract_times(scales.factors.m, dx, least, total[t]);
    }
  });
}

}  // namespace aleator::ALEATOR_ISA
