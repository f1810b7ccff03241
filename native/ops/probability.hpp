// Kernels of the operator over rows and lists: probabilities as input, and the race against q.
// Contract: docs/operator.md; every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// What unit_scan finds wrong with a tile.
constexpr uint8_t tile_has_nan = 1, tile_outside = 2;

// clang-format off
// Maximum of each tile of 128 probabilities, and what is wrong with it: a NaN, or a value outside [0, 1].
ALEATOR_DECLARE(void unit_scan(const float *x, int64_t n_tiles, float *maxima, uint8_t *flags))
// Q40 weights trunc(x * 2^40) of n probabilities; below 0 is padding and weighs 0.
ALEATOR_DECLARE(void unit_weigh(const float *x, int64_t n, uint64_t *weights))
// Their sum over one tile.
ALEATOR_DECLARE(uint64_t unit_mass(const float *x))
// w / total, divided in float64, then rounded to float32.
ALEATOR_DECLARE(void to_probabilities(const uint64_t *weights, int64_t n, uint64_t total, float *probs))
// score = prob / (|q| + eps), and -1 where prob is 0; returns the largest score, or NaN if a q is NaN.
ALEATOR_DECLARE(float race_scores(const float *probs, const float *q, int64_t n, float eps, float *scores))
// The least |q| of n, or NaN if one is NaN.
ALEATOR_DECLARE(float least_noise(const float *q, int64_t n))
// clang-format on

}  // namespace aleator
