// ggml's blocks of 256 elements that come from codebooks, or of three values; and what is the same
// of blocks of every type.  Included by *.isa.cpp files only.
#pragma once

#include "layers/blocks.hpp"
#include "layers/grids.hpp"

namespace aleator::ALEATOR_ISA {

// 32 elements whose bytes are signed magnitudes: entry k of 8 (or pairs of 4) has eight of them.
typedef uint64_t vu64x4 __attribute__((vector_size(32)));
static inline uint64_t entry(const std::array<uint8_t, 8>& of) { return load_as<uint64_t>(&of); }
static inline uint64_t entries(const std::array<uint8_t, 4>& low,
                               const std::array<uint8_t, 4>& high) {
  return load_as<uint32_t>(&low) | uint64_t(load_as<uint32_t>(&high)) << 32;
}
// zero + v, or zero - v where the bit of `negative` is set.
template <int zero>
static inline vu8x32 with_signs(vu64x4 v, uint32_t negative) {
  const vu8x32 all = set_bytes(negative);
  return ((reinterpret<vu8x32>(v) ^ all) - all) + uint8_t(zero);
}
static inline void put(uint8_t* to, vu8x32 v) { std::memcpy(to, &v, sizeof v); }
// The signs of four entries, seven bits each.
static inline uint32_t signs_of(uint32_t sevens) {
  return eight_signs(sevens & 127) | eight_signs(sevens >> 7 & 127) << 8 |
         eight_signs(sevens >> 14 & 127) << 16 | eight_signs(sevens >> 21 & 127) << 24;
}
// 32 elements, plus zero, and the scales of their two groups of 16, from which odd numbers are
// made.
struct GridPart {
  vu8x32 u;
  uint32_t first, second;
};
struct OfGrid {};
// Of a codebook whose entries are at most `zero` away from 0; Own gives part j of eight, of whose
// scale d is a fraction.
template <class Own, Stored type, int zero, int group, int fraction = 8>
struct GridBlock : OfGrid, LargeBlock<type, 0, zero, 2 * zero, group> {
  static float d(const uint8_t* p) { return half_at(p) * (1.0f / fraction); }
  static void unpack(const uint8_t* p, Parts& to) {
    for (int j = 0; j < 8; j++) {
      const GridPart part = Own::part(p, j);
      put(to.u + 32 * j, part.u);
      to.scale[2 * j] = int16_t(2 * part.first + 1);
      to.scale[2 * j + 1] = int16_t(2 * part.second + 1);
    }
  }
};

struct BlockIQ2_XXS : GridBlock<BlockIQ2_XXS, Stored::iq2_xxs, 43, 32> {
  static inline GridPart part(const uint8_t* p, int j) {
    const uint8_t* q = p + 2 + 8 * j;
    const uint32_t rest = load_as<uint32_t>(q + 4);
    const vu64x4 v = {entry(iq2_xxs_grid[q[0]]), entry(iq2_xxs_grid[q[1]]),
                      entry(iq2_xxs_grid[q[2]]), entry(iq2_xxs_grid[q[3]])};
    return {with_signs<zero>(v, signs_of(rest)), rest >> 28, rest >> 28};
  }
};
struct BlockIQ2_XS : GridBlock<BlockIQ2_XS, Stored::iq2_xs, 43, 16> {
  static inline GridPart part(const uint8_t* p, int j) {
    vu64x4 v;
    uint32_t signs = 0;
    for (int l = 0; l < 4; l++) {
      const uint32_t q = load_as<uint16_t>(p + 2 + 8 * j + 2 * l);
      v[l] = entry(iq2_xs_grid[q & 511]);
      signs |= eight_signs(q >> 9) << 8 * l;
    }
    return {with_signs<zero>(v, signs), p[66 + j] & 15u, uint32_t(p[66 + j] >> 4)};
  }
};
struct BlockIQ2_S : GridBlock<BlockIQ2_S, Stored::iq2_s, 43, 16> {
  static inline GridPart part(const uint8_t* p, int j) {
    const uint8_t* q = p + 2 + 4 * j;
    const uint32_t high = p[66 + j];
    vu64x4 v;
    for (int l = 0; l < 4; l++) v[l] = entry(iq2_s_grid[q[l] | (high << (8 - 2 * l) & 0x300)]);
    return {with_signs<zero>(v, load_as<uint32_t>(q + 32)), p[74 + j] & 15u,
            uint32_t(p[74 + j] >> 4)};
  }
};
struct BlockIQ3_XXS : GridBlock<BlockIQ3_XXS, Stored::iq3_xxs, 62, 32, 4> {
  static inline GridPart part(const uint8_t* p, int j) {
    const uint8_t* q = p + 2 + 8 * j;
    const uint32_t rest = load_as<uint32_t>(p + 66 + 4 * j);
    vu64x4 v;
    for (int l = 0; l < 4; l++) v[l] = entries(iq3_xxs_grid[q[2 * l]], iq3_xxs_grid[q[2 * l + 1]]);
    return {with_signs<zero>(v, signs_of(rest)), rest >> 28, rest >> 28};
  }
};
struct BlockIQ3_S : GridBlock<BlockIQ3_S, Stored::iq3_s, 15, 32, 1> {
  static inline GridPart part(const uint8_t* p, int j) {
    const uint8_t* q = p + 2 + 8 * j;
    const uint32_t high = p[66 + j], scale = p[106 + j / 2] >> 4 * (j % 2) & 15u;
    vu64x4 v;
    for (int l = 0; l < 4; l++)
      v[l] = entries(iq3_s_grid[q[2 * l] | (high << (8 - 2 * l) & 256)],
                     iq3_s_grid[q[2 * l + 1] | (high << (7 - 2 * l) & 256)]);
    return {with_signs<zero>(v, load_as<uint32_t>(p + 74 + 4 * j)), scale, scale};
  }
};
// An eighth less or more of the eight elements of an entry whose bit is set or not.
static inline vu8x32 shifted_entries(vu64x4 v, uint32_t less) {
  const uint64_t ones = 0x0101010101010101;
  for (int l = 0; l < 4; l++) v[l] = less >> l & 1 ? v[l] - ones : v[l] + ones;
  return reinterpret<vu8x32>(v);
}
struct BlockIQ1_S : GridBlock<BlockIQ1_S, Stored::iq1_s, 9, 32> {
  static inline GridPart part(const uint8_t* p, int j) {
    const uint8_t* q = p + 2 + 4 * j;
    const uint32_t high = load_as<uint16_t>(p + 34 + 2 * j);
    vu64x4 v;
    for (int l = 0; l < 4; l++) v[l] = entry(iq1_grid[q[l] | (high >> 3 * l & 7) << 8]);
    return {shifted_entries(v, high & 0x8000 ? 15 : 0), high >> 12 & 7, high >> 12 & 7};
  }
};
// Four bits of d are the highest of each 16 that have four scales.
struct BlockIQ1_M : GridBlock<BlockIQ1_M, Stored::iq1_m, 9, 16> {
  static float d(const uint8_t* p) {
    const uint64_t s = load_as<uint64_t>(p + 48);
    return f32_of_f16(uint16_t((s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) |
                               (s >> 48 & 0xf000))) *
           0.125f;
  }
  static inline GridPart part(const uint8_t* p, int j) {
    const uint8_t *q = p + 4 * j, *h = p + 32 + 2 * j;
    const uint32_t high = load_as<uint16_t>(h);
    const uint32_t scales = uint32_t(load_as<uint16_t>(p + 48 + j / 2 * 2)) >> 6 * (j % 2);
    vu64x4 v;
    for (int l = 0; l < 4; l++) v[l] = entry(iq1_grid[q[l] | (high >> 4 * l & 7) << 8]);
    const uint32_t less = (high >> 3 & 1) | (high >> 6 & 2) | (high >> 9 & 4) | (high >> 12 & 8);
    return {shifted_entries(v, less), scales & 7, scales >> 3 & 7};
  }
};

// Of three values, without scales of groups.
static inline void ones(Parts& to) {
  for (int16_t& scale : to.scale) scale = 1;
}
struct BlockTQ1_0 : LargeBlock<Stored::tq1_0, 52, 1, 3, 32> {
  // Digit n of numbers to base 3, which are fractions of 256.
  static void digits(const uint8_t* p, int bytes, int count, uint8_t* to) {
    uint8_t power = 1;
    for (int n = 0; n < count; n++, power = uint8_t(3 * power))
      for (int i = 0; i < bytes; i++) *to++ = uint8_t(uint8_t(p[i] * power) * 3 >> 8);
  }
  static void unpack(const uint8_t* p, Parts& to) {
    digits(p, 32, 5, to.u);
    digits(p + 32, 16, 5, to.u + 160);
    digits(p + 48, 4, 4, to.u + 240);
    ones(to);
  }
};
struct BlockTQ2_0 : LargeBlock<Stored::tq2_0, 64, 1, 3, 32> {
  static void unpack(const uint8_t* p, Parts& to) {
    for (int n = 0; n < 2; n++) {
      const vu8x32 q = load_as<vu8x32>(p + 32 * n);
      put(to.u + 128 * n, moved(q, 0, 2) & 3);
      put(to.u + 128 * n + 64, moved(q, 4, 6) & 3);
    }
    ones(to);
  }
};

// --- every type ---

// The scale of a block of 256 elements.
template <class B>
static inline float large_scale_of(const uint8_t* p) {
  if constexpr (requires { B::d(p); })
    return B::d(p);
  else
    return half_at(p + B::d_at);
}

// Calls f(Block{}) for a type in blocks.
template <class F>
static inline void with_block(Stored type, F&& f) {
  with_one_of<BlockQ8_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockIQ4_NL, BlockMXFP4,
              BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockIQ4_XS, BlockIQ2_XXS,
              BlockIQ2_XS, BlockIQ2_S, BlockIQ3_XXS, BlockIQ3_S, BlockIQ1_S, BlockIQ1_M, BlockTQ1_0,
              BlockTQ2_0>(type, f);
}
template <class B>
constexpr bool large = block_shape(B::type).elements == 256;

}  // namespace aleator::ALEATOR_ISA
