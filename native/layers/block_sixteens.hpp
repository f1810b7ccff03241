// Products with few tokens of types whose scales belong to groups of 16 elements: AVX-512 with
// VNNI. Included by block_few.hpp only.
#pragma once

#include <array>
#include <bit>

#include "layers/block_dots.hpp"
#include "layers/block_linear.hpp"

namespace aleator::ALEATOR_ISA {

// A type's groups come in four vectors of four: as they follow one another, or (`halves`) two of
// the block's first half and two of its second.
struct SixteensQ6_K {
  static constexpr bool halves = false, has_least = false;
  static constexpr int zero = 32;
  static constexpr int64_t d_at = 208, dmin_at = 0;
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
struct SixteensQ2_K {
  static constexpr bool halves = true, has_least = true;
  static constexpr int zero = 0;
  static constexpr int64_t d_at = 80, dmin_at = 82;
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
struct SixteensQ3_K {
  static constexpr bool halves = true, has_least = false;
  static constexpr int zero = 4;
  static constexpr int64_t d_at = 108, dmin_at = 0;
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
struct SixteensOf {};
template <>
struct SixteensOf<BlockQ2_K> {
  using Type = SixteensQ2_K;
};
template <>
struct SixteensOf<BlockQ3_K> {
  using Type = SixteensQ3_K;
};
template <>
struct SixteensOf<BlockQ6_K> {
  using Type = SixteensQ6_K;
};
template <class B>
concept Sixteens = requires { typename SixteensOf<B>::Type; };

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
static void few_sixteens(const Weights& w, int64_t row, int64_t rows, int64_t ahead,
                         const Rounded& x, int64_t t0, float* y, int64_t y_stride) {
  using S = typename SixteensOf<B>::Type;
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const uint8_t* p[4];
  for (int r = 0; r < 4; r++) p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  __m128 total[T];
  for (int t = 0; t < T; t++) total[t] = _mm_setzero_ps();
  const int64_t n = x.in / 256;
  const __m512i zero = _mm512_setzero_si512();
  const __m512i order[2] = {scale_order_of_sixteens<S>(0), scale_order_of_sixteens<S>(1)};
  for (int64_t b = 0; b < n; b++) {
    __m512i xs[T][4];
    __m256i sums[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const int8_t* q = x.q + (t0 + t) * x.in + b * 256;
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++)
        xs[t][k] =
            S::halves ? two_groups(q + 32 * k, q + 128 + 32 * k) : load_as<__m512i>(q + 64 * k);
      sums[t] = load256(x.sums + ((t0 + t) * n + b) * 16);
    }
    __m256i dots[T][4], least[T][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      const uint8_t* at = p[r] + b * bytes;
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + ahead + line, 0, 2);
      __m512i u[4];
      S::unpack(at, u);
      const __m256i scales = S::scales(at);
      const __m512i scale[2] = {_mm512_permutexvar_epi16(order[0], extended(scales)),
                                _mm512_permutexvar_epi16(order[1], extended(scales))};
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        __m512i acc = zero;
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++)  // four products of 63 * 127 at most fit 16 bits
          acc = _mm512_dpwssd_epi32(
              acc,
              _mm512_packs_epi32(_mm512_dpbusd_epi32(zero, u[2 * g], xs[t][2 * g]),
                                 _mm512_dpbusd_epi32(zero, u[2 * g + 1], xs[t][2 * g + 1])),
              scale[g]);
        dots[t][r] = narrow(acc);
        if constexpr (S::zero != 0)
          dots[t][r] =
              _mm256_sub_epi32(dots[t][r], _mm256_slli_epi32(_mm256_madd_epi16(scales, sums[t]),
                                                             std::countr_zero(unsigned(S::zero))));
        if constexpr (S::has_least) least[t][r] = _mm256_madd_epi16(S::least(at), sums[t]);
      }
    }
    const __m128 d = four_halves(p, b * bytes + S::d_at);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const __m128 dx = _mm_set1_ps(x.d[(t0 + t) * n + b]);
      const auto sum = [](const __m256i(&v)[4]) {
        return _mm_cvtepi32_ps(halves_sum(four_sums(v[0], v[1], v[2], v[3])));
      };
      total[t] = _mm_fmadd_ps(_mm_mul_ps(d, dx), sum(dots[t]), total[t]);
      if constexpr (S::has_least)
        total[t] = _mm_fnmadd_ps(_mm_mul_ps(four_halves(p, b * bytes + S::dmin_at), dx),
                                 sum(least[t]), total[t]);
    }
  }
  store_four_rows(total, w, row, rows, y + t0 * y_stride, y_stride);
}

}  // namespace aleator::ALEATOR_ISA
