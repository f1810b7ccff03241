// ggml's blocks taken apart into integers.  Included by *.isa.cpp files only.
//
// A block's element is  d * scale[j] * (u - zero) - dmin * least[j]  (types of 256 elements, j its
// group of 16) or  d * (u - zero) + m  (types of 32), with u a byte.  The layouts are those of
// ggml-common.h's block_* structures.
#pragma once

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

typedef uint8_t vu8x16 __attribute__((vector_size(16)));
typedef uint8_t vu8x32 __attribute__((vector_size(32)));

static inline void put(uint8_t* to, vu8x32 v) { std::memcpy(to, &v, sizeof v); }
static inline float half_at(const uint8_t* p) { return f32_of_f16(load_as<uint16_t>(p)); }

// 32 elements whose low nibbles come first: byte i holds elements i (low) and i + 16.
static inline vu8x32 nibbles32(const uint8_t* p) {
  const vu8x16 q = load_as<vu8x16>(p), low = q & 15, high = q >> 4;
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}
// 16 in every byte i whose bit i of `bits` is set.
static inline vu8x32 fifth_bits(uint32_t bits) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vu8x32>(_mm256_maskz_set1_epi8(bits, 16));
#else
  const uint64_t ones = 0x0101010101010101;
  const vu8x32 spread = reinterpret<vu8x32>(
      (uint64_t __attribute__((vector_size(32)))){ones * (bits & 255), ones * (bits >> 8 & 255),
                                                  ones * (bits >> 16 & 255), ones * (bits >> 24)});
  const vu8x32 own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128,
                      1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return reinterpret<vu8x32>((spread & own) != 0) & 16;
#endif
}
// The values of IQ4_NL and IQ4_XS, plus 128.
struct IQ4Values {
  alignas(16) uint8_t u[16];
  constexpr IQ4Values() : u{} {
    for (int i = 0; i < 16; i++) u[i] = uint8_t(int(iq4_nl_values[i]) + 128);
  }
};
constexpr IQ4Values iq4_values;
static inline vu8x32 iq4_32(const uint8_t* p) {
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
  const __m256i table = _mm256_broadcastsi128_si256(load_as<__m128i>(iq4_values.u));
  return reinterpret<vu8x32>(_mm256_shuffle_epi8(table, reinterpret<__m256i>(nibbles32(p))));
#else
  vu8x32 v = nibbles32(p);
  for (int i = 0; i < 32; i++) v[i] = iq4_values.u[v[i]];
  return v;
#endif
}

// Types of 32 elements.
struct BlockQ8_0 {
  static constexpr Stored type = Stored::q8_0;
  static constexpr int zero = 128;
  static constexpr bool has_m = false, wide = true;
  static vu8x32 unpack(const uint8_t* p) { return load_as<vu8x32>(p + 2) ^ 128; }
};
struct BlockQ4_0 {
  static constexpr Stored type = Stored::q4_0;
  static constexpr int zero = 8;
  static constexpr bool has_m = false, wide = false;
  static vu8x32 unpack(const uint8_t* p) { return nibbles32(p + 2); }
};
struct BlockQ4_1 {
  static constexpr Stored type = Stored::q4_1;
  static constexpr int zero = 0;
  static constexpr bool has_m = true, wide = false;
  static vu8x32 unpack(const uint8_t* p) { return nibbles32(p + 4); }
};
struct BlockQ5_0 {
  static constexpr Stored type = Stored::q5_0;
  static constexpr int zero = 16;
  static constexpr bool has_m = false, wide = false;
  static vu8x32 unpack(const uint8_t* p) {
    return nibbles32(p + 6) | fifth_bits(load_as<uint32_t>(p + 2));
  }
};
struct BlockQ5_1 {
  static constexpr Stored type = Stored::q5_1;
  static constexpr int zero = 0;
  static constexpr bool has_m = true, wide = false;
  static vu8x32 unpack(const uint8_t* p) {
    return nibbles32(p + 8) | fifth_bits(load_as<uint32_t>(p + 4));
  }
};
struct BlockIQ4_NL {
  static constexpr Stored type = Stored::iq4_nl;
  static constexpr int zero = 128;
  static constexpr bool has_m = false, wide = true;
  static vu8x32 unpack(const uint8_t* p) { return iq4_32(p + 2); }
};

// Types of 256 elements.  `scale` and `least`: one per 16 elements.
struct Parts {
  alignas(64) uint8_t u[256];
  alignas(32) int16_t scale[16], least[16];
  float d, dmin;
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

struct BlockQ4_K {
  static constexpr Stored type = Stored::q4_k;
  static constexpr int zero = 0;
  static constexpr bool has_least = true, wide = false;
  static void unpack(const uint8_t* p, Parts& to) {
    to.d = half_at(p), to.dmin = half_at(p + 2);
    six_bits(p + 4, to);
    for (int j = 0; j < 4; j++) {
      const vu8x32 q = load_as<vu8x32>(p + 16 + 32 * j);
      put(to.u + 64 * j, q & 15);
      put(to.u + 64 * j + 32, q >> 4);
    }
  }
};
struct BlockQ5_K {
  static constexpr Stored type = Stored::q5_k;
  static constexpr int zero = 0;
  static constexpr bool has_least = true, wide = false;
  static void unpack(const uint8_t* p, Parts& to) {
    to.d = half_at(p), to.dmin = half_at(p + 2);
    six_bits(p + 4, to);
    const vu8x32 high = load_as<vu8x32>(p + 16);
    for (int j = 0; j < 4; j++) {
      const vu8x32 q = load_as<vu8x32>(p + 48 + 32 * j);
      put(to.u + 64 * j, (q & 15) | (high >> 2 * j & 1) << 4);
      put(to.u + 64 * j + 32, (q >> 4) | (high >> (2 * j + 1) & 1) << 4);
    }
  }
};
struct BlockQ6_K {
  static constexpr Stored type = Stored::q6_k;
  static constexpr int zero = 32;
  static constexpr bool has_least = false, wide = false;
  static void unpack(const uint8_t* p, Parts& to) {
    to.d = half_at(p + 208);
    put16<true>(to.scale, p + 192);
    for (int n = 0; n < 2; n++) {
      const vu8x32 a = load_as<vu8x32>(p + 64 * n), b = load_as<vu8x32>(p + 64 * n + 32);
      const vu8x32 h = load_as<vu8x32>(p + 128 + 32 * n);
      uint8_t* u = to.u + 128 * n;
      put(u, (a & 15) | (h & 3) << 4);
      put(u + 32, (b & 15) | (h & 12) << 2);
      put(u + 64, (a >> 4) | (h & 48));
      put(u + 96, (b >> 4) | (h >> 2 & 48));
    }
  }
};
struct BlockQ2_K {
  static constexpr Stored type = Stored::q2_k;
  static constexpr int zero = 0;
  static constexpr bool has_least = true, wide = false;
  static void unpack(const uint8_t* p, Parts& to) {
    to.d = half_at(p + 80), to.dmin = half_at(p + 82);
    const vu8x16 both = load_as<vu8x16>(p), scale = both & 15, least = both >> 4;
    put16<false>(to.scale, &scale);
    put16<false>(to.least, &least);
    for (int n = 0; n < 2; n++) {
      const vu8x32 q = load_as<vu8x32>(p + 16 + 32 * n);
      for (int j = 0; j < 4; j++) put(to.u + 128 * n + 32 * j, q >> 2 * j & 3);
    }
  }
};
struct BlockQ3_K {
  static constexpr Stored type = Stored::q3_k;
  static constexpr int zero = 4;
  static constexpr bool has_least = false, wide = false;
  static void unpack(const uint8_t* p, Parts& to) {
    to.d = half_at(p + 108);
    const uint64_t low = load_as<uint64_t>(p + 96);
    const uint32_t high = load_as<uint32_t>(p + 104);
    // Scale j: four bits of byte j % 8, low or high, and two of byte j % 4 above them.
    const uint64_t two[2] = {(high & 0x03030303) | uint64_t(high >> 2 & 0x03030303) << 32,
                             (high >> 4 & 0x03030303) | uint64_t(high >> 6 & 0x03030303) << 32};
    const uint64_t six[2] = {(low & 0x0f0f0f0f0f0f0f0f) | two[0] << 4,
                             (low >> 4 & 0x0f0f0f0f0f0f0f0f) | two[1] << 4};
    put16<false>(to.scale, six, -32);
    const vu8x32 bits = load_as<vu8x32>(p);
    for (int n = 0; n < 2; n++) {
      const vu8x32 q = load_as<vu8x32>(p + 32 + 32 * n);
      for (int j = 0; j < 4; j++)
        put(to.u + 128 * n + 32 * j, (q >> 2 * j & 3) | (bits >> (4 * n + j) & 1) << 2);
    }
  }
};
struct BlockIQ4_XS {
  static constexpr Stored type = Stored::iq4_xs;
  static constexpr int zero = 128;
  static constexpr bool has_least = false, wide = true;
  static void unpack(const uint8_t* p, Parts& to) {
    to.d = half_at(p);
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
    for (int j = 0; j < 8; j++) put(to.u + 32 * j, iq4_32(p + 8 + 16 * j));
  }
};

// Calls f(Block{}) for a type in blocks.
template <class F>
static inline void with_block(Stored type, F&& f) {
  switch (type) {
    case Stored::q8_0:
      return f(BlockQ8_0{});
    case Stored::q4_0:
      return f(BlockQ4_0{});
    case Stored::q4_1:
      return f(BlockQ4_1{});
    case Stored::q5_0:
      return f(BlockQ5_0{});
    case Stored::q5_1:
      return f(BlockQ5_1{});
    case Stored::iq4_nl:
      return f(BlockIQ4_NL{});
    case Stored::q2_k:
      return f(BlockQ2_K{});
    case Stored::q3_k:
      return f(BlockQ3_K{});
    case Stored::q4_k:
      return f(BlockQ4_K{});
    case Stored::q5_k:
      return f(BlockQ5_K{});
    case Stored::q6_k:
      return f(BlockQ6_K{});
    case Stored::iq4_xs:
      return f(BlockIQ4_XS{});
    default:
      return;
  }
}
template <class B>
constexpr bool large = block_shape(B::type).elements == 256;

}  // namespace aleator::ALEATOR_ISA
