// Weights into ggml's blocks, as llama-quantize stores them, byte for byte.
#pragma once

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// Whether there is a quantiser for a type: one that looks for the scales of least error where there
// are importances, or the type has blocks of 256; else one that rounds.
constexpr bool quantisable(Stored type) {
  return type <= Stored::q5_1 || (type >= Stored::q2_k && type <= Stored::q6_k) ||
         type == Stored::mxfp4;
}
constexpr bool searched(Stored type, bool weighed) {
  return block_shape(type).elements == 256 ||
         (weighed && type >= Stored::q4_0 && type <= Stored::q5_1);
}

// `rows` rows of n values, whole blocks of a type that is searched; importance [n] is what each
// column's squared error counts, or null: what llama.cpp takes then.
ALEATOR_KERNEL(void, quantise_searched,
               (const float* x, int64_t rows, int64_t n, Stored type, const float* importance,
                uint8_t* out))
// n values into blocks of MXFP4.
ALEATOR_KERNEL(void, quantise_mxfp4, (const float* x, int64_t n, uint8_t* out))

}  // namespace aleator
