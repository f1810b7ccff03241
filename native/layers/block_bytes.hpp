// One block's levels and scales as the bytes of its type (ggml-common.h).  Included by *.isa.cpp
// files only.
#pragma once

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int most = 256;  // elements of a block

static inline void put_half(float d, uint8_t* p) {
  const uint16_t h = f16_of_f32(d);
  std::memcpy(p, &h, 2);
}
// Of each `part` levels the lower four bits of the first half low, of the second half high.
static inline void put_nibbles(const uint8_t* q, int n, int part, uint8_t* p) {
  for (int j = 0; j < n; j += part)
    for (int l = 0; l < part / 2; l++)
      *p++ = uint8_t((q[j + l] & 15) | (q[j + l + part / 2] & 15) << 4);
}
// Two bits of each, from bit `shift` on: bits 2 k of byte 32 h + l are element 128 h + 32 k + l.
static inline void put_pairs(const uint8_t* q, int shift, uint8_t* p) {
  for (int i = 0; i < most; i++) {
    uint8_t& to = p[i / 128 * 32 + i % 32];
    const int k = i % 128 / 32;
    to = uint8_t((k ? to : 0) | (q[i] >> shift & 3) << 2 * k);
  }
}
// Bit `shift` of each: bit k of byte l is element 32 k + l.
static inline void put_bits(const uint8_t* q, int n, int shift, uint8_t* p) {
  for (int i = 0; i < n; i++)
    p[i % 32] = uint8_t((i < 32 ? 0 : p[i % 32]) | (q[i] >> shift & 1) << i / 32);
}
// Eight scales and eight least values of six bits.
static inline void put_six_bits(const uint8_t* scale, const uint8_t* least, uint8_t* p) {
  for (int i = 0; i < 4; i++) {
    p[i] = uint8_t(scale[i] | scale[i + 4] >> 4 << 6);
    p[i + 4] = uint8_t(least[i] | least[i + 4] >> 4 << 6);
    p[i + 8] = uint8_t((scale[i + 4] & 15) | (least[i + 4] & 15) << 4);
  }
}

static inline void put_block(Stored type, const uint8_t* q, const uint8_t* scale,
                             const uint8_t* least, float d, float dmin, uint8_t* p) {
  switch (type) {
    case Stored::q2_k:
      for (int g = 0; g < 16; g++) p[g] = uint8_t(scale[g] | least[g] << 4);
      put_pairs(q, 0, p + 16);
      put_half(d, p + 80), put_half(dmin, p + 82);
      break;
    case Stored::q3_k:
      put_bits(q, most, 2, p);
      put_pairs(q, 0, p + 32);
      for (int g = 0; g < 8; g++) p[96 + g] = uint8_t((scale[g] & 15) | (scale[g + 8] & 15) << 4);
      for (int g = 0; g < 4; g++)
        p[104 + g] = uint8_t(scale[g] >> 4 | scale[g + 4] >> 4 << 2 | scale[g + 8] >> 4 << 4 |
                             scale[g + 12] >> 4 << 6);
      put_half(d, p + 108);
      break;
    case Stored::q6_k:
      put_nibbles(q, most, 128, p);
      put_pairs(q, 4, p + 128);
      for (int g = 0; g < 16; g++) p[192 + g] = uint8_t(scale[g] - 128);
      put_half(d, p + 208);
      break;
    default:  // q4_k, q5_k
      put_half(d, p), put_half(dmin, p + 2);
      put_six_bits(scale, least, p + 4);
      if (type == Stored::q5_k) put_bits(q, most, 4, p + 16);
      put_nibbles(q, most, 64, p + (type == Stored::q5_k ? 48 : 16));
  }
}

// A block of 32 of which `least` is the least value, if its type keeps one.
static inline void put_small(Stored type, const uint8_t* q, float d, float least, uint8_t* p) {
  const bool fifth = type == Stored::q5_0 || type == Stored::q5_1;
  put_half(d, p), p += 2;
  if (type == Stored::q4_1 || type == Stored::q5_1) put_half(least, p), p += 2;
  if (fifth) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= uint32_t(q[i] >> 4) << i;
    std::memcpy(p, &bits, 4), p += 4;
  }
  put_nibbles(q, 32, 32, p);
}

}  // namespace aleator::ALEATOR_ISA
