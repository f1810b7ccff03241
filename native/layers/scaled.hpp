// Types of floats with a scale: 64 elements after their scale, a float32, with which each is
// multiplied, by one rounding.  Included by *.isa.cpp files only.
#pragma once

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

// Own::values(p, i) gives elements i to i + lanes of the 64 whose codes are at p.
template <class Own, Stored type_>
struct ReadScaled {
  static constexpr Stored type = type_;
  static constexpr int step = int(block_shape(type).elements);
  static constexpr int64_t bytes(int64_t i) { return stored_bytes(type, i); }
  static vf vector(const uint8_t* p, int64_t i) {
    p += bytes(i);
    return Own::values(p + 4, int(i % step)) * load_as<float>(p);
  }
  static float one(const uint8_t* p, int64_t i) { return vector(p, i / lanes * lanes)[i % lanes]; }
};

// 1 bit of sign, 4 of exponent, 3 of mantissa: as float16 it would be 256 times as large, and the
// scale is 256 times the file's instead.
struct ReadF8 : ReadScaled<ReadF8, Stored::f8_e4m3> {
  static vf values(const uint8_t* p, int i) {
#if defined(ALEATOR_ISA_v4)
    const __m256i wide = _mm256_cvtepi8_epi16(load_as<__m128i>(p + i));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(~0x4000));
    return _mm512_maskz_cvtph_ps(0xffff, half);
#elif defined(ALEATOR_ISA_v3)
    const __m128i wide =
        _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(~0x4000)));
#else
    const vi code = vi_of_i8(p + i), rest = (code & 0x7f) << 20;
    const vi bits = reinterpret<vi>(reinterpret<vf>(rest) * 0x1p112f) | (code & INT32_MIN);
    return reinterpret<vf>(bits);
#endif
  }
};
// As in ggml's types, byte i of 16 holds elements i (low) and i + 16 of 32.
struct ReadNF4 : ReadScaled<ReadNF4, Stored::nf4> {
  static vf values(const uint8_t* p, int i) {
    const vi both = vi_of_u8(p + i / 32 * 16 + i % 16);
    return looked_up16(nf4_values, both >> (i % 32 / 16 * 4) & 15);
  }
};

}  // namespace aleator::ALEATOR_ISA
