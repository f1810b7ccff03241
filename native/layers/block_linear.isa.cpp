#include "layers/block_linear.hpp"

#include <cmath>
#include <type_traits>
#include <utility>

#include "layers/blocks.hpp"
#include "layers/lanes16.hpp"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace aleator::ALEATOR_ISA {

void round_row(const float* x, int64_t in, int64_t block, int8_t* q, float* d, int16_t* sums) {
  for (int64_t b = 0; b < in; b += block) {
    const float* from = x + b;
    vi top = {};
    for (int64_t i = 0; i < block; i += lanes) {
      const vi bits = reinterpret<vi>(load(from + i)) & 0x7fffffff;
      const vi higher = bits > top;
      top = (bits & higher) | (top & ~higher);
    }
    int32_t most = 0;
    for (int i = 0; i < lanes; i++) most = top[i] > most ? top[i] : most;
    const float largest = reinterpret<float>(most);
    const bool none = largest < 0x1p-100f, broken = most >= 0x7f800000;
    const float factor = none || broken ? 0.0f : 127.0f / largest;
    d[b / block] = broken ? NAN : none ? 0.0f : largest / 127.0f;
    for (int64_t i = 0; i < block; i += 16) {
      int32_t sum = 0;
      for (int64_t k = i; k < i + 16; k++) {
        const float scaled = (broken ? 0.0f : from[k]) * factor;
        const int32_t n = reinterpret<int32_t>(scaled + 0x1.8p23f) - 0x4b400000;
        q[b + k] = int8_t(n);
        sum += n;
      }
      sums[(b + i) / 16] = int16_t(sum);
    }
  }
}

static inline int32_t sum32(const int16_t* sums) { return int32_t(sums[0]) + sums[1]; }

#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)

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

// Products of bytes, in sums of four: 8 lanes.
template <class B>
static inline __m256i dot8(__m256i acc, __m256i u, __m256i x) {
#if defined(ALEATOR_ISA_v4)
  return _mm256_dpbusd_epi32(acc, u, x);
#else
  __m256i pairs;
  if constexpr (B::wide) {
    const __m256i s = _mm256_xor_si256(u, _mm256_set1_epi8(-128));
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s));
  } else {
    pairs = _mm256_maddubs_epi16(u, x);
  }
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
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

// --- few tokens: rows of W are read as they lie ---

// Eight rows, of which the last may be the same.
static inline __m256 eight_halves(const uint8_t* const (&p)[8], int64_t at) {
  const auto h = [&](int r) { return load_as<int16_t>(p[r] + at); };
  return _mm256_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7)));
}

// Two rows of nibbles fill a vector, whose halves are elements 0 to 15, or 16 to 31, of rows k and
// k + 4: the nibbles need not be brought into order.
template <class B>
concept Nibbles = requires { B::nibbles_at; };
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
  if constexpr (B::wide) {
    const __m256i table = _mm256_broadcastsi128_si256(load_as<__m128i>(iq4_values.u));
    of.low = _mm256_shuffle_epi8(table, of.low), of.high = _mm256_shuffle_epi8(table, of.high);
  }
  if constexpr (B::fifths_at != 0) {
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

// Integer products of block b of eight rows with that of T tokens.
template <class B, int T>
static inline void eight_dots(const uint8_t* const (&p)[8], int64_t b, int64_t row_bytes,
                              const Rounded& x, int64_t t0, __m256i* dots) {
  const int64_t at = b * block_shape(B::type).bytes;
#pragma GCC unroll 8
  for (int r = 0; r < 8; r++) __builtin_prefetch(p[r] + at + 8 * row_bytes, 0, 2);
  const int8_t* q = x.q + t0 * x.in + b * 32;
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
        const __m256i low = dot8<B>(_mm256_setzero_si256(), u.low, twice(q + t * x.in));
        pairs[t][k] = dot8<B>(low, u.high, twice(q + t * x.in + 16));
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
static void few_small(const Weights& w, int64_t row, int64_t rows, const Rounded& x, int64_t t0,
                      float* y, int64_t y_stride) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const uint8_t* p[8];
  for (int r = 0; r < 8; r++) p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  __m256 total[T];
  for (int t = 0; t < T; t++) total[t] = _mm256_setzero_ps();
  const int64_t n = x.in / 32;
  for (int64_t b = 0; b < n; b++) {
    __m256i dots[T];
    eight_dots<B, T>(p, b, w.row_bytes, x, t0, dots);
    const __m256 d = eight_halves(p, b * bytes);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const float dx = x.d[(t0 + t) * n + b];
      const int32_t sum = sum32(x.sums + (t0 + t) * 2 * n + 2 * b);
      __m256i dot = dots[t];
      if constexpr (zero_of<B> != 0)
        dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(zero_of<B> * sum));
      total[t] =
          _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(dot), total[t]);
      if constexpr (B::has_m)
        total[t] = _mm256_fmadd_ps(eight_halves(p, b * bytes + 2), _mm256_set1_ps(dx * float(sum)),
                                   total[t]);
    }
  }
  for (int t = 0; t < T; t++) {
    alignas(32) float out[8];
    _mm256_store_ps(out, total[t]);
    for (int r = 0; r < rows; r++)
      y[(t0 + t) * y_stride + row + r] = w.bias ? out[r] + w.bias[row + r] : out[r];
  }
}

// Sum over a block of 256 of scale * (u - zero) * x, in lanes.
#if defined(ALEATOR_ISA_v4)
typedef __m512i Lanes;
// By shuffles: GCC 12 takes the casts' undefined halves for uninitialised variables.
static inline __m512i extended(__m256i v) {
  return __builtin_shufflevector(v, _mm256_setzero_si256(), 0, 1, 2, 3, 4, 5, 6, 7);
}
static inline __m256i narrow(Lanes v) {
  return _mm256_add_epi32(__builtin_shufflevector(v, v, 0, 1, 2, 3),
                          __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
template <class B>
static inline Lanes dot_large(const Parts& w, const int8_t* x, __m256i sums) {
  Lanes acc = _mm512_setzero_si512();
  const __m256i scale = load256(w.scale);
  if constexpr (B::wide) {
    const __m512i wide = _mm512_maskz_cvtepi16_epi32(0xffff, scale);
    const __m512i own = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
      const __m512i dot = _mm512_dpbusd_epi32(
          _mm512_setzero_si512(), load_as<__m512i>(w.u + 64 * g), load_as<__m512i>(x + 64 * g));
      const __m512i s = _mm512_maskz_permutexvar_epi32(
          0xffff, _mm512_add_epi32(own, _mm512_set1_epi32(4 * g)), wide);
      acc = _mm512_add_epi32(acc, _mm512_mullo_epi32(dot, s));
    }
  } else {
    const __m512i all = extended(scale);
    // 0 eight times, 1 eight times, 2, 3.
    const __m512i own = _mm512_maskz_cvtepu8_epi16(
        0xffffffff,
        _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
      const __m512i pairs =
          _mm512_maddubs_epi16(load_as<__m512i>(w.u + 64 * g), load_as<__m512i>(x + 64 * g));
      const __m512i s =
          _mm512_permutexvar_epi16(_mm512_add_epi16(own, _mm512_set1_epi16(int16_t(4 * g))), all);
      acc = _mm512_dpwssd_epi32(acc, pairs, s);
    }
  }
  if constexpr (B::zero != 0) {
    const __m256i off =
        _mm256_mullo_epi32(_mm256_madd_epi16(scale, sums), _mm256_set1_epi32(B::zero));
    acc = _mm512_sub_epi32(acc, extended(off));
  }
  return acc;
}
#else
typedef __m256i Lanes;
template <class B>
static inline Lanes dot_large(const Parts& w, const int8_t* x, __m256i sums) {
  Lanes acc = _mm256_setzero_si256();
  const __m256i scale = load256(w.scale);
  const __m256i halves[2] = {_mm256_permute2x128_si256(scale, scale, 0x00),
                             _mm256_permute2x128_si256(scale, scale, 0x11)};
  const __m256i own = _mm256_inserti128_si256(_mm256_set1_epi16(0x0100), _mm_set1_epi16(0x0302), 1);
#pragma GCC unroll 8
  for (int g = 0; g < 8; g++) {
    const __m256i u = load256(w.u + 32 * g), xs = load256(x + 32 * g);
    __m256i pairs;
    if constexpr (B::wide) {
      const __m256i s = _mm256_xor_si256(u, _mm256_set1_epi8(-128));
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(xs, s));
    } else {
      pairs = _mm256_maddubs_epi16(u, xs);
    }
    const __m256i s = _mm256_shuffle_epi8(
        halves[g / 4], _mm256_add_epi8(own, _mm256_set1_epi8(int8_t(4 * (g % 4)))));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, s));
  }
  if constexpr (zero_of<B> != 0) {
    const __m256i off =
        _mm256_mullo_epi32(_mm256_madd_epi16(scale, sums), _mm256_set1_epi32(B::zero));
    acc = _mm256_sub_epi32(acc, off);
  }
  return acc;
}
static inline __m256i narrow(Lanes v) { return v; }
#endif

static inline __m128 four_halves(const uint8_t* const (&p)[4], int64_t at) {
  const auto h = [&](int r) { return load_as<int16_t>(p[r] + at); };
  return _mm_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), 0, 0, 0, 0));
}

template <class B, int T>
static void few_large(const Weights& w, int64_t row, int64_t rows, const Rounded& x, int64_t t0,
                      float* y, int64_t y_stride) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const uint8_t* p[4];
  for (int r = 0; r < 4; r++) p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  __m128 total[T];
  for (int t = 0; t < T; t++) total[t] = _mm_setzero_ps();
  const int64_t n = x.in / 256;
  for (int64_t b = 0; b < n; b++) {
    __m256i dots[T][4], least[T][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      const uint8_t* at = p[r] + b * bytes;
      for (int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(at + 4 * w.row_bytes + line, 0, 2);
      Parts part;
      B::unpack(at, part);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        const __m256i sums = load256(x.sums + ((t0 + t) * n + b) * 16);
        dots[t][r] = narrow(dot_large<B>(part, x.q + (t0 + t) * x.in + b * 256, sums));
        if constexpr (B::has_least) least[t][r] = _mm256_madd_epi16(load256(part.least), sums);
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const __m128 dx = _mm_set1_ps(x.d[(t0 + t) * n + b]);
      const auto sums = [](const __m256i(&v)[4]) {
        return _mm_cvtepi32_ps(halves_sum(four_sums(v[0], v[1], v[2], v[3])));
      };
      total[t] = _mm_fmadd_ps(_mm_mul_ps(four_halves(p, b * bytes + B::d_at), dx), sums(dots[t]),
                              total[t]);
      if constexpr (B::has_least)
        total[t] = _mm_fnmadd_ps(_mm_mul_ps(four_halves(p, b * bytes + B::dmin_at), dx),
                                 sums(least[t]), total[t]);
    }
  }
  for (int t = 0; t < T; t++) {
    alignas(16) float out[4];
    _mm_store_ps(out, total[t]);
    for (int r = 0; r < rows; r++)
      y[(t0 + t) * y_stride + row + r] = w.bias ? out[r] + w.bias[row + r] : out[r];
  }
}

template <class B>
static void few(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride) {
  constexpr int64_t tile = large<B> ? 4 : 8;
  for (int64_t row = begin; row < end; row += tile) {
    const int64_t rows = end - row < tile ? end - row : tile;
    const auto tokens = [&](auto count, int64_t t) {
      if constexpr (large<B>)
        few_large<B, count()>(w, row, rows, x, t, y, y_stride);
      else
        few_small<B, count()>(w, row, rows, x, t, y, y_stride);
    };
    int64_t t = 0;
    for (; t + 3 <= x.tokens; t += 3) tokens(std::integral_constant<int, 3>(), t);
    if (x.tokens - t == 2) tokens(std::integral_constant<int, 2>(), t);
    if (x.tokens - t == 1) tokens(std::integral_constant<int, 1>(), t);
  }
}

// --- many tokens: as many rows of W as there are lanes are taken apart once, for all tokens ---

constexpr int64_t chunk =
    1024;  // elements of these rows at a time: with their scales they stay near
constexpr int64_t near_tokens = 256;
constexpr int panel_tile = lanes == 16 ? 8 : 4;

// Lanes of a whose bit `half` is set change places with those of b whose bit is not.
template <int half, int... i>
static inline void exchange(vi& a, vi& b, std::integer_sequence<int, i...>) {
  const vi low = __builtin_shufflevector(a, b, (i & half ? lanes + i - half : i)...);
  b = __builtin_shufflevector(a, b, (i & half ? lanes + i : i + half)...);
  a = low;
}
template <int half = 1>
static inline void transpose(vi (&v)[lanes]) {
  if constexpr (half < lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; i++)
      if (!(i & half)) exchange<half>(v[i], v[i + half], std::make_integer_sequence<int, lanes>());
    transpose<2 * half>(v);
  }
}

template <class B>
struct Panel {
  static constexpr int64_t block = block_shape(B::type).elements;
  alignas(64) uint8_t u[chunk / 4][lanes][4];
  alignas(64) float d[chunk / block][lanes], m[chunk / block][lanes];
  alignas(64) int32_t scale[chunk / 16][lanes];     // of large blocks
  alignas(64) int16_t least[chunk / 32][lanes][2];  // the same, of two neighbours

  // Elements [k, k + n) of rows [row, row + rows); the other lanes are as the last row.
  void fill(const Weights& w, int64_t row, int64_t rows, int64_t k, int64_t n) {
    const uint8_t* p[lanes];
    for (int r = 0; r < lanes; r++)
      p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes + k / block * bytes;
    if constexpr (large<B>)
      for (int64_t b = 0; b < n / block; b++) fill_large(p, b);
    else
      for (int64_t b = 0; b < n / block; b += together)
        fill_small(p, b, n / block - b < together ? n / block - b : together);
  }

 private:
  static constexpr int64_t bytes = block_shape(B::type).bytes;
  static constexpr int64_t together = lanes / 8;  // small blocks that fill a vector
  void fill_small(const uint8_t* const (&p)[lanes], int64_t b, int64_t blocks) {
    vi v[lanes];
#pragma GCC unroll 16
    for (int r = 0; r < lanes; r++) {
      vu8x32 part[together] = {};
      for (int64_t i = 0; i < blocks; i++) {
        const uint8_t* at = p[r] + (b + i) * bytes;
        part[i] = B::unpack(at);
        d[b + i][r] = half_at(at);
        if constexpr (B::has_m) m[b + i][r] = half_at(at + 2);
      }
      std::memcpy(&v[r], part, sizeof v[r]);
    }
    transpose(v);
    for (int64_t i = 0; i < blocks * 8; i++) std::memcpy(u[b * 8 + i], &v[i], sizeof v[i]);
  }
  void fill_large(const uint8_t* const (&p)[lanes], int64_t b) {
    Parts parts[lanes];
    for (int r = 0; r < lanes; r++) {
      B::unpack(p[r] + b * bytes, parts[r]);
      d[b][r] = half_at(p[r] + b * bytes + B::d_at);
      if constexpr (B::has_least) m[b][r] = half_at(p[r] + b * bytes + B::dmin_at);
    }
    vi v[lanes];
    for (int64_t at = 0; at < 64; at += lanes) {
      for (int r = 0; r < lanes; r++) v[r] = load_as<vi>(parts[r].u + 4 * at);
      transpose(v);
      for (int i = 0; i < lanes; i++) std::memcpy(u[b * 64 + at + i], &v[i], sizeof v[i]);
    }
    // Numbers of 16 bits, two of which a lane takes.
    for (int r = 0; r < lanes; r++) v[r] = two_by_two(parts[r].scale);
    transpose(v);
    for (int i = 0; i < 8; i++) {
      const vi low = v[i] << 16 >> 16, high = v[i] >> 16;
      std::memcpy(scale[b * 16 + 2 * i], &low, sizeof low);
      std::memcpy(scale[b * 16 + 2 * i + 1], &high, sizeof high);
    }
    if constexpr (B::has_least) {
      for (int r = 0; r < lanes; r++) v[r] = two_by_two(parts[r].least);
      transpose(v);
      for (int i = 0; i < 8; i++) std::memcpy(least[b * 8 + i], &v[i], sizeof v[i]);
    }
  }
  static vi two_by_two(const int16_t* p) {
    vi v = {};
    std::memcpy(&v, p, 32);
    return v;
  }
};

// acc + the products of `lanes` rows' four bytes with the same four of x.
template <class B>
static inline vi dot_lanes(vi acc, vi u, int32_t x) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vi>(_mm512_dpbusd_epi32(reinterpret<__m512i>(acc), reinterpret<__m512i>(u),
                                             _mm512_set1_epi32(x)));
#else
  return reinterpret<vi>(
      dot8<B>(reinterpret<__m256i>(acc), reinterpret<__m256i>(u), _mm256_set1_epi32(x)));
#endif
}
static inline vi pairs_lanes(vi acc, vi a, int32_t x) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vi>(_mm512_dpwssd_epi32(reinterpret<__m512i>(acc), reinterpret<__m512i>(a),
                                             _mm512_set1_epi32(x)));
#else
  return acc + reinterpret<vi>(_mm256_madd_epi16(reinterpret<__m256i>(a), _mm256_set1_epi32(x)));
#endif
}
static inline vi splat_int(int32_t x) { return x - vi{}; }

// Tokens [t, t + T): acc [T][lanes] += the panel's n elements, which begin at element k.
template <class B, int T>
static void panel_tokens(const Panel<B>& panel, int64_t n, const Rounded& x, int64_t t, int64_t k,
                         float (*acc)[lanes]) {
  const int8_t* q[T];
  const int16_t* sums[T];
  const float* d[T];
  vf total[T];
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) {
    q[i] = x.q + (t + i) * x.in + k;
    sums[i] = x.sums + ((t + i) * x.in + k) / 16;
    d[i] = x.d + ((t + i) * x.in + k) / Panel<B>::block;
    total[i] = load(acc[i]);
  }
  for (int64_t b = 0; b < n / Panel<B>::block; b++) {
    const vf dw = load(panel.d[b]);
    if constexpr (large<B>) {
      vi sum[T] = {};
      for (int64_t j = b * 16; j < b * 16 + 16; j++) {
        vi dot[T];
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) dot[i] = splat_int(-zero_of<B> * sums[i][j]);
#pragma GCC unroll 4
        for (int64_t e = j * 4; e < j * 4 + 4; e++) {
          const vi u = load_as<vi>(panel.u[e]);
#pragma GCC unroll 8
          for (int i = 0; i < T; i++)
            dot[i] = dot_lanes<B>(dot[i], u, load_as<int32_t>(q[i] + 4 * e));
        }
        const vi scale = load_as<vi>(panel.scale[j]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) sum[i] += scale * dot[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < T; i++)
        total[i] = fused(dw * splat(d[i][b]), __builtin_convertvector(sum[i], vf), total[i]);
      if constexpr (B::has_least) {
        const vf dmin = load(panel.m[b]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++) {
          vi least = {};
          for (int64_t j = b * 8; j < b * 8 + 8; j++)
            least =
                pairs_lanes(least, load_as<vi>(panel.least[j]), load_as<int32_t>(sums[i] + 2 * j));
          total[i] = fused(-(dmin * splat(d[i][b])), __builtin_convertvector(least, vf), total[i]);
        }
      }
    } else {
      vi dot[T];
#pragma GCC unroll 8
      for (int i = 0; i < T; i++) dot[i] = splat_int(-zero_of<B> * sum32(sums[i] + 2 * b));
#pragma GCC unroll 8
      for (int64_t e = b * 8; e < b * 8 + 8; e++) {
        const vi u = load_as<vi>(panel.u[e]);
#pragma GCC unroll 8
        for (int i = 0; i < T; i++)
          dot[i] = dot_lanes<B>(dot[i], u, load_as<int32_t>(q[i] + 4 * e));
      }
#pragma GCC unroll 8
      for (int i = 0; i < T; i++) {
        const float dx = d[i][b];
        total[i] = fused(dw * splat(dx), __builtin_convertvector(dot[i], vf), total[i]);
        if constexpr (B::has_m)
          total[i] = fused(load(panel.m[b]), splat(dx * float(sum32(sums[i] + 2 * b))), total[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < T; i++) store(acc[i], total[i]);
}

template <class B>
static void many(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                 int64_t y_stride) {
  Panel<B> panel;
  alignas(64) float acc[near_tokens][lanes];
  for (int64_t first = 0; first < x.tokens; first += near_tokens) {
    const int64_t tokens = x.tokens - first < near_tokens ? x.tokens - first : near_tokens;
    for (int64_t row = begin; row < end; row += lanes) {
      const int64_t rows = end - row < lanes ? end - row : lanes;
      std::memset(acc, 0, size_t(tokens) * sizeof acc[0]);
      for (int64_t k = 0; k < x.in; k += chunk) {
        const int64_t n = x.in - k < chunk ? x.in - k : chunk;
        panel.fill(w, row, rows, k, n);
        int64_t t = 0;
        for (; t + panel_tile <= tokens; t += panel_tile)
          panel_tokens<B, panel_tile>(panel, n, x, first + t, k, acc + t);
        for (; t + panel_tile / 2 <= tokens; t += panel_tile / 2)
          panel_tokens<B, panel_tile / 2>(panel, n, x, first + t, k, acc + t);
        for (; t < tokens; t++) panel_tokens<B, 1>(panel, n, x, first + t, k, acc + t);
      }
      for (int64_t t = 0; t < tokens; t++)
        for (int64_t r = 0; r < rows; r++)
          y[(first + t) * y_stride + row + r] = w.bias ? acc[t][r] + w.bias[row + r] : acc[t][r];
    }
  }
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  if (x.tokens <= few_rounded)
    few<B>(w, begin, end, x, y, y_stride);
  else
    many<B>(w, begin, end, x, y, y_stride);
}

#elif defined(__ARM_FEATURE_DOTPROD)

// Four rows and a few tokens at a time: sdot adds the products of sixteen bytes to four lanes.
constexpr int arm_rows = 4, arm_tokens = 4;

static inline int8x16_t load_s8(const void* p) { return load_as<int8x16_t>(p); }
// Where elements go to 255 they are taken as signed, and have no zero to subtract.
template <class B>
constexpr int zero_of = B::wide ? 0 : B::zero;
template <class B>
static inline int8x16_t signed_bytes(const uint8_t* u) {
  const uint8x16_t v = load_as<uint8x16_t>(u);
  return vreinterpretq_s8_u8(B::wide ? veorq_u8(v, vdupq_n_u8(128)) : v);
}
static inline int32x4_t row_sums(const int32x4_t (&v)[arm_rows]) {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}
static inline float32x4_t row_halves(const uint8_t* const (&p)[arm_rows], int64_t at) {
  const float h[] = {half_at(p[0] + at), half_at(p[1] + at), half_at(p[2] + at),
                     half_at(p[3] + at)};
  return vld1q_f32(h);
}
// Lanes whose sum is that of sixteen products of int16.
static inline int32x4_t dot16_s16(const int16_t* a, const int16_t* b) {
  int32x4_t acc = vdupq_n_s32(0);
  for (int i = 0; i < 16; i += 4) acc = vmlal_s16(acc, vld1_s16(a + i), vld1_s16(b + i));
  return acc;
}

template <class B, int T>
static void arm_tile(const Weights& w, int64_t row, int64_t rows, const Rounded& x, int64_t t0,
                     float* y, int64_t y_stride) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  const uint8_t* p[arm_rows];
  for (int r = 0; r < arm_rows; r++)
    p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  float32x4_t total[T];
  for (int t = 0; t < T; t++) total[t] = vdupq_n_f32(0);
  const int64_t n = x.in / block;
  for (int64_t b = 0; b < n; b++) {
    int32x4_t dots[T][arm_rows], least[T][arm_rows];
    for (int r = 0; r < arm_rows; r++) {
      if constexpr (large<B>) {
        Parts part;
        B::unpack(p[r] + b * bytes, part);
        for (int t = 0; t < T; t++) {
          const int8_t* q = x.q + (t0 + t) * x.in + b * 256;
          const int16_t* sums = x.sums + ((t0 + t) * n + b) * 16;
          int32x4_t acc = vdupq_n_s32(0);
          for (int j = 0; j < 16; j++) {
            const int32x4_t dot =
                vdotq_s32(vdupq_n_s32(0), signed_bytes<B>(part.u + 16 * j), load_s8(q + 16 * j));
            acc = vmlaq_n_s32(acc, dot, part.scale[j]);
          }
          if constexpr (zero_of<B> != 0)
            acc = vmlsq_n_s32(acc, dot16_s16(part.scale, sums), zero_of<B>);
          dots[t][r] = acc;
          if constexpr (B::has_least) least[t][r] = dot16_s16(part.least, sums);
        }
      } else {
        const vu8x32 u = B::unpack(p[r] + b * bytes);
        const auto* from = reinterpret_cast<const uint8_t*>(&u);
        const int8x16_t low = signed_bytes<B>(from), high = signed_bytes<B>(from + 16);
        for (int t = 0; t < T; t++) {
          const int8_t* q = x.q + (t0 + t) * x.in + b * 32;
          dots[t][r] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), low, load_s8(q)), high, load_s8(q + 16));
        }
      }
    }
    for (int t = 0; t < T; t++) {
      const float dx = x.d[(t0 + t) * n + b];
      int32x4_t dot = row_sums(dots[t]);
      if constexpr (large<B>) {
        total[t] = vfmaq_f32(total[t], vmulq_n_f32(row_halves(p, b * bytes + B::d_at), dx),
                             vcvtq_f32_s32(dot));
        if constexpr (B::has_least)
          total[t] = vfmsq_f32(total[t], vmulq_n_f32(row_halves(p, b * bytes + B::dmin_at), dx),
                               vcvtq_f32_s32(row_sums(least[t])));
      } else {
        const int32_t sum = sum32(x.sums + (t0 + t) * 2 * n + 2 * b);
        dot = vsubq_s32(dot, vdupq_n_s32(zero_of<B> * sum));
        total[t] =
            vfmaq_f32(total[t], vmulq_n_f32(row_halves(p, b * bytes), dx), vcvtq_f32_s32(dot));
        if constexpr (B::has_m)
          total[t] = vfmaq_n_f32(total[t], row_halves(p, b * bytes + 2), dx * float(sum));
      }
    }
  }
  for (int t = 0; t < T; t++) {
    float out[arm_rows];
    vst1q_f32(out, total[t]);
    for (int r = 0; r < rows; r++)
      y[(t0 + t) * y_stride + row + r] = w.bias ? out[r] + w.bias[row + r] : out[r];
  }
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  for (int64_t row = begin; row < end; row += arm_rows) {
    const int64_t rows = end - row < arm_rows ? end - row : arm_rows;
    int64_t t = 0;
    for (; t + arm_tokens <= x.tokens; t += arm_tokens)
      arm_tile<B, arm_tokens>(w, row, rows, x, t, y, y_stride);
    for (; t < x.tokens; t++) arm_tile<B, 1>(w, row, rows, x, t, y, y_stride);
  }
}

#else

// The contract in plain words: one row and one token at a time.
template <class B>
static float dot(const uint8_t* p, const int8_t* q, const float* d, const int16_t* sums,
                 int64_t in) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  float total = 0;
  for (int64_t b = 0; b < in / block; b++, p += bytes, q += block, sums += block / 16) {
    if constexpr (large<B>) {
      Parts part;
      B::unpack(p, part);
      int32_t sum = 0, least = 0;
      for (int j = 0; j < 16; j++) {
        int32_t dot = 0;
        for (int i = 16 * j; i < 16 * j + 16; i++) dot += int32_t(part.u[i]) * q[i];
        sum += part.scale[j] * (dot - B::zero * sums[j]);
        if constexpr (B::has_least) least += part.least[j] * sums[j];
      }
      total = fused(half_at(p + B::d_at) * d[b], float(sum), total);
      if constexpr (B::has_least)
        total = fused(-(half_at(p + B::dmin_at) * d[b]), float(least), total);
    } else {
      const vu8x32 u = B::unpack(p);
      int32_t sum = 0;
      for (int i = 0; i < 32; i++) sum += int32_t(u[i]) * q[i];
      total = fused(half_at(p) * d[b], float(sum - B::zero * sum32(sums)), total);
      if constexpr (B::has_m) total = fused(half_at(p + 2), d[b] * float(sum32(sums)), total);
    }
  }
  return total;
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  const int64_t blocks_ = x.in / block_shape(B::type).elements;
  for (int64_t row = begin; row < end; row++)
    for (int64_t t = 0; t < x.tokens; t++) {
      const float sum = dot<B>(w.data + row * w.row_bytes, x.q + t * x.in, x.d + t * blocks_,
                               x.sums + t * x.in / 16, x.in);
      y[t * y_stride + row] = w.bias ? sum + w.bias[row] : sum;
    }
}

#endif

void block_rows(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride) {
  with_block(w.type, [&](auto block) { product<decltype(block)>(w, begin, end, x, y, y_stride); });
}

// GCC 12 at -O3 with AVX2 takes this for a function that writes nothing, and drops its calls.
#if defined(__GNUC__) && !defined(__clang__)
#define ALEATOR_KEPT [[gnu::noipa]]
#else
#define ALEATOR_KEPT
#endif
template <class B>
ALEATOR_KEPT static void read_blocks(const uint8_t* p, int64_t in, float* y) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  for (int64_t b = 0; b < in / block; b++, p += bytes, y += block) {
    if constexpr (large<B>) {
      Parts part;
      B::unpack(p, part);
      const float d = half_at(p + B::d_at);
      float dmin = 0;
      if constexpr (B::has_least) dmin = half_at(p + B::dmin_at);
      for (int j = 0; j < 16; j++) {
        const float scale = d * float(part.scale[j]);
        const float least = B::has_least ? dmin * float(part.least[j]) : 0.0f;
        for (int i = 16 * j; i < 16 * j + 16; i++) {
          const float v = scale * float(int(part.u[i]) - B::zero);
          y[i] = B::has_least ? v - least : v;
        }
      }
    } else {
      const vu8x32 u = B::unpack(p);
      const float d = half_at(p), m = B::has_m ? half_at(p + 2) : 0.0f;
      for (int i = 0; i < 32; i++) {
        const float v = d * float(int(u[i]) - B::zero);
        y[i] = B::has_m ? v + m : v;
      }
    }
  }
}

void read_block_row(const Weights& w, int64_t row, float* y) {
  with_block(w.type, [&](auto block) {
    read_blocks<decltype(block)>(w.data + row * w.row_bytes, w.in, y);
  });
}

}  // namespace aleator::ALEATOR_ISA
