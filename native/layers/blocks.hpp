// ggml's blocks taken apart into integers.  Included by *.isa.cpp files only.
//
// A block's element is  d * scale[j] * (u - zero) - dmin * least[j]  (types of 256 elements, j its
// group of 16) or  d * (u - zero) + m  (types of 32), with u a byte.  The layouts are those of
// ggml-common.h's block_* structures.
#pragma once

#include "layers/lanes.hpp"

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

namespace aleator::ALEATOR_ISA {

typedef uint8_t vu8x16 __attribute__((vector_size(16)));
typedef uint8_t vu8x32 __attribute__((vector_size(32)));

typedef uint16_t vu16x16 __attribute__((vector_size(32)));

#if defined(ALEATOR_ISA_v4)
typedef uint8_t vu8x64 __attribute__((vector_size(64)));
typedef uint16_t vu16x32 __attribute__((vector_size(64)));
static inline vu8x64 side_by_side(vu8x32 a, vu8x32 b) {
  const __m256i low = reinterpret<__m256i>(a), high = reinterpret<__m256i>(b);
  return reinterpret<vu8x64>(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7));
}
#else
struct vu8x64 {
  vu8x32 low, high;
};
static inline vu8x64 side_by_side(vu8x32 a, vu8x32 b) { return {a, b}; }
static inline vu8x64 operator&(vu8x64 v, uint8_t mask) { return {v.low & mask, v.high & mask}; }
static inline vu8x64 operator|(vu8x64 v, vu8x64 w) { return {v.low | w.low, v.high | w.high}; }
static inline vu8x64 operator>>(vu8x64 v, int n) { return {v.low >> n, v.high >> n}; }
#endif
static inline vu8x64 load64(const uint8_t* p) {
#if defined(ALEATOR_ISA_v4)
  return load_as<vu8x64>(p);
#else
  return side_by_side(load_as<vu8x32>(p), load_as<vu8x32>(p + 32));
#endif
}
// In one piece where it is read in one: the processor cannot read at once what two stores have just
// written.
static inline void put(uint8_t* to, vu8x64 v) { std::memcpy(to, &v, sizeof v); }
// The bits of v's bytes moved down by `a`, and then by `b` once more; up where these are negative.
// Bits of the neighbouring byte come in, for the caller to mask.
static inline __attribute__((always_inline)) vu8x64 moved(vu8x32 v, int a, int b) {
#if defined(ALEATOR_ISA_v4)
  const vu16x32 both =
      reinterpret<vu16x32>(_mm512_maskz_broadcast_i64x4(0xff, reinterpret<__m256i>(v)));
  vu16x32 down, up;
  for (int i = 0; i < 32; i++) {
    const int by = i < 16 ? a : b;
    down[i] = uint16_t(by < 0 ? 0 : by);
    up[i] = uint16_t(by < 0 ? -by : 0);
  }
  return reinterpret<vu8x64>(a < 0 || b < 0 ? both << up : both >> down);
#else
  const auto by = [&](int n) {
    const vu16x16 words = reinterpret<vu16x16>(v);
    return reinterpret<vu8x32>(n < 0 ? words << -n : words >> n);
  };
  return side_by_side(by(a), by(b));
#endif
}
static inline float half_at(const uint8_t* p) { return f32_of_f16(load_as<uint16_t>(p)); }

// The sum of 32 elements from those of each 16.
static inline int32_t sum32(const int16_t* sums) { return int32_t(sums[0]) + sums[1]; }

static inline vu8x32 joined(vu8x16 low, vu8x16 high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}
// 32 elements whose low nibbles come first: byte i holds elements i (low) and i + 16.
static inline vu8x32 nibbles32(const uint8_t* p) {
  const vu8x16 q = load_as<vu8x16>(p);
#if defined(__wasm__)
  const vu8x16 low = load_as<vu8x16>(wasm_low_nibbles);
  typedef uint16_t vu16x8 __attribute__((vector_size(16)));
  return joined(q & low, reinterpret<vu8x16>(reinterpret<vu16x8>(q) >> 4) & low);
#else
  return joined(q & 15, q >> 4);
#endif
}
// Every byte i whose bit i of `bits` is set has all bits, and the others none.
static inline vu8x32 set_bytes(uint32_t bits) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vu8x32>(_mm256_movm_epi8(bits));
#else
  const vu8x32 own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128,
                      1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
#if defined(ALEATOR_ISA_v3)
  const __m256i byte =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const vu8x32 spread =
      reinterpret<vu8x32>(_mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(bits)), byte));
#else
  const uint64_t ones = 0x0101010101010101;
  const vu8x32 spread = reinterpret<vu8x32>(
      (uint64_t __attribute__((vector_size(32)))){ones * (bits & 255), ones * (bits >> 8 & 255),
                                                  ones * (bits >> 16 & 255), ones * (bits >> 24)});
#endif
  return reinterpret<vu8x32>((spread & own) != 0);
#endif
}
// 16 added to every byte i whose bit i of `bits` is set.
static inline vu8x32 with_fifth(vu8x32 v, uint32_t bits) {
#if defined(ALEATOR_ISA_v4)
  const __m256i from = reinterpret<__m256i>(v);
  return reinterpret<vu8x32>(_mm256_mask_add_epi8(from, bits, from, _mm256_set1_epi8(16)));
#else
  return v | (set_bytes(bits) & 16);
#endif
}
// What nibbles stand for, plus `zero`.
struct Table {
  alignas(16) uint8_t u[16];
  constexpr Table(const float (&values)[16], int zero) : u{} {
    for (int i = 0; i < 16; i++) u[i] = uint8_t(int(values[i]) + zero);
  }
};
constexpr Table iq4_table(iq4_nl_values, 128), signed_iq4_table(iq4_nl_values, 0);
constexpr Table mxfp4_table(mxfp4_values, 12);
static inline vu8x32 looked_up32(const Table& from, const uint8_t* p) {
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
  const __m256i table = _mm256_broadcastsi128_si256(load_as<__m128i>(from.u));
  return reinterpret<vu8x32>(_mm256_shuffle_epi8(table, reinterpret<__m256i>(nibbles32(p))));
#elif defined(__wasm_simd128__)
  const vu8x16 q = load_as<vu8x16>(p);
  const auto half = [&](vu8x16 places) {
    return reinterpret<vu8x16>(
        wasm_i8x16_swizzle(wasm_v128_load(from.u), reinterpret<v128_t>(places)));
  };
  return joined(half(q & 15), half(q >> 4));
#else
  vu8x32 v = nibbles32(p);
  for (int i = 0; i < 32; i++) v[i] = from.u[v[i]];
  return v;
#endif
}
// 64 elements from 32 bytes.
static inline vu8x64 iq4_64(const uint8_t* p) {
#if defined(ALEATOR_ISA_v4)
  const __m256i q = load_as<__m256i>(p);
  vu16x32 down;
  for (int i = 0; i < 32; i++) down[i] = i & 8 ? 4 : 0;
  const vu16x32 both = reinterpret<vu16x32>(__builtin_shufflevector(q, q, 0, 1, 0, 1, 2, 3, 2, 3));
  const __m512i table = _mm512_maskz_broadcast_i32x4(0xffff, load_as<__m128i>(iq4_table.u));
  return reinterpret<vu8x64>(
      _mm512_shuffle_epi8(table, reinterpret<__m512i>((both >> down) & 0x0f0f)));
#else
  return side_by_side(looked_up32(iq4_table, p), looked_up32(iq4_table, p + 16));
#endif
}

// What is said of a type of 32 elements; of a `wide` one elements go to 255.  Of most, nibbles_at
// is where the nibbles begin as nibbles32 takes them, and fifths_at where their fifth bits, 0 if
// there are none.
template <Stored type_, int zero_, int top_, bool has_m_ = false>
struct SmallBlock {
  static constexpr Stored type = type_;
  static constexpr int zero = zero_, top = top_, group = 32;
  static constexpr bool has_m = has_m_, has_least = has_m, wide = top == 255;
};
struct BlockQ8_0 : SmallBlock<Stored::q8_0, 128, 255> {
  static vu8x32 unpack(const uint8_t* p) { return load_as<vu8x32>(p + 2) ^ 128; }
};
// d, m if the block has one, the fifth bits if there are any, and the nibbles.
template <Stored type, bool has_m, bool fifths>
struct BlockNibbles : SmallBlock<type,
                                 has_m    ? 0
                                 : fifths ? 16
                                          : 8,
                                 fifths ? 31 : 15, has_m> {
  static constexpr int64_t factors = has_m ? 4 : 2;
  static constexpr int64_t nibbles_at = factors + (fifths ? 4 : 0),
                           fifths_at = fifths ? factors : 0;
  static vu8x32 unpack(const uint8_t* p) {
    const vu8x32 low = nibbles32(p + nibbles_at);
    if constexpr (fifths) return with_fifth(low, load_as<uint32_t>(p + fifths_at));
    return low;
  }
};
using BlockQ4_0 = BlockNibbles<Stored::q4_0, false, false>;
using BlockQ4_1 = BlockNibbles<Stored::q4_1, true, false>;
using BlockQ5_0 = BlockNibbles<Stored::q5_0, false, true>;
using BlockQ5_1 = BlockNibbles<Stored::q5_1, true, true>;
struct BlockIQ4_NL : SmallBlock<Stored::iq4_nl, 128, 255> {
  static constexpr int64_t nibbles_at = 2, fifths_at = 0;
  static constexpr const Table& table = iq4_table;
  static vu8x32 unpack(const uint8_t* p) { return looked_up32(table, p + 2); }
};
// Its scale is a power of 2, of which the first byte is the exponent plus 127.
struct BlockMXFP4 : SmallBlock<Stored::mxfp4, 12, 24> {
  static constexpr int64_t nibbles_at = 1, fifths_at = 0;
  static constexpr const Table& table = mxfp4_table;
  static vu8x32 unpack(const uint8_t* p) { return looked_up32(table, p + 1); }
};
// The scale of a block of 32 elements.
template <class B>
static inline float scale_of(const uint8_t* p) {
  if constexpr (B::type != Stored::mxfp4) return half_at(p);
  return reinterpret<float>(p[0] < 2 ? 0x00200000u << p[0] : uint32_t(p[0] - 1) << 23);
}

// Rows of such a type as float32, a block at a time; scale times integer is exact in float32.
template <class B>
struct ReadBlocks {
  static constexpr Stored type = B::type;
  static constexpr int step = block_elements, parts = step / lanes;
  static constexpr int64_t bytes(int64_t i) { return stored_bytes(type, i); }
  static void group(const uint8_t* p, int64_t i, vf (&v)[parts]) {
    p += bytes(i);
    vi q[parts];
    if constexpr (type == Stored::q8_0)
      for (int k = 0; k < parts; k++) q[k] = vi_of<int8_t>(p + 2 + k * lanes);
    else
      nibbles(p, q);
    const float d = half_at(p), m = B::has_m ? half_at(p + 2) : 0.0f;
    for (int k = 0; k < parts; k++) {
      if constexpr (type == Stored::iq4_nl)
        v[k] = looked_up16(iq4_nl_values, q[k]) * d;
      else
        v[k] = __builtin_convertvector(type == Stored::q8_0 ? q[k] : q[k] - B::zero, vf) * d;
      if constexpr (B::has_m) v[k] += m;
    }
  }

 private:
  [[gnu::always_inline]] static void nibbles(const uint8_t* p, vi (&q)[parts]) {
    for (int k = 0; k < parts / 2; k++) {
      const vi both = vi_of<uint8_t>(p + B::nibbles_at + k * lanes);
      q[k] = both & 15, q[k + parts / 2] = both >> 4;
    }
    if constexpr (B::fifths_at == 0) return;
    const vi bits = int32_t(load_as<uint32_t>(p + B::fifths_at)) - vi{};
    for (int k = 0; k < parts; k++) {
      vi place;
      for (int i = 0; i < lanes; i++) place[i] = i + k * lanes;
      q[k] |= ((bits >> place) & 1) << 4;
    }
  }
};
// Calls f(Read{}) for a type that the cache stores.
template <class F>
static inline void with_reader(Stored type, F&& f) {
  with_one_of<ReadBlocks<BlockQ8_0>, ReadBlocks<BlockQ4_0>, ReadBlocks<BlockQ4_1>,
              ReadBlocks<BlockQ5_0>, ReadBlocks<BlockQ5_1>, ReadBlocks<BlockIQ4_NL>, ReadF32,
              ReadF16, ReadBF16>(type, f);
}

// Types of 256 elements.  `scale` and `least`: one per 16 elements, of which the same stand twice
// where `group` elements are 32.  d and dmin are float16 at d_at and dmin_at; where a type has
// d(p), that is it.
struct Parts {
  alignas(64) uint8_t u[256];
  alignas(32) int16_t scale[16], least[16];
};

// What is said of such a type; of a `wide` one elements go to 255, and no dmin_at is no least
// value.
template <Stored type_, int64_t d_at_, int zero_, int top_, int group_, int64_t dmin_at_ = 0>
struct LargeBlock {
  static constexpr Stored type = type_;
  static constexpr int64_t d_at = d_at_, dmin_at = dmin_at_;
  static constexpr int zero = zero_, top = top_, group = group_;
  static constexpr bool has_least = dmin_at != 0, wide = top == 255;
};

// 16 numbers of 16 bits from bytes, plus `add`.
template <bool is_signed>
static inline void put16(int16_t* to, const void* bytes, int add = 0) {
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
  const __m128i v = load_as<__m128i>(bytes);
  const __m256i wide = is_signed ? _mm256_cvtepi8_epi16(v) : _mm256_cvtepu8_epi16(v);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                     _mm256_add_epi16(wide, _mm256_set1_epi16(int16_t(add))));
#else
  for (int j = 0; j < 16; j++) {
    const uint8_t byte = static_cast<const uint8_t*>(bytes)[j];
    to[j] = int16_t((is_signed ? int8_t(byte) : byte) + add);
  }
#endif
}
// Bytes 0, 0, 1, 1, ... of eight.
static inline vu8x16 doubled(uint64_t eight) {
  const vu8x16 v = reinterpret<vu8x16>((uint64_t __attribute__((vector_size(16)))){eight, 0});
  return __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}

// 12 bytes hold eight scales and eight least values of 6 bits.
static inline void six_bits(const uint8_t* p, Parts& to) {
  const uint32_t a = load_as<uint32_t>(p), b = load_as<uint32_t>(p + 4),
                 c = load_as<uint32_t>(p + 8);
  const uint64_t scales = (a & 0x3f3f3f3f) | uint64_t((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030))
                                                 << 32;
  const uint64_t least = (b & 0x3f3f3f3f) | uint64_t((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030))
                                                << 32;
  const vu8x16 scale = doubled(scales), low = doubled(least);
  put16<false>(to.scale, &scale);
  put16<false>(to.least, &low);
}

// d, dmin, the scales and least values, the fifth bits if there are any, and the nibbles.
template <Stored type, bool fifths>
struct BlockSixBits : LargeBlock<type, 0, 0, fifths ? 31 : 15, 32, 2> {
  static constexpr int64_t nibbles_of_groups_at = fifths ? 48 : 16,
                           fifths_of_groups_at = fifths ? 16 : 0;
  static void unpack(const uint8_t* p, Parts& to) {
    six_bits(p + 4, to);
    const vu8x32 high = fifths ? load_as<vu8x32>(p + fifths_of_groups_at) : vu8x32{};
    for (int j = 0; j < 4; j++) {
      const vu8x64 low = moved(load_as<vu8x32>(p + nibbles_of_groups_at + 32 * j), 0, 4) & 15;
      if constexpr (fifths)
        put(to.u + 64 * j, low | (moved(high, 2 * j - 4, 2 * j - 3) & 16));
      else
        put(to.u + 64 * j, low);
    }
  }
};
using BlockQ4_K = BlockSixBits<Stored::q4_k, false>;
using BlockQ5_K = BlockSixBits<Stored::q5_k, true>;
struct BlockQ6_K : LargeBlock<Stored::q6_k, 208, 32, 63, 16> {
  static void unpack(const uint8_t* p, Parts& to) {
    put16<true>(to.scale, p + 192);
    for (int n = 0; n < 2; n++) {
      const vu8x64 q = load64(p + 64 * n);
      const vu8x32 h = load_as<vu8x32>(p + 128 + 32 * n);
      put(to.u + 128 * n, (q & 15) | (moved(h, -4, -2) & 48));
      put(to.u + 128 * n + 64, (q >> 4) | (moved(h, 0, 2) & 48));
    }
  }
};
struct BlockQ2_K : LargeBlock<Stored::q2_k, 80, 0, 3, 16, 82> {
  static void unpack(const uint8_t* p, Parts& to) {
    const vu8x16 both = load_as<vu8x16>(p), scale = both & 15, least = both >> 4;
    put16<false>(to.scale, &scale);
    put16<false>(to.least, &least);
    for (int n = 0; n < 2; n++) {
      const vu8x32 q = load_as<vu8x32>(p + 16 + 32 * n);
      put(to.u + 128 * n, moved(q, 0, 2) & 3);
      put(to.u + 128 * n + 64, moved(q, 4, 6) & 3);
    }
  }
};
struct BlockQ3_K : LargeBlock<Stored::q3_k, 108, 4, 7, 16> {
  // Plus 32.
  static vu8x16 scales(const uint8_t* p) {
    const uint64_t low = load_as<uint64_t>(p + 96);
    const uint32_t high = load_as<uint32_t>(p + 104);
    // Scale j: four bits of byte j % 8, low or high, and two of byte j % 4 above them.
    typedef uint64_t Two __attribute__((vector_size(16)));
    typedef uint32_t Four __attribute__((vector_size(16)));
    const Two four_bits = (Two{low, low} >> Two{0, 4}) & 0x0f0f0f0f0f0f0f0f;
    const Four two_bits = (Four{high, high, high, high} >> Four{0, 2, 4, 6}) & 0x03030303;
    return reinterpret<vu8x16>(four_bits) | reinterpret<vu8x16>(two_bits << 4);
  }
  static void unpack(const uint8_t* p, Parts& to) {
    const vu8x16 six = scales(p);
    put16<false>(to.scale, &six, -32);
    const vu8x32 bits = load_as<vu8x32>(p);
    for (int n = 0; n < 2; n++) {
      const vu8x32 q = load_as<vu8x32>(p + 32 + 32 * n);
      for (int j = 0; j < 4; j += 2)
        put(to.u + 128 * n + 32 * j,
            (moved(q, 2 * j, 2 * j + 2) & 3) | (moved(bits, 4 * n + j - 2, 4 * n + j - 1) & 4));
    }
  }
};
struct BlockIQ4_XS : LargeBlock<Stored::iq4_xs, 0, 128, 255, 32> {
  static constexpr const Table& table = iq4_table;
  static void unpack(const uint8_t* p, Parts& to) {
    const uint32_t low = load_as<uint32_t>(p + 4);
    const uint64_t high = load_as<uint16_t>(p + 2);
    // Four bits of each of the eight scales, and two above them, spread over bytes.
    uint64_t four = low, two = high;
    four = (four | four << 16) & 0x0000ffff0000ffff;
    four = (four | four << 8) & 0x00ff00ff00ff00ff;
    four = (four | four << 4) & 0x0f0f0f0f0f0f0f0f;
    two = (two | two << 24) & 0x000000ff000000ff;
    two = (two | two << 12) & 0x000f000f000f000f;
    two = (two | two << 6) & 0x0303030303030303;
    const vu8x16 scale = doubled(four | two << 4);
    put16<false>(to.scale, &scale, -32);
    for (int j = 0; j < 4; j++) put(to.u + 64 * j, iq4_64(p + 8 + 32 * j));
  }
};

}  // namespace aleator::ALEATOR_ISA
