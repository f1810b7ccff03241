// Products on AVX2 and AVX-512, and what they share: sums of products of bytes in vectors of 256
// bits.  Included by block_*.isa.cpp only.
#pragma once

#include <immintrin.h>

#include "layers/block_linear.hpp"
#include "layers/block_types.hpp"

namespace aleator::ALEATOR_ISA {

// block_rows with few tokens, or with many.
void block_few(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
               int64_t y_stride);
void block_many(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride);

// v3 multiplies bytes in pairs that would not fit 16 bits where u goes to 255: such types are taken
// as signed there, and have no zero to subtract.
#if defined(ALEATOR_ISA_v4)
template <class B>
constexpr int zero_of = B::zero;
#else
template <class B>
constexpr int zero_of = B::wide ? 0 : B::zero;
#endif

static inline __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// How many vectors of sums of two products of bytes may be added in 16 bits: a power of two of
// them, and at most `most`.
template <class B>
constexpr int added_at_once(int most) {
  int fit = 1;
  if constexpr (!B::wide) fit = 32767 / (2 * 127 * B::top);
  int n = 1;
  while (2 * n <= most && 2 * n <= fit) n *= 2;
  return n;
}

#if !defined(ALEATOR_ISA_v4)
// Products of bytes, in sums of two: 16 lanes. Of signed bytes x's may not be -128.
template <bool is_signed>
static inline __m256i two_products(__m256i u, __m256i x) {
  if constexpr (!is_signed) return _mm256_maddubs_epi16(u, x);
  return _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(x, u));
}
// Keeps GCC from adding up in another order, for which all the products would have to be kept.
static inline __m256i in_order(__m256i v) {
  asm("" : "+x"(v));
  return v;
}
template <class B>
static inline __m256i pair_dots(__m256i u, __m256i x) {
  return two_products<B::wide>(B::wide ? _mm256_xor_si256(u, _mm256_set1_epi8(-128)) : u, x);
}
#endif
// The same in sums of four: 8 lanes.
template <class B>
static inline __m256i dot8(__m256i acc, __m256i u, __m256i x) {
#if defined(ALEATOR_ISA_v4)
  return _mm256_dpbusd_epi32(acc, u, x);
#else
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pair_dots<B>(u, x), _mm256_set1_epi16(1)));
#endif
}

// u * x + v * y, in sums of four; u and v as two_rows has them.
template <class B>
static inline __m256i two_dots(__m256i u, __m256i x, __m256i v, __m256i y) {
#if defined(ALEATOR_ISA_v4)
  return dot8<B>(dot8<B>(_mm256_setzero_si256(), u, x), v, y);
#else
  const auto fours = [](__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); };
  if constexpr (B::wide) {  // x's signs go to u and v, of which nothing is -128
    return _mm256_add_epi32(fours(two_products<true>(x, u)), fours(two_products<true>(y, v)));
  } else {
    static_assert(4 * 127 * B::top <= 32767);  // four products fit 16 bits
    return fours(_mm256_add_epi16(_mm256_maddubs_epi16(u, x), _mm256_maddubs_epi16(v, y)));
  }
#endif
}

// The lanes' sums of four or eight vectors.
static inline __m256i pair_sums(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
static inline __m256i four_sums(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = pair_sums(a, b), cd = pair_sums(c, d);
  return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}
static inline __m256i eight_sums(const __m256i (&v)[8]) {
  const __m256i a = four_sums(v[0], v[1], v[2], v[3]), b = four_sums(v[4], v[5], v[6], v[7]);
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}
static inline __m128i halves_sum(__m256i v) {
  return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

// The lanes' sums of four rows' vectors.
static inline __m128 row_sums(const __m256i (&v)[4]) {
  return _mm_cvtepi32_ps(halves_sum(four_sums(v[0], v[1], v[2], v[3])));
}

static inline __m128 four_halves(const uint8_t* const (&p)[4], int64_t at) {
  const auto h = [&](int r) { return load_as<int16_t>(p[r] + at); };
  return _mm_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), 0, 0, 0, 0));
}

// Eight rows, of which the last may be the same.
static inline __m256 eight_halves(const uint8_t* const (&p)[8], int64_t at) {
  const auto h = [&](int r) { return load_as<int16_t>(p[r] + at); };
  return _mm256_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7)));
}

// Powers of 2 by the bytes of eight rows: see scale_of.
static inline __m256 eight_powers(const uint8_t* const (&p)[8], int64_t at) {
  const auto byte = [&](int r) { return char(p[r][at]); };
  const __m256i e =
      _mm256_cvtepu8_epi32(_mm_setr_epi8(byte(0), byte(1), byte(2), byte(3), byte(4), byte(5),
                                         byte(6), byte(7), 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i two = _mm256_set1_epi32(2), tiny = _mm256_set1_epi32(0x00200000);
  return _mm256_castsi256_ps(
      _mm256_max_epi32(normal, _mm256_sllv_epi32(tiny, _mm256_min_epi32(e, two))));
}
template <class B>
static inline __m256 eight_scales(const uint8_t* const (&p)[8], int64_t at) {
  return B::type == Stored::mxfp4 ? eight_powers(p, at) : eight_halves(p, at);
}

// d and m of eight rows, which follow one another.
struct Factors {
  __m256 d, m;
};
[[maybe_unused]] static inline Factors factors_of(__m256i both) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(both, order), 0xd8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
static inline Factors eight_factors(const uint8_t* const (&p)[8], int64_t at) {
  const auto four = [&](int r) {
    const auto both = [&](int i) { return load_as<int32_t>(p[r + i] + at); };
    return _mm_setr_epi32(both(0), both(1), both(2), both(3));
  };
  return factors_of(_mm256_setr_m128i(four(0), four(4)));
}

// Types of which unpack() reads nibbles, those with fifth bits, and those that look them up in a
// table.
template <class B>
concept Nibbles = requires { B::nibbles_at; };
template <class B>
concept WithFifths = Nibbles<B> && B::fifths_at != 0;
template <class B>
concept LookedUp = requires { B::table; };
// As the products take them: without zero where zero_of says so.
template <class B>
constexpr const Table& table_of() {
  if constexpr (zero_of<B> != B::zero) return signed_iq4_table;
  return B::table;
}

// Halves added.
#if defined(ALEATOR_ISA_v4)
// By shuffles: GCC 12 takes the casts' undefined halves for uninitialised variables.
static inline __m512i extended(__m256i v) {
  return __builtin_shufflevector(v, _mm256_setzero_si256(), 0, 1, 2, 3, 4, 5, 6, 7);
}
static inline __m512i two_groups(const int8_t* a, const int8_t* b) {
  const __m256i low = load256(a), high = load256(b);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
static inline __m256i narrow(__m512i v) {
  return _mm256_add_epi32(__builtin_shufflevector(v, v, 0, 1, 2, 3),
                          __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
#endif

// --- rows as they lie, for few tokens ---

// Rows [row, row + rows) of W and some tokens from t0 on.
struct FewTile {
  const Weights& w;
  int64_t row, rows;
  Asked asked;
  const Rounded& x;
  int64_t t0;
  float* y;
  int64_t y_stride;

  // The last row is read again in place of those that there are not.
  template <int n>
  void point(const uint8_t* (&p)[n]) const {
    for (int r = 0; r < n; r++) p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  }
  // Asks for memory of a later row, so many bytes into it. With AVX-512 each row's is equally far
  // from it, which leaves registers to others.
  void ask(const uint8_t* row_at, int r, int64_t at) const {
    const uint8_t* later = lanes == 16 ? row_at + (asked.first - (w.data + row * w.row_bytes))
                                       : asked.first + r * asked.apart;
    ask_for_later(later + at);
  }
  // Asks for so many bytes of what comes later, `at` bytes on.
  void ask_in_order(int64_t at, int64_t bytes) const {
    for (int64_t i = 0; i < bytes; i += 64) ask_onward(asked.first + at + i);
  }
  // Block b of row r; memory is asked for one of a later row.
  template <class B>
  const uint8_t* block(const uint8_t* row_at, int r, int64_t b) const {
    constexpr int64_t bytes = block_shape(B::type).bytes;
    const uint8_t* later = asked.first + r * asked.apart + b * bytes * asked.along;
    for (int64_t i = 0; i < bytes; i += 64) {
      if (asked.in_order())
        ask_onward(later + i);
      else
        ask_for_later(later + i);
    }
    return row_at + b * bytes;
  }
  // T tokens' sums with the rows, and the bias.
  template <int T, class V>
  void store(const V (&total)[T]) const {
    for (int t = 0; t < T; t++) {
      float out[sizeof(V) / sizeof(float)];
      std::memcpy(out, &total[t], sizeof out);
      for (int r = 0; r < rows; r++)
        y[(t0 + t) * y_stride + row + r] = w.bias ? out[r] + w.bias[row + r] : out[r];
    }
  }
};

// The sums of T tokens with four rows: block(p, b, total) adds block b of 256 elements.
template <int T, class Block>
static inline __attribute__((always_inline)) void four_rows(const FewTile& tile, Block&& block) {
  const uint8_t* p[4];
  tile.point(p);
  __m128 total[T];
  for (__m128& sum : total) sum = _mm_setzero_ps();
  const int64_t n = tile.x.in / 256;
  for (int64_t b = 0; b < n; b++) block(p, b, total);
  tile.store(total);
}
// f(r, block b of row r) for four rows.
template <class B, class F>
static inline __attribute__((always_inline)) void each_of_four(const FewTile& tile,
                                                               const uint8_t* const (&p)[4],
                                                               int64_t b, F&& f) {
  const auto row = [&](auto r)
                       __attribute__((always_inline)) { f(r, tile.block<B>(p[r()], r(), b)); };
  row(std::integral_constant<int, 0>()), row(std::integral_constant<int, 1>());
  row(std::integral_constant<int, 2>()), row(std::integral_constant<int, 3>());
}
template <class B>
static inline __m128 four_scales(const uint8_t* const (&p)[4], int64_t at) {
  if constexpr (!requires { B::d(p[0]); }) return four_halves(p, at + B::d_at);
  return _mm_setr_ps(large_scale_of<B>(p[0] + at), large_scale_of<B>(p[1] + at),
                     large_scale_of<B>(p[2] + at), large_scale_of<B>(p[3] + at));
}
// total += d * the rows' sums of dots, less dmin * those of least, both times x's d.
template <class B, int T>
static inline __attribute__((always_inline)) void add_block(const FewTile& tile,
                                                            const uint8_t* const (&p)[4], int64_t b,
                                                            const __m256i (&dots)[T][4],
                                                            const __m256i (&least)[T][4],
                                                            __m128 (&total)[T]) {
  const int64_t at = b * block_shape(B::type).bytes, n = tile.x.in / 256;
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) {
    const __m128 dx = _mm_set1_ps(tile.x.d[(tile.t0 + t) * n + b]);
    total[t] = _mm_fmadd_ps(_mm_mul_ps(four_scales<B>(p, at), dx), row_sums(dots[t]), total[t]);
    if constexpr (B::has_least)
      total[t] = _mm_fnmadd_ps(_mm_mul_ps(four_halves(p, at + B::dmin_at), dx), row_sums(least[t]),
                               total[t]);
  }
}

}  // namespace aleator::ALEATOR_ISA
