// The activation of gated feed-forward layers (Shazeer 2020, arXiv:2002.05202).
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// What the gate goes through before it is multiplied with the other half.  silu_clamped is
// gpt-oss's: x / (1 + e^(-1.702 x)) * (up + 1), x at most 7 and up within -7 and 7.
enum class Gate : int { silu, gelu, gelu_rounded, silu_clamped, gelu_exact, relu_squared };

// gate = activation(gate) * up, n elements.
void apply_gate(Gate kind, float* gate, const float* up, int64_t n);

ALEATOR_KERNEL(void, swiglu_clamped, (float* gate, const float* up, int64_t n))

}  // namespace aleator
