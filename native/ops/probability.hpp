// Kernels of the operator over lists: probabilities of weights, and the race against q.
// Contract: docs/operator.md; every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// clang-format off w / total, divided in float64, then rounded to float32.
ALEATOR_KERNEL(void, to_probabilities,
               (const uint64_t* weights, int64_t n, uint64_t total, float* probs))
// score = prob / (|q| + eps), and -1 where prob is 0; returns the largest score, or NaN if a q is
// NaN.
ALEATOR_KERNEL(float, race_scores,
               (const float* probs, const float* q, int64_t n, float eps, float* scores))
// The least |q| of n, or NaN if one is NaN.
ALEATOR_KERNEL(float, least_noise, (const float* q, int64_t n))
// clang-format on

}  // namespace aleator
