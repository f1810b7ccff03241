// Vectors of float32 as wide as the instruction set's registers, and what layers need on them.
// Included by *.isa.cpp files only.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
#include <immintrin.h>
#endif

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"
#if defined(__wasm__)
#include "wasm/constants.hpp"
#endif

namespace aleator::ALEATOR_ISA {

#if defined(ALEATOR_ISA_v4)
constexpr int lanes = 16;
#elif defined(ALEATOR_ISA_v3)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float vf __attribute__((vector_size(4 * lanes)));
typedef int32_t vi __attribute__((vector_size(4 * lanes)));
typedef uint16_t vh __attribute__((vector_size(2 * lanes)));

template <class V>
static inline V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline vf load(const float* p) { return load_as<vf>(p); }
static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
static inline vf splat(float x) { return x - vf{}; }

template <class V>
static inline V reinterpret(auto from) {
  static_assert(sizeof(V) == sizeof from);
  V v;
  std::memcpy(&v, &from, sizeof v);
  return v;
}

// Calls f(std::integral_constant<int, n>()), n from 1 to `most`.
template <int most, class F>
static inline void with_count(int64_t n, F&& f) {
  if constexpr (most > 1)
    if (n < most) return with_count<most - 1>(n, f);
  f(std::integral_constant<int, most>());
}

typedef float v4 __attribute__((vector_size(16)));

// Each four lanes' sums, by halves.
static inline v4 fold(vf v) {
#if defined(ALEATOR_ISA_v4)
  const auto v8 = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(ALEATOR_ISA_v3)
  const auto v8 = v;
#endif
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
  return __builtin_shufflevector(v8, v8, 0, 1, 2, 3) + __builtin_shufflevector(v8, v8, 4, 5, 6, 7);
#else
  return v;
#endif
}
// The lanes' sum, by halves: the same tree wherever it is called.
static inline float sum(vf v) {
  const v4 q = fold(v);
  return (q[0] + q[2]) + (q[1] + q[3]);
}

static inline float f32_of_f16(uint16_t h) {
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
  return _cvtsh_ss(h);
#else
  const uint32_t rest = uint32_t(h & 0x7fff) << 13;
  float f = reinterpret<float>(rest) * 0x1p112f;  // moves the exponent's bias from 15 to 127
  uint32_t bits = reinterpret<uint32_t>(f) | uint32_t(h & 0x8000) << 16;
  if (rest >= 0x0f800000) bits |= 0x7f800000;
  return reinterpret<float>(bits);
#endif
}
static inline float f32_of_bf16(uint16_t h) { return reinterpret<float>(uint32_t(h) << 16); }

// Widening by intrinsics: GCC 12 takes __builtin_convertvector apart into single elements here. The
// masked forms, because it takes the others' undefined source for an uninitialised variable.
static inline vi vi_of_u16(const uint8_t* p) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vi>(_mm512_maskz_cvtepu16_epi32(0xffff, load_as<__m256i>(p)));
#elif defined(ALEATOR_ISA_v3)
  return reinterpret<vi>(_mm256_cvtepu16_epi32(load_as<__m128i>(p)));
#else
  return __builtin_convertvector(load_as<vh>(p), vi);
#endif
}
// Of int8_t or uint8_t.
template <class Byte>
static inline vi vi_of(const uint8_t* p) {
#if defined(ALEATOR_ISA_v4)
  const __m128i v = load_as<__m128i>(p);
  return reinterpret<vi>(std::is_signed_v<Byte> ? _mm512_maskz_cvtepi8_epi32(0xffff, v)
                                                : _mm512_maskz_cvtepu8_epi32(0xffff, v));
#elif defined(ALEATOR_ISA_v3)
  const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return reinterpret<vi>(std::is_signed_v<Byte> ? _mm256_cvtepi8_epi32(v)
                                                : _mm256_cvtepu8_epi32(v));
#else
  typedef Byte bytes __attribute__((vector_size(lanes)));
  return __builtin_convertvector(load_as<bytes>(p), vi);
#endif
}

static inline vf vf_of_bf16(const uint8_t* p) { return reinterpret<vf>(vi_of_u16(p) << 16); }
#if !defined(ALEATOR_ISA_v4) && !defined(ALEATOR_ISA_v3)
// float16, of 0 to 65535 each.
#if defined(__wasm__)
// In the upper halves of integers.
static inline vf vf_of_upper_halves(vi h) {
  const vi bits = (h >> 3) & load_as<vi>(wasm_halves.kept);
  const vf scaled = reinterpret<vf>(bits) * load_as<vf>(wasm_halves.scale);  // see f32_of_f16
  const vi top = load_as<vi>(wasm_halves.top), infinite = (h & top) == top;
  return reinterpret<vf>(reinterpret<vi>(scaled) | (infinite & load_as<vi>(wasm_halves.infinite)));
}
static inline vf vf_of_halves(vi h) { return vf_of_upper_halves(h << 16); }
#else
static inline vf vf_of_halves(vi h) {
  const vi rest = (h & 0x7fff) << 13, infinite = rest >= 0x0f800000;
  const vi bits = reinterpret<vi>(reinterpret<vf>(rest) * 0x1p112f) | (h & 0x8000) << 16;
  return reinterpret<vf>(bits | (infinite & 0x7f800000));
}
#endif
#endif
static inline vf vf_of_f16(const uint8_t* p) {
#if defined(ALEATOR_ISA_v4)
  return _mm512_maskz_cvtph_ps(0xffff, load_as<__m256i>(p));
#elif defined(ALEATOR_ISA_v3)
  return _mm256_cvtph_ps(load_as<__m128i>(p));
#else
  return vf_of_halves(vi_of_u16(p));
#endif
}

// What the codes in the lowest four bits of q stand for.
static inline vf looked_up16(const vf (&table)[16 / lanes], vi q) {
#if defined(ALEATOR_ISA_v4)
  return _mm512_maskz_permutexvar_ps(0xffff, reinterpret<__m512i>(q), table[0]);
#elif defined(ALEATOR_ISA_v3)
  const __m256i index = reinterpret<__m256i>(q);  // of which this takes three bits
  const vf low = _mm256_permutevar8x32_ps(table[0], index);
  const vf high = _mm256_permutevar8x32_ps(table[1], index);
  return _mm256_blendv_ps(low, high, reinterpret<vf>(q << 28));
#else
  float all[16];
  std::memcpy(all, table, sizeof all);
  vf v;
  for (int i = 0; i < lanes; i++) v[i] = all[q[i] & 15];
  return v;
#endif
}
static inline vf looked_up16(const float (&table)[16], vi q) {
  vf all[16 / lanes];
  std::memcpy(all, table, sizeof all);
  return looked_up16(all, q);
}

// Round to nearest, ties to even; a NaN stays one.
static inline uint16_t bf16_of_f32(float x) {
  const uint32_t bits = reinterpret<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline uint16_t f16_of_f32(float x) {
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
  return uint16_t(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0));
#else
  const uint32_t bits = reinterpret<uint32_t>(x), sign = bits >> 16 & 0x8000;
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and up round to infinity
  if (rest <
      0x38800000)  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    return uint16_t(sign | (reinterpret<uint32_t>(reinterpret<float>(rest) + 0.5f) - 0x3f000000));
  return uint16_t(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
#endif
}

// One stored type each.  `group(p, i, v)` gives elements i to i + step of a row at p; `one(p, i)` a
// single one, where the type is not in blocks.  A step is a cache line's worth, so that each step
// can ask for one line ahead.
constexpr int64_t most_asked = 40 << 10;  // bytes of a group: see Asking
constexpr int at_least(int n) { return n < lanes ? lanes : n; }
struct ReadF32 {
  static constexpr Stored type = Stored::f32;
  static constexpr int step = at_least(16);
  static constexpr int64_t bytes(int64_t i) { return 4 * i; }
  static vf vector(const uint8_t* p, int64_t i) { return load_as<vf>(p + 4 * i); }
  static void group(const uint8_t* p, int64_t i, vf (&v)[step / lanes]) {
    for (int k = 0; k < step / lanes; k++) v[k] = load_as<vf>(p + 4 * (i + k * lanes));
  }
  static float one(const uint8_t* p, int64_t i) { return load_as<float>(p + 4 * i); }
};
// float16 or bfloat16.
template <Stored type_>
struct ReadHalf {
  static constexpr Stored type = type_;
  static constexpr int step = 32;
  static constexpr int64_t bytes(int64_t i) { return 2 * i; }
  static vf vector(const uint8_t* p, int64_t i) {
    return type == Stored::f16 ? vf_of_f16(p + 2 * i) : vf_of_bf16(p + 2 * i);
  }
  static void group(const uint8_t* p, int64_t i, vf (&v)[step / lanes]) {
    for (int k = 0; k < step / lanes; k++) v[k] = vector(p, i + k * lanes);
  }
  static float one(const uint8_t* p, int64_t i) {
    const auto half = load_as<uint16_t>(p + 2 * i);
    return type == Stored::f16 ? f32_of_f16(half) : f32_of_bf16(half);
  }
};
using ReadF16 = ReadHalf<Stored::f16>;
using ReadBF16 = ReadHalf<Stored::bf16>;

// Memory that is asked for while a tile of rows of W is read: for each row `apart` from the last
// one's, and `along` bytes on for each byte of a row. In order a row's part is what a step reads.
struct Asked {
  const uint8_t* first;
  int64_t apart;
  int64_t along = 1;
  bool in_order() const { return along > 1; }
};
// Asks for a line of memory that is read soon: in memory's own order, or of a later row.
static inline void ask_onward(const uint8_t* p) {
  is_zen_5 ? __builtin_prefetch(p, 0, 3) : __builtin_prefetch(p, 0, 2);
}
static inline void ask_for_later(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
constexpr int64_t most_in_order = 256 << 10, ahead_in_order = 12 << 10;  // bytes
// What the tiles of a product ask for, with what their rows have in common: made once for all.
class Asking {
 public:
  Asking(const Weights& w, int64_t tile, int64_t tokens)
      : data_(w.data), row_bytes_(w.row_bytes), tile_(tile), apart_(w.row_bytes) {
    const int64_t bytes = tile * row_bytes_;
    const BlockShape shape = block_shape(w.type);
    const bool large = shape.elements == 256;
    // Up to so many tokens memory is fastest asked for in its own order, a little ahead, but no
    // less than a tile, whose rows are read side by side (docs/performance.md).
    int64_t in_order = 0;
    if (lanes == 16) in_order = single(w.type) ? 6 : in_blocks(w.type) ? 1 : 0;
    if (lanes == 8) in_order = in_blocks(w.type) ? INT64_MAX : 1;
    if (tokens <= in_order && bytes <= most_in_order) {
      ahead_ = bytes > ahead_in_order ? bytes : ahead_in_order, apart_ = large ? shape.bytes : 64,
      along_ = tile;
    } else if (lanes == 16) {  // neighbours, of blocks at least 8 KiB ahead
      ahead_ = (in_blocks(w.type) ? (8191 / bytes + 1) * tile : 16) * row_bytes_;
    } else {
      // A processor was seen to read several pages at once faster than one, so rows are as far from
      // each other as a group of tiles allows, which comes next (docs/performance.md).
      int64_t tiles = 16;
      while (tiles > 1 && tiles * bytes > most_asked) tiles /= 2;
      group_ = tiles * tile, apart_ = tiles * row_bytes_;
    }
  }
  // For the tile that begins with this row.
  Asked operator()(int64_t row) const {
    const uint8_t* const at = data_ + row * row_bytes_;
    if (lanes == 16 || !group_) return {at + ahead_, apart_, along_};
    const int64_t in_group = row % group_;
    return {at + (group_ - in_group + in_group / tile_) * row_bytes_, apart_};
  }

 private:
  const uint8_t* data_;
  int64_t row_bytes_, tile_, apart_, along_ = 1;
  int64_t ahead_ = 0;
  int64_t group_ = 0;  // rows of a group; 0: there are none
};

// Whether a type is in blocks: see blocks.hpp.
template <class Read>
concept Blocks = in_blocks(Read::type);

// Calls f(T{}) for the one of several T that is of the type, and says whether there is one.
template <class... T, class F>
static inline bool with_one_of(Stored type, F&& f) {
#if defined(__wasm__)
  // From a table, which nothing inlines: all types would be one function, larger than any other.
  using Own = std::remove_reference_t<F>;
  static constexpr Stored types[] = {T::type...};
  static constexpr void (*calls[])(Own&) = {[](Own& own) { own(T{}); }...};
  size_t i = 0;
  while (i < sizeof...(T) && types[i] != type) i++;
  if (i < sizeof...(T)) calls[i](f);
  return i < sizeof...(T);
#else
  return ((type == T::type && (f(T{}), true)) || ...);
#endif
}
// Calls f(Read{}) for a type of single numbers.
template <class F>
static inline void with_floats(Stored type, F&& f) {
  with_one_of<ReadF32, ReadF16, ReadBF16>(type, f);
}

}  // namespace aleator::ALEATOR_ISA
