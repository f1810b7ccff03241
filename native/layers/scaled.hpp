// Types of floats with a scale, of which a float32 stands before 64 elements and each is multiplied
// with it, by one rounding; and Q8_0 as floats.  Included by *.isa.cpp files only.
#pragma once

#include "layers/blocks.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// Block(p).sixteen(j) gives elements j to j + 16 of the block at p, j a multiple of 16 that is
// known when this is compiled.
template <Stored type_>
struct ReadScaled {
  static constexpr Stored type = type_;
  static constexpr int step = int(block_shape(type).elements);
  static constexpr int64_t bytes(int64_t i) { return stored_bytes(type, i); }
};

// 1 bit of sign, 4 of exponent, 3 of mantissa: as float16 it would be 256 times as large, and the
// scale is 256 times the file's instead.
struct ReadF8 : ReadScaled<Stored::f8_e4m3> {
  struct Block {
    explicit Block(const uint8_t* p) : codes(p + 4), scale(splat(load_as<float>(p))) {}
    v16 sixteen(int j) const {
      const uint8_t* p = codes + j;
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
      const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_as<__m128i>(p)), 7);
      const __m256i half = _mm256_and_si256(wide, _mm256_set1_epi16(~0x4000));
#endif
#if defined(ALEATOR_ISA_v4)
      return {_mm512_maskz_cvtph_ps(0xffff, half) * scale};
#elif defined(ALEATOR_ISA_v3)
      return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)) * scale,
              _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)) * scale};
#else
      return each_part([&](int k) {
        const vi code = vi_of<int8_t>(p + k * lanes), rest = (code & 0x7f) << 20;
        const vi bits = reinterpret<vi>(reinterpret<vf>(rest) * 0x1p112f) | (code & INT32_MIN);
        return reinterpret<vf>(bits) * scale;
      });
#endif
    }
    const uint8_t* codes;
    vf scale;
  };
};

// As in ggml's types, byte i of 16 holds elements i (low) and i + 16 of 32. What the sixteen codes
// stand for is multiplied once a block.
struct ReadNF4 : ReadScaled<Stored::nf4> {
  struct Block {
    explicit Block(const uint8_t* p)
        : codes(p + 4), values(load16(nf4_values) * splat16(load_as<float>(p))) {}
    v16 sixteen(int j) const {
      return each_part([&](int k) {
        const vi both = vi_of<uint8_t>(codes + j / 32 * 16 + k * lanes);
        return looked_up16(values.part, j % 32 ? both >> 4 : both);
      });
    }
    const uint8_t* codes;
    v16 values;
  };
};

// Scale times integer is exact in float32.
static inline v16 times_int8(const uint8_t* p, v16 scales) {
  return each_part([&](int k) {
    return __builtin_convertvector(vi_of<int8_t>(p + k * lanes), vf) * scales.part[k];
  });
}
struct ReadQ8 : ReadScaled<Stored::q8_0> {
  struct Block {
    explicit Block(const uint8_t* p) : codes(p + 2), scale(splat16(half_at(p))) {}
    v16 sixteen(int j) const { return times_int8(codes + j, scale); }
    const uint8_t* codes;
    v16 scale;
  };
};

}  // namespace aleator::ALEATOR_ISA
