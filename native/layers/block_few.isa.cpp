// Products with few tokens on AVX2 and AVX-512: rows of W are read as they lie.
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
#include <type_traits>

#include "layers/block_nibbles.hpp"
#include "layers/lanes16.hpp"
#if defined(ALEATOR_ISA_v4)
#include "layers/block_few_vnni.hpp"
#else
#include "layers/block_few_six_bits.hpp"
#endif

namespace aleator::ALEATOR_ISA {

// Two rows of nibbles fill a vector, whose halves are elements 0 to 15, or 16 to 31, of rows k and
// k + 4: the nibbles need not be brought into order.
struct TwoRows {
  __m256i low, high;
};
template <class B>
static inline TwoRows two_rows(const uint8_t* a, const uint8_t* b) {
  const __m256i q =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load_as<__m128i>(a + B::nibbles_at)),
                              load_as<__m128i>(b + B::nibbles_at), 1);
  const __m256i mask = _mm256_set1_epi8(15);
  TwoRows of{_mm256_and_si256(q, mask), _mm256_and_si256(_mm256_srli_epi16(q, 4), mask)};
  if constexpr (LookedUp<B>) {
    const __m256i table = _mm256_broadcastsi128_si256(load_as<__m128i>(table_of<B>().u));
    of.low = _mm256_shuffle_epi8(table, of.low), of.high = _mm256_shuffle_epi8(table, of.high);
  }
  if constexpr (WithFifths<B>) {
    const auto fifths = [](const uint8_t* p) { return load_as<uint32_t>(p + B::fifths_at); };
    const uint32_t first = fifths(a), second = fifths(b);
    const auto with = [](__m256i v, uint32_t bits) {
      return reinterpret<__m256i>(with_fifth(reinterpret<vu8x32>(v), bits));
    };
    of.low = with(of.low, (first & 0xffff) | second << 16);
    of.high = with(of.high, first >> 16 | (second & 0xffff0000));
  }
  return of;
}

#if !defined(ALEATOR_ISA_v4)
// Integer products of block b of eight rows with that of T tokens, a row in each lane: with fifth
// bits that takes fewer operations than sums over lanes.
template <class B, int T>
static inline void dots_of_fifths(const FewTile& tile, Rows p, int64_t b, __m256i (&dots)[T]) {
  const Rounded& x = tile.x;
  const int8_t* q = x.q + tile.t0 * x.in + b * 32;
  const NibblesOfRows<B> w(p, b * block_shape(B::type).bytes);
  static_assert(added_at_once<B>(8) == 4);
  for (int t = 0; t < T; t++) dots[t] = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    __m256i pairs[T];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      const int i = 2 * half + k / 2 + k % 2 * 4;  // both nibbles of the same bytes in turn
      const auto u = reinterpret<__m256i>(w.four(i));
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const auto x4 = _mm256_set1_epi32(load_as<int32_t>(q + t * x.in + 4 * i));
        const __m256i two = _mm256_maddubs_epi16(u, x4);
        pairs[t] = k == 0 ? two : in_order(_mm256_add_epi16(pairs[t], two));
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
      dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(pairs[t], _mm256_set1_epi16(1)));
  }
}
#endif

// Integer products of block b of eight rows with that of T tokens.
template <class B, int T>
static inline void eight_dots(const FewTile& tile, const uint8_t* const (&p)[8], int64_t b,
                              __m256i (&dots)[T]) {
  const Rounded& x = tile.x;
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const int64_t at = b * bytes;
  if ((lanes == 8 || T == 1) && tile.asked.in_order())
    tile.ask_in_order(8 * at, 8 * bytes);
  else if (2 * bytes > 64 || b % 2 == 0)  // once for a line
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) tile.ask(p[r], r, at);
  const int8_t* q = x.q + tile.t0 * x.in + b * 32;
#if !defined(ALEATOR_ISA_v4)
  if constexpr (WithFifths<B>) return dots_of_fifths<B>(tile, p, b, dots);
#endif
  if constexpr (Nibbles<B>) {
    __m256i pairs[T][4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      const TwoRows u = two_rows<B>(p[k] + at, p[k + 4] + at);
      const auto twice = [](const int8_t* from) {
        return _mm256_broadcastsi128_si256(load_as<__m128i>(from));
      };
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        pairs[t][k] = two_dots<B>(u.low, twice(q + t * x.in), u.high, twice(q + t * x.in + 16));
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
      dots[t] = four_sums(pairs[t][0], pairs[t][1], pairs[t][2], pairs[t][3]);
  } else {
    __m256i rows[T][8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
      const __m256i u = reinterpret<__m256i>(B::unpack(p[r] + at));
#pragma GCC unroll 4
      for (int t = 0; t < T; t++)
        rows[t][r] = dot8<B>(_mm256_setzero_si256(), u, load256(q + t * x.in));
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) dots[t] = eight_sums(rows[t]);
  }
}

template <class B, int T>
static void few_small(const FewTile& tile) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const Rounded& x = tile.x;
  const int64_t t0 = tile.t0, n = x.in / 32;
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    __m256i dots[T];
    eight_dots<B, T>(tile, p, b, dots);
    Factors factors;
    if constexpr (B::has_m)
      factors = eight_factors(p, b * bytes);
    else
      factors.d = eight_scales<B>(p, b * bytes);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const float dx = x.d[(t0 + t) * n + b];
      const int32_t sum = sum32(x.sums + (t0 + t) * 2 * n + 2 * b);
      __m256i dot = dots[t];
      if constexpr (zero_of<B> != 0)
        dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(zero_of<B> * sum));
      total[t] = _mm256_fmadd_ps(_mm256_mul_ps(factors.d, _mm256_set1_ps(dx)),
                                 _mm256_cvtepi32_ps(dot), total[t]);
      if constexpr (B::has_m)
        total[t] = _mm256_fmadd_ps(factors.m, _mm256_set1_ps(dx * float(sum)), total[t]);
    }
  });
}

// Sum over a block of 256 of scale * (u - zero) * x, in lanes.
template <class B>
static inline __m256i dot_large(const Parts& w, const int8_t* x, __m256i sums) {
  const __m256i scale = load256(w.scale);
#if defined(ALEATOR_ISA_v4)
  __m512i both = _mm512_setzero_si512();
  const __m512i wide = _mm512_maskz_cvtepi16_epi32(0xffff, scale);
  const __m512i own = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
#pragma GCC unroll 4
  for (int g = 0; g < 4; g++) {
    const __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), load_as<__m512i>(w.u + 64 * g),
                                            load_as<__m512i>(x + 64 * g));
    const __m512i s = _mm512_maskz_permutexvar_epi32(
        0xffff, _mm512_add_epi32(own, _mm512_set1_epi32(4 * g)), wide);
    both = _mm512_add_epi32(both, _mm512_mullo_epi32(dot, s));
  }
  const __m256i acc = narrow(both);
#else
  __m256i acc = _mm256_setzero_si256();
  const __m256i halves[2] = {_mm256_permute2x128_si256(scale, scale, 0x00),
                             _mm256_permute2x128_si256(scale, scale, 0x11)};
  const __m256i own = _mm256_inserti128_si256(_mm256_set1_epi16(0x0100), _mm_set1_epi16(0x0302), 1);
#pragma GCC unroll 8
  for (int g = 0; g < 8; g++) {
    const __m256i pairs = pair_dots<B>(load256(w.u + 32 * g), load256(x + 32 * g));
    const __m256i s = _mm256_shuffle_epi8(
        halves[g / 4], _mm256_add_epi8(own, _mm256_set1_epi8(int8_t(4 * (g % 4)))));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, s));
  }
#endif
  if constexpr (zero_of<B> == 0) return acc;
  const __m256i off =
      _mm256_mullo_epi32(_mm256_madd_epi16(scale, sums), _mm256_set1_epi32(B::zero));
  return _mm256_sub_epi32(acc, off);
}

template <class B, int T>
static void few_large(const FewTile& tile) {
  blocks<B, T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    __m256i dots[T][4], least[T][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      Parts part;
      B::unpack(tile.block<B>(p[r], r, b), part);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        const int64_t of = (tile.t0 + t) * (tile.x.in / 256) + b;
        const __m256i sums = load256(tile.x.sums + of * 16);
        dots[t][r] = dot_large<B>(part, tile.x.q + of * 256, sums);
        if constexpr (B::has_least) least[t][r] = _mm256_madd_epi16(load256(part.least), sums);
      }
    }
    add_block<B>(tile, p, b, dots, least, total);
  });
}

constexpr int most_tokens = lanes == 16 ? 4 : 2;

// Codebooks and digits to base 3: what takes blocks apart costs several times the products, and is
// long; so it is the same for every number of tokens, and the products are the same for every type.
template <class B>
concept Coded = std::is_base_of_v<OfGrid, B> || B::type == Stored::tq1_0;
struct AnyCoded {
  static constexpr bool wide = false;
  static constexpr int zero = 0;  // what the type's zero makes is subtracted afterwards
};
// Block b of four rows, taken apart, with that of T tokens.
template <int T>
[[gnu::noinline]] static void add_parts(const Parts (&parts)[4], __m128 d, int zero,
                                        const Rounded& x, int64_t t0, int64_t b, __m128* total) {
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) {
    const int64_t at = (t0 + t) * (x.in / 256) + b;
    const __m256i sums = load256(x.sums + at * 16);
    __m256i dots[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      const __m256i off = _mm256_madd_epi16(load256(parts[r].scale), sums);
      dots[r] = _mm256_sub_epi32(dot_large<AnyCoded>(parts[r], x.q + at * 256, sums),
                                 _mm256_mullo_epi32(off, _mm256_set1_epi32(zero)));
    }
    total[t] = _mm_fmadd_ps(_mm_mul_ps(d, _mm_set1_ps(x.d[at])), row_sums(dots), total[t]);
  }
}
template <class B>
static void few_coded(const FewTile& tile, int64_t tokens) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const uint8_t* p[4];
  tile.point(p);
  __m128 total[most_tokens];
  for (__m128& sum : total) sum = _mm_setzero_ps();
  for (int64_t b = 0; b < tile.x.in / 256; b++) {
    Parts parts[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) B::unpack(tile.block<B>(p[r], r, b), parts[r]);
    with_count<most_tokens>(tokens, [&](auto count) {
      add_parts<count()>(parts, four_scales<B>(p, b * bytes), zero_of<B>, tile.x, tile.t0, b,
                         total);
    });
  }
  with_count<most_tokens>(tokens, [&](auto count) {
    __m128 s[count()];
    for (int i = 0; i < count(); i++) s[i] = total[i];
    tile.store(s);
  });
}

template <class B>
static void few(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride) {
  constexpr int64_t tile = tile_of<B>;
  // As many tokens at a time as registers hold, and no pass with one where another has four.
  const int64_t passes = (x.tokens + most_tokens - 1) / most_tokens;
  const Asking asking(w, tile, x.tokens);
  for (int64_t row = begin; row < end; row += tile) {
    const int64_t rows = end - row < tile ? end - row : tile;
    for (int64_t i = 0, t = 0; i < passes; i++) {
      const int64_t next = passes == 1 ? x.tokens : x.tokens * (i + 1) / passes;
      const FewTile of{w, row, rows, asking(row), x, t, y, y_stride};
      with_count<most_tokens>(next - t, [&](auto count) {
        if constexpr (Coded<B>)
          few_coded<B>(of, count());
        else if constexpr (B::type == Stored::iq4_xs)
          few_iq4_xs<B, count()>(of);
        else if constexpr (SixBits<B>)
          few_six_bits<B, count()>(of);
#if defined(ALEATOR_ISA_v4)
        else if constexpr (Sixteens<B>)
          few_sixteens<B, count()>(of);
#else
        else if constexpr (InPairs<B>)
          few_pairs<B, count()>(of);
#endif
        else if constexpr (large<B>)
          few_large<B, count()>(of);
        else
          few_small<B, count()>(of);
      });
      t = next;
    }
  }
}

void block_few(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
               int64_t y_stride) {
  with_block(w.type, [&](auto block) { few<decltype(block)>(w, begin, end, x, y, y_stride); });
}

}  // namespace aleator::ALEATOR_ISA
#endif
