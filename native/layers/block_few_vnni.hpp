// Products with few tokens of types of 256 elements: AVX-512 with VNNI.  Included by
// block_few.isa.cpp only.
#pragma once

#include <array>
#include <bit>
#include <type_traits>

#include "layers/block_dots.hpp"
#include "layers/block_linear.hpp"

namespace aleator::ALEATOR_ISA {

// --- IQ4_XS ---

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
static void few_iq4_xs(const FewTile& tile) {
  const __m512i none = _mm512_setzero_si512(), zero = _mm512_set1_epi8(int8_t(B::zero));
  const __m512i four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i other_four = _mm512_add_epi32(four, _mm512_set1_epi32(4));
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    HalvesOfGroups xs[T][2];
    __m512i off[T][2];  // what `zero` is in a sum, the same for every row
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
      for (int k = 0; k < 2; k++) {
        xs[t][k] = halves_of_groups(tile.x.q + (tile.t0 + t) * tile.x.in + b * 256 + 128 * k);
        off[t][k] = _mm512_sub_epi32(none, halves_dot(none, {zero, zero}, xs[t][k]));
      }
    __m256i dots[T][4];
    each_of_four<B>(tile, p, b, [&](auto r, const uint8_t* at) __attribute__((always_inline)) {
      const HalvesOfGroups u[2] = {iq4_halves(at + 8), iq4_halves(at + 72)};
      const __m512i scales = extended(iq4_scales(at));
      const __m512i scale[2] = {_mm512_maskz_permutexvar_epi32(0xffff, four, scales),
                                _mm512_maskz_permutexvar_epi32(0xffff, other_four, scales)};
#pragma GCC unroll 4
      for (int t = 0; t < T; t++)
        dots[t][r()] = narrow(
            _mm512_add_epi32(_mm512_mullo_epi32(halves_dot(off[t][0], u[0], xs[t][0]), scale[0]),
                             _mm512_mullo_epi32(halves_dot(off[t][1], u[1], xs[t][1]), scale[1])));
    });
    add_block<B>(tile, p, b, dots, dots, total);
  });
}

// --- Q4_K and Q5_K, whose scales have six bits ---

// A block begins with 16 bytes: d, dmin, and 12 with the scales and least values.  Its elements are
// eight groups of 32, one nibble of each in turn, and come in vectors of two groups each:
// 0 and 2, 1 and 3, 4 and 6, 5 and 7.
template <class B>
static inline void group_vectors(const uint8_t* p, __m512i (&u)[4]) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) {
    const __m512i q = load_as<__m512i>(p + B::nibbles_of_groups_at + 64 * g);
    u[2 * g] = _mm512_and_si512(q, mask);
    u[2 * g + 1] = _mm512_and_si512(_mm512_srli_epi16(q, 4), mask);
  }
  if constexpr (B::fifths_of_groups_at != 0) {
    const vu8x32 fifths = load_as<vu8x32>(p + B::fifths_of_groups_at);
    const auto add = [&](__m512i& v, vu8x64 bits) {
      v = _mm512_or_si512(v, reinterpret<__m512i>(bits & 16));
    };
    add(u[0], moved(fifths, -4, -2)), add(u[1], moved(fifths, -3, -1));
    add(u[2], moved(fifths, 0, 2)), add(u[3], moved(fifths, 1, 3));
  }
}
// Sixteen bytes of each of four rows.
static inline __m512i four_headers(const uint8_t* const (&p)[4], int64_t at) {
  const auto header = [&](int r) { return load_as<__m128i>(p[r] + at); };
  __m512i v = _mm512_maskz_inserti32x4(0xffff, _mm512_setzero_si512(), header(0), 0);
  v = _mm512_maskz_inserti32x4(0xffff, v, header(1), 1);
  v = _mm512_maskz_inserti32x4(0xffff, v, header(2), 2);
  return _mm512_maskz_inserti32x4(0xffff, v, header(3), 3);
}
static inline __m512i each_row(__m128i v) { return _mm512_maskz_broadcast_i32x4(0xffff, v); }
// Of each row's header: eight bytes with the scales, and eight with the least values.
static inline __m512i scales_and_least(__m512i header) {
  constexpr auto order = [](int a, int b, int c, int d) {
    return _MM_PERM_ENUM(a | b << 2 | c << 4 | d << 6);
  };
  // The 12 bytes as three numbers a, b, c.  Six bits of a and b stand in one byte; of the other
  // scales four stand in c and two in a, of the other least values in c and b.
  const __m512i acbc = _mm512_maskz_shuffle_epi32(0xffff, header, order(1, 3, 2, 3));
  const __m512i _a_b = _mm512_maskz_shuffle_epi32(0xffff, header, order(0, 1, 0, 2));
  const __m512i low =
      _mm512_and_si512(_mm512_maskz_srlv_epi32(0xffff, acbc, each_row(_mm_setr_epi32(0, 0, 0, 4))),
                       each_row(_mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)));
  const __m512i two = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, _a_b, 2),
                                       each_row(_mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
  return _mm512_or_si512(low, two);
}
// The products of four vectors, each pair's sums times its scales; four products of 63 * 127 at
// most fit 16 bits.
static inline __m512i scaled_dots(const __m512i (&u)[4], const __m512i (&x)[4],
                                  const __m512i (&scale)[2]) {
  const __m512i zero = _mm512_setzero_si512();
  __m512i acc = zero;
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++)
    acc = _mm512_dpwssd_epi32(
        acc,
        _mm512_packs_epi32(_mm512_dpbusd_epi32(zero, u[2 * g], x[2 * g]),
                           _mm512_dpbusd_epi32(zero, u[2 * g + 1], x[2 * g + 1])),
        scale[g]);
  return acc;
}
// Lane 0 of each of the four parts of 128 bits.
static inline __m128i first_lanes(__m512i v) {
  const __m512i own = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  const __m512i all = _mm512_maskz_permutexvar_epi32(0xffff, own, v);
  return __builtin_shufflevector(all, all, 0, 1);
}
// Where the scales of two neighbouring vectors' sums stand, as `packs` puts these: four of one,
// four of the other.
static inline __m512i scale_order(int first) {
  const auto four = [&](int group) {
    return int64_t(uint64_t(0x0001000100010001) * uint64_t(0x8000 | (first + group)));
  };
  return _mm512_setr_epi64(four(0), four(1), four(0), four(1), four(2), four(3), four(2), four(3));
}

template <class B, int T>
static void few_six_bits(const FewTile& tile) {
  const Rounded& x = tile.x;
  const int64_t t0 = tile.t0;
  const __m512i zero = _mm512_setzero_si512();
  const __m512i order[2] = {scale_order(0), scale_order(4)};
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    const __m512i header = four_headers(p, b * block_shape(B::type).bytes);
    const __m512i six = scales_and_least(header);
    __m512i xs[T][4];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const int8_t* q = x.q + (t0 + t) * x.in + b * 256;
      xs[t][0] = two_groups(q, q + 64), xs[t][1] = two_groups(q + 32, q + 96);
      xs[t][2] = two_groups(q + 128, q + 192), xs[t][3] = two_groups(q + 160, q + 224);
    }
    __m256i dots[T][4];
    each_of_four<B>(tile, p, b, [&](auto r, const uint8_t* at) __attribute__((always_inline)) {
      __m512i u[4];
      group_vectors<B>(at, u);
      const __m512i own = _mm512_maskz_shuffle_i32x4(0xffff, six, six, r() * 0x55);
      const __m512i scale[2] = {_mm512_shuffle_epi8(own, order[0]),
                                _mm512_shuffle_epi8(own, order[1])};
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) dots[t][r()] = narrow(scaled_dots(u, xs[t], scale));
    });
    const __m512i least = _mm512_unpackhi_epi8(six, zero);
    const __m256 both = _mm256_cvtph_ps(first_lanes(header));  // d and dmin in turn
    const __m128 low = _mm256_castps256_ps128(both), high = _mm256_extractf128_ps(both, 1);
    const __m128 d = _mm_shuffle_ps(low, high, 0x88), dmin = _mm_shuffle_ps(low, high, 0xdd);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const int64_t at = (t0 + t) * (x.in / 256) + b;
      const int16_t* sums = x.sums + at * 16;
      const __m512i of_groups =
          each_row(_mm_hadd_epi16(load_as<__m128i>(sums), load_as<__m128i>(sums + 8)));
      __m512i off = _mm512_dpwssd_epi32(zero, least, of_groups);
      off = _mm512_add_epi32(off, _mm512_maskz_shuffle_epi32(0xffff, off, _MM_PERM_ENUM(0x4e)));
      off = _mm512_add_epi32(off, _mm512_maskz_shuffle_epi32(0xffff, off, _MM_PERM_ENUM(0xb1)));
      const __m128 dx = _mm_set1_ps(x.d[at]);
      total[t] = _mm_fmadd_ps(_mm_mul_ps(d, dx), row_sums(dots[t]), total[t]);
      total[t] = _mm_fnmadd_ps(_mm_mul_ps(dmin, dx), _mm_cvtepi32_ps(first_lanes(off)), total[t]);
    }
  });
}

// --- types whose scales belong to groups of 16 elements ---

// A type's groups come in four vectors of four: as they follow one another, or (`halves`) two of
// the block's first half and two of its second.
template <class B>
struct SixteensOf {};
template <>
struct SixteensOf<BlockQ6_K> {
  static constexpr bool halves = false;
  static __m256i scales(const uint8_t* p) {
    return _mm256_cvtepi8_epi16(load_as<__m128i>(p + 192));
  }
  static void unpack(const uint8_t* p, __m512i (&u)[4]) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const vu8x32 first = load_as<vu8x32>(p + 128), second = load_as<vu8x32>(p + 160);
    const auto two = [](vu8x64 bits) { return reinterpret<__m512i>(bits & 48); };
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++) {
      const __m512i q = load_as<__m512i>(p + 64 * n);
      const vu8x32 high = n ? second : first;
      u[2 * n] = _mm512_or_si512(_mm512_and_si512(q, nibble), two(moved(high, -4, -2)));
      u[2 * n + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(q, 4), nibble),
                                     two(moved(high, 0, 2)));
    }
  }
};
template <>
struct SixteensOf<BlockQ2_K> {
  static constexpr bool halves = true;
  static __m256i scales(const uint8_t* p) {
    return _mm256_and_si256(_mm256_cvtepu8_epi16(load_as<__m128i>(p)), _mm256_set1_epi16(15));
  }
  static __m256i least(const uint8_t* p) {
    return _mm256_srli_epi16(_mm256_cvtepu8_epi16(load_as<__m128i>(p)), 4);
  }
  static void unpack(const uint8_t* p, __m512i (&u)[4]) {
    const __m512i q = load_as<__m512i>(p + 16), two = _mm512_set1_epi8(3);
    u[0] = _mm512_and_si512(q, two), u[1] = _mm512_and_si512(_mm512_srli_epi16(q, 2), two);
    u[2] = _mm512_and_si512(_mm512_srli_epi16(q, 4), two);
    u[3] = _mm512_and_si512(_mm512_srli_epi16(q, 6), two);
  }
};
template <>
struct SixteensOf<BlockQ3_K> {
  static constexpr bool halves = true;
  static __m256i scales(const uint8_t* p) {
    return _mm256_sub_epi16(_mm256_cvtepu8_epi16(reinterpret<__m128i>(BlockQ3_K::scales(p))),
                            _mm256_set1_epi16(32));
  }
  static void unpack(const uint8_t* p, __m512i (&u)[4]) {
    const __m512i q = load_as<__m512i>(p + 32), two = _mm512_set1_epi8(3);
    // Bit k of a byte is vector k's third.
    const __m512i high = reinterpret<__m512i>(moved(load_as<vu8x32>(p), 0, 4));
    const auto third = [](__m512i bits) { return _mm512_and_si512(bits, _mm512_set1_epi8(4)); };
    const auto with = [&](__m512i low, __m512i bits) {
      return _mm512_or_si512(_mm512_and_si512(low, two), third(bits));
    };
    u[0] = with(q, _mm512_slli_epi16(high, 2));
    u[1] = with(_mm512_srli_epi16(q, 2), _mm512_slli_epi16(high, 1));
    u[2] = with(_mm512_srli_epi16(q, 4), high);
    u[3] = with(_mm512_srli_epi16(q, 6), _mm512_srli_epi16(high, 1));
  }
};
template <class B>
concept Sixteens = requires { SixteensOf<B>::halves; };

// The scales of vectors 2 * pair and 2 * pair + 1, as `packs` puts their sums: four of one, four of
// the other.
template <class S>
static inline __m512i scale_order_of_sixteens(int pair) {
  const auto group = [&](int vector, int i) {
    return S::halves ? 2 * vector + i % 2 + i / 2 * 8 : 4 * vector + i;
  };
  const auto four = [&](int i) {
    const int64_t each = 0x0001000100010001;
    return std::array{each * group(2 * pair, i), each * group(2 * pair + 1, i)};
  };
  const auto a = four(0), b = four(1), c = four(2), d = four(3);
  return _mm512_setr_epi64(a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]);
}

template <class B, int T>
static void few_sixteens(const FewTile& tile) {
  using S = SixteensOf<B>;
  const __m512i order[2] = {scale_order_of_sixteens<S>(0), scale_order_of_sixteens<S>(1)};
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    __m512i xs[T][4];
    __m256i sums[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const int64_t at = (tile.t0 + t) * (tile.x.in / 256) + b;
      const int8_t* q = tile.x.q + at * 256;
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++)
        xs[t][k] =
            S::halves ? two_groups(q + 32 * k, q + 128 + 32 * k) : load_as<__m512i>(q + 64 * k);
      sums[t] = load256(tile.x.sums + at * 16);
    }
    __m256i dots[T][4], least[T][4];
    each_of_four<B>(tile, p, b, [&](auto r, const uint8_t* at) __attribute__((always_inline)) {
      __m512i u[4];
      S::unpack(at, u);
      const __m256i scales = S::scales(at);
      const __m512i scale[2] = {_mm512_permutexvar_epi16(order[0], extended(scales)),
                                _mm512_permutexvar_epi16(order[1], extended(scales))};
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        dots[t][r()] = narrow(scaled_dots(u, xs[t], scale));
        if constexpr (B::zero != 0)
          dots[t][r()] = _mm256_sub_epi32(dots[t][r()],
                                          _mm256_slli_epi32(_mm256_madd_epi16(scales, sums[t]),
                                                            std::countr_zero(unsigned(B::zero))));
        if constexpr (B::has_least) least[t][r()] = _mm256_madd_epi16(S::least(at), sums[t]);
      }
    });
    add_block<B>(tile, p, b, dots, least, total);
  });
}

}  // namespace aleator::ALEATOR_ISA
