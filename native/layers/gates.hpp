// What a feed-forward part's gate goes through (Shazeer 2020, arXiv:2002.05202).  GELU is its
// approximation by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415).
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// silu_clamped is gpt-oss's: x / (1 + e^(-1.702 x)) * (up + 1), x at most 7 and up within -7 and 7.
enum class Gate : int { silu, gelu, gelu_rounded, silu_clamped, gelu_exact, relu_squared };

// gate = activation(gate) * up, n elements.
void apply_gate(Gate kind, float* gate, const float* up, int64_t n);

ALEATOR_KERNEL(void, swiglu, (float* gate, const float* up, int64_t n))
ALEATOR_KERNEL(void, swiglu_clamped, (float* gate, const float* up, int64_t n))
ALEATOR_KERNEL(void, square_glu, (float* gate, const float* up, int64_t n))  // of max(gate, 0)
ALEATOR_KERNEL(void, geglu, (float* gate, const float* up, int64_t n))
ALEATOR_KERNEL(void, geglu_exact,
               (float* gate, const float* up, int64_t n))  // by the error function
// By a table of GELU of every float16, as float16: what llama.cpp computes with
// (ggml_vec_geglu_f32).  gate is rounded to float16 first, and beyond -10 and 10 GELU is 0 or the
// identity.
ALEATOR_KERNEL(void, geglu_rounded, (float* gate, const float* up, int64_t n))
ALEATOR_KERNEL(void, fill_gelu_table, (uint16_t* table))
const uint16_t* gelu_table();  // made at the first call

// x = cap * tanh(x / cap).
ALEATOR_KERNEL(void, soften, (float* x, int64_t n, float cap))

}  // namespace aleator
