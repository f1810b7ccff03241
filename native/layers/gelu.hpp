// GELU in its approximation by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415), times another
// row.
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// tanh x, correctly rounded but for a few x very near a tie.
float tanh_rounded(float x);
// GELU of every float16, as float16: what llama.cpp computes with (ggml_vec_geglu_f32).  Made at
// the first call.
const uint16_t* gelu_table();
ALEATOR_KERNEL(void, fill_gelu_table, (uint16_t* table))

// x = cap * tanh(x / cap).
ALEATOR_KERNEL(void, soften, (float* x, int64_t n, float cap))
// gate = gelu(gate) * up.
ALEATOR_KERNEL(void, geglu, (float* gate, const float* up, int64_t n))
// The same with GELU itself, by the error function.
ALEATOR_KERNEL(void, geglu_exact, (float* gate, const float* up, int64_t n))
// By the table: gate is rounded to float16 first, and beyond -10 and 10 GELU is 0 or the identity.
ALEATOR_KERNEL(void, geglu_rounded,
               (float* gate, const float* up, int64_t n, const uint16_t* table))

}  // namespace aleator
