// Products with few tokens of types of 256 elements: AVX2.  Included by block_few.isa.cpp only.
//
// x is brought into order once for four or eight rows, and scales of two rows are taken apart in
// the halves of one vector.
#pragma once

#include "layers/block_dots.hpp"

namespace aleator::ALEATOR_ISA {

static inline __m256i everywhere(__m128i v) { return _mm256_broadcastsi128_si256(v); }
static inline __m256i bytes_of(int v) { return _mm256_set1_epi8(char(v)); }
static inline __m256i moved_right(__m256i v, int bits) { return _mm256_srli_epi16(v, bits); }

// The first or the second half, twice.
template <int half>
static inline __m256i half_twice(__m256i v) {
  return _mm256_permute2x128_si256(v, v, half * 0x11);
}
// Orders of bytes that put words in place for products, eight of them: byte(i, n) says where byte n
// of order i comes from, and no_byte is a byte of zeros.
constexpr int no_byte = 128;
struct WordOrders {
  alignas(32) uint8_t of[8][32];
  constexpr WordOrders(auto&& byte) : of{} {
    for (int i = 0; i < 8; i++)
      for (int n = 0; n < 32; n++) of[i][n] = uint8_t(byte(i, n));
  }
  __m256i operator[](int i) const { return load256(of[i]); }
};
// Eight rows' sums times their factors and x's d, added or subtracted.
static inline void add_times(__m256 factor, float dx, __m256i sums, __m256& total) {
  total =
      _mm256_fmadd_ps(_mm256_mul_ps(factor, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(sums), total);
}
static inline void subtract_times(__m256 factor, float dx, __m256i sums, __m256& total) {
  total =
      _mm256_fnmadd_ps(_mm256_mul_ps(factor, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(sums), total);
}
static inline __m256i add_scaled(__m256i acc, __m256i pairs, __m256i scale) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, scale));
}

// --- IQ4_XS ---

// Sixteen bytes hold a group of 32: its first half in their low nibbles, its second in the high
// ones.  So 32 bytes are the first halves of two groups and the second ones, and x's are brought
// into this order; x's magnitudes are multiplied by weights that have its signs.
struct PairsOfGroups {
  void put(const int8_t* q) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const __m256i a = load256(q + 64 * i), b = load256(q + 64 * i + 32);
      x[2 * i] = _mm256_permute2x128_si256(a, b, 0x20);
      x[2 * i + 1] = _mm256_permute2x128_si256(a, b, 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) size[i] = _mm256_abs_epi8(x[i]);
  }
  __m256i dot(int i, __m256i u) const {
    return _mm256_maddubs_epi16(size[i], _mm256_sign_epi8(u, x[i]));
  }
  __m256i x[8], size[8];
};
// The scales of eight groups in words, of two rows: four bits of each, and two above them.
static inline __m256i iq4_scales(const uint8_t* a, const uint8_t* b) {
  const auto header = [](const uint8_t* p) { return _mm_loadl_epi64((const __m128i*)p); };
  const __m256i both = _mm256_setr_m128i(header(a), header(b));
  const __m256i four = _mm256_shuffle_epi8(
      both, everywhere(_mm_setr_epi8(4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1)));
  const __m256i two = _mm256_shuffle_epi8(
      both, everywhere(_mm_setr_epi8(2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1)));
  // To bits 4 to 7, and 8 and 9.
  const __m256i low = _mm256_and_si256(
      _mm256_mullo_epi16(four, everywhere(_mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1))),
      _mm256_set1_epi16(0xf0));
  const __m256i high = _mm256_and_si256(
      _mm256_mullo_epi16(two, everywhere(_mm_setr_epi16(256, 64, 16, 4, 256, 64, 16, 4))),
      _mm256_set1_epi16(0x300));
  return _mm256_srai_epi16(_mm256_sub_epi16(_mm256_or_si256(low, high), _mm256_set1_epi16(32 << 4)),
                           4);
}

// Word 2 i in the lower half and 2 i + 1 in the upper one, of the first four.
constexpr WordOrders iq4_scale_orders([](int i, int n) { return 4 * i + n / 16 * 2 + n % 2; });

template <class B, int T>
static void few_iq4_xs(const FewTile& tile) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const __m256i mask = bytes_of(15), table = everywhere(load_as<__m128i>(table_of<B>().u));
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    PairsOfGroups x[T];
    for (int t = 0; t < T; t++) x[t].put(tile.x.q + (tile.t0 + t) * tile.x.in + b * 256);
    const __m256i scales[2] = {iq4_scales(p[0] + b * bytes, p[1] + b * bytes),
                               iq4_scales(p[2] + b * bytes, p[3] + b * bytes)};
    __m256i dots[T][4];
    each_of_four<B>(tile, p, b, [&](auto r, const uint8_t* at) __attribute__((always_inline)) {
      const __m256i own = half_twice<r() % 2>(scales[r() / 2]);
      for (int t = 0; t < T; t++) dots[t][r()] = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const __m256i q = load256(at + 8 + 32 * i);
        const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(q, mask));
        const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(moved_right(q, 4), mask));
        const __m256i scale = _mm256_shuffle_epi8(own, iq4_scale_orders[i]);
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
          dots[t][r()] = add_scaled(dots[t][r()], x[t].dot(2 * i, low), scale);
          dots[t][r()] = add_scaled(dots[t][r()], x[t].dot(2 * i + 1, high), scale);
        }
      }
    });
    add_block<B>(tile, p, b, dots, dots, total);
  });
}

// --- Q2_K and Q3_K ---

// Eight rows side by side, of which k and k + 4 are the halves of one vector.
static inline __m256i two_headers(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_as<__m128i>(a)), load_as<__m128i>(b),
                                 1);
}
// Words 0, 2, ... 14 in the first half, and the odd ones in the second.
static inline __m256i even_and_odd(__m256i words) {
  const __m256i order =
      everywhere(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, order), 0xd8);
}
// A constant that GCC does not make again from numbers wherever it is used.
static inline __m256i kept(__m256i v) { return in_order(v); }

// What differs.  headers() has the scales of two rows, and add() makes 16 times the sums of each
// row and token, which are 0 before: numbers are multiplied where they stand in their bytes, and
// the scales are multiplied by what is missing to 16.
template <class B>
struct PairsOf {};

template <>
struct PairsOf<BlockQ2_K> {
  struct Headers {
    __m256i both, scales;
  };
  Headers headers(const uint8_t* a, const uint8_t* b) const {
    const __m256i both = two_headers(a, b);
    return {both, _mm256_mullo_epi16(_mm256_and_si256(both, bytes_of(15)), missing)};
  }
  // Eight bytes of each of four groups: those of a block's first half and of its second in turn, of
  // both the first (n = 0) or second eight.  Their sums of two products fit 16 bits together.
  static __m256i eights(__m256i a, __m256i b, int n) {
    return n ? _mm256_unpackhi_epi64(a, b) : _mm256_unpacklo_epi64(a, b);
  }
  static __m256i x(const int8_t* q, int n, int j) {
    return eights(load256(q + 32 * j), load256(q + 128 + 32 * j), n);
  }
  static constexpr WordOrders orders{
      [](int j, int n) { return n % 2 ? no_byte : 2 * j + n / 16 + n % 16 / 8 * 8; }};
  __m256i u(__m256i q, int j) const {
    return _mm256_and_si256(j == 3 ? moved_right(q, 2) : q, masks[j < 3 ? j : 2]);
  }
  template <int T>
  void add(const Headers& of, const uint8_t* const (&rows)[2], const __m256i (&x)[T][8],
           const auto&, __m256i (&acc)[2][T]) const {
    const __m256i own[2] = {half_twice<0>(of.scales), half_twice<1>(of.scales)};
    __m256i q[2][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
      q[i / 2][i % 2] = eights(load256(rows[i / 2] + 16), load256(rows[i / 2] + 48), i % 2);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const __m256i order = in_order(orders[j]);
      const __m256i scale[2] = {_mm256_shuffle_epi8(own[0], order),
                                _mm256_shuffle_epi8(own[1], order)};
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const __m256i low = in_order(x[t][j]), high = in_order(x[t][4 + j]);
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
          const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(u(q[r][0], j), low),
                                                 _mm256_maddubs_epi16(u(q[r][1], j), high));
          acc[r][t] = in_order(add_scaled(acc[r][t], pairs, scale[r]));
        }
      }
    }
  }
  struct Sums {
    __m256i even, odd;
  };
  static Sums sums(const int16_t* of) {
    const __m256i words = even_and_odd(load256(of));
    return {half_twice<0>(words), half_twice<1>(words)};
  }
  static __m256i least(const Headers& of, const Sums& x) {
    const __m256i low = _mm256_and_si256(moved_right(of.both, 4), _mm256_set1_epi16(15));
    return add_scaled(_mm256_madd_epi16(low, x.even), moved_right(of.both, 12), x.odd);
  }
  const __m256i masks[3] = {kept(bytes_of(3)), kept(bytes_of(12)), kept(bytes_of(48))};
  const __m256i missing = kept(everywhere(_mm_setr_epi16(16, 4, 1, 1, 16, 4, 1, 1)));
};

template <>
struct PairsOf<BlockQ3_K> {
  using Headers = __m256i;
  // Less 32, in sixteen bytes of each row: those of even groups, and of odd ones.
  Headers headers(const uint8_t* a, const uint8_t* b) const {
    const __m256i both = two_headers(a + 94, b + 94);
    const __m256i low = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_shuffle_epi8(both, low_order), low_shifts), nibble);
    const __m256i high = _mm256_and_si256(  // to bits 6 and 7
        _mm256_mullo_epi16(_mm256_shuffle_epi8(both, high_order), high_shifts), bytes_of(-64));
    return _mm256_sub_epi8(_mm256_or_si256(low, moved_right(high, 2)), bytes_of(32));
  }
  static __m256i x(const int8_t* q, int n, int j) { return load256(q + 128 * n + 32 * j); }
  static constexpr WordOrders orders{[](int i, int n) { return 2 * i + n % 2; }};
  struct Half {
    __m256i two[2];
  };
  // Vectors 0 and 2, and 1 and 3: their third bits go to bits 2 and 6.
  Half half(const uint8_t* p, int n) const {
    const __m256i q = load256(p + 32 + 32 * n), bits = load256(p);
    const __m256i own = _mm256_and_si256(n ? moved_right(bits, 4) : bits, nibble);
    const auto with = [&](__m256i twos, __m256i thirds) {
      return _mm256_or_si256(_mm256_and_si256(twos, lower_two), thirds);
    };
    return {{with(q, _mm256_shuffle_epi8(even, own)),
             with(moved_right(q, 2), _mm256_shuffle_epi8(odd, own))}};
  }
  __m256i u(const Half& of, int j) const { return _mm256_and_si256(of.two[j % 2], masks[j / 2]); }
  template <int T>
  void add(const Headers& scales, const uint8_t* const (&rows)[2], const __m256i (&x)[T][8],
           const __m256i (&sums)[T], __m256i (&acc)[2][T]) const {
    __m256i own[2] = {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(scales)),
                      _mm256_cvtepi8_epi16(_mm256_extracti128_si256(scales, 1))};
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++) {
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) acc[r][t] = zero(own[r], sums[t]);
      own[r] = _mm256_mullo_epi16(own[r], missing);
    }
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++) {
      const Half of[2] = {half(rows[0], n), half(rows[1], n)};
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        const __m256i order = in_order(orders[4 * n + j]);
        const __m256i scale[2] = {_mm256_shuffle_epi8(own[0], order),
                                  _mm256_shuffle_epi8(own[1], order)};
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
          const __m256i own_x = in_order(x[t][4 * n + j]);
#pragma GCC unroll 2
          for (int r = 0; r < 2; r++)
            acc[r][t] =
                in_order(add_scaled(acc[r][t], _mm256_maddubs_epi16(u(of[r], j), own_x), scale[r]));
        }
      }
    }
  }
  using Sums = __m256i;
  static Sums sums(const int16_t* of) {
    return _mm256_mullo_epi16(even_and_odd(load256(of)), _mm256_set1_epi16(-4));
  }
  // What the zero, 4, is in 16 times the sums.
  static __m256i zero(__m256i own, Sums minus_four) {
    return _mm256_slli_epi32(_mm256_madd_epi16(own, minus_four), 4);
  }
  const __m256i masks[2] = {kept(bytes_of(7)), kept(bytes_of(0x70))};
  const __m256i lower_two = kept(bytes_of(0x33)), nibble = kept(bytes_of(15));
  const __m256i even =
      kept(everywhere(_mm_setr_epi8(0, 4, 0, 4, 64, 68, 64, 68, 0, 4, 0, 4, 64, 68, 64, 68)));
  const __m256i odd =
      kept(everywhere(_mm_setr_epi8(0, 0, 4, 4, 0, 0, 4, 4, 64, 64, 68, 68, 64, 64, 68, 68)));
  const __m256i missing = kept(everywhere(_mm_setr_epi16(16, 16, 1, 1, 16, 16, 1, 1)));
  const __m256i low_order =
      kept(everywhere(_mm_setr_epi8(2, 4, 6, 8, 2, 4, 6, 8, 3, 5, 7, 9, 3, 5, 7, 9)));
  const __m256i low_shifts = kept(everywhere(_mm_setr_epi32(0, 4, 0, 4)));
  const __m256i high_order = kept(
      everywhere(_mm_setr_epi8(10, 12, 10, 12, 10, 12, 10, 12, 11, 13, 11, 13, 11, 13, 11, 13)));
  const __m256i high_shifts = kept(everywhere(_mm_setr_epi16(64, 16, 4, 1, 64, 16, 4, 1)));
};
template <class B>
concept InPairs = requires { PairsOf<B>::orders; };
template <class B>
  requires(InPairs<B> || SixBits<B>)
constexpr int tile_of<B> = 8;

template <class B, int T>
static void few_pairs(const FewTile& tile) {
  const PairsOf<B> of;
  const int64_t n = tile.x.in / 256;
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    const int64_t at = b * block_shape(B::type).bytes, first = tile.t0 * n + b;
    typename PairsOf<B>::Sums sums[T];
    __m256i x[T][8], dots[T][8], least[T][4];
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      sums[t] = of.sums(tile.x.sums + (first + t * n) * 16);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) x[t][i] = of.x(tile.x.q + (first + t * n) * 256, i / 4, i % 4);
    }
#pragma GCC unroll 1
    for (int k = 0; k < 4; k++) {  // unrolled, it would keep everything on the stack
      const uint8_t* const rows[2] = {tile.block<B>(p[k], k, b), tile.block<B>(p[k + 4], k + 4, b)};
      const auto headers = of.headers(rows[0], rows[1]);
      __m256i acc[2][T] = {};
      of.add(headers, rows, x, sums, acc);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        dots[t][k] = acc[0][t], dots[t][k + 4] = acc[1][t];
        if constexpr (B::has_least) least[t][k] = of.least(headers, sums[t]);
      }
    }
    Factors factors;
    if constexpr (B::has_least)
      factors = eight_factors(p, at + B::d_at);
    else
      factors.d = eight_halves(p, at + B::d_at);
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      const float dx = tile.x.d[first + t * n];
      add_times(factors.d, dx, _mm256_srai_epi32(eight_sums(dots[t]), 4), total[t]);
      if constexpr (B::has_least)
        subtract_times(factors.m, dx,
                       _mm256_hadd_epi32(_mm256_hadd_epi32(least[t][0], least[t][1]),
                                         _mm256_hadd_epi32(least[t][2], least[t][3])),
                       total[t]);
    }
  });
}

}  // namespace aleator::ALEATOR_ISA
