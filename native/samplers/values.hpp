// What the values of a row are, and what they weigh: Q40 integers of logits at a temperature, or of
// probabilities.  TiledRow and RankedRow do the rest alike for both.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "samplers/tiles.hpp"

namespace aleator {

constexpr float infinity = std::numeric_limits<float>::infinity();

// The order of a row's tokens is value descending, then token id ascending.

// Floats as integers in the same order.  The argument is never -0 nor NaN.
inline uint32_t ordered(float z) {
  const auto b = std::bit_cast<uint32_t>(z);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

inline float from_ordered(uint32_t b) {
  return std::bit_cast<float>(b & 0x80000000u ? b & 0x7FFFFFFFu : ~b);
}

// A token's place in the order: larger is earlier.
inline uint64_t order_key(float z, int32_t id) {
  return uint64_t(ordered(z)) << 32 | uint32_t(~id);
}

// Logits.  Contract: docs/numerics.md.
struct LogitValues {
  static constexpr float of_nan = -infinity;  // masked
  static constexpr bool bounded = false;
  // How much the depth grows where the weight halves.
  static constexpr int32_t octave = 1 << 16;

  float top, scale;  // the largest value; log2(e) / T

  // Distances of values are from here.  A finite stand-in does for a row topped by +inf: z - top
  // would be NaN for masked tokens, and collecting everything is all that such a row is asked for.
  float origin() const { return std::isfinite(top) ? top : 0.0f; }
  // Whether a tile weighs nothing, and its mass, given its largest value.
  bool weightless(float most) const { return (most - top) * scale < zero_weight_bits; }
  uint64_t mass(const float* x, float most) const {
    return weightless(most) ? 0 : tile_mass_(x, most, top, scale);
  }
  void weigh(const float* x, int64_t n, uint64_t* weights) const {
    weigh_(x, n, top, scale, weights);
  }
  // Depths and scores: docs of `score` in tiles.hpp.
  void score(const float* x, int64_t n, int32_t mean, int32_t* scores) const {
    score_(x, n, top, scale, mean, scores);
  }
  void add_bins(const float* x, int32_t mean, uint64_t* bins) const {
    add_bins_(x, top, scale, mean, bins);
  }
  int collect_scored(const float* x, const int32_t* listed, int32_t first_id, int32_t mean,
                     int32_t from, int32_t to, int32_t* ids, float* values) const {
    return collect_scored_(x, listed, first_id, top, scale, mean, from, to, ids, values);
  }
  // A distance within which every value of at most this depth lies.
  float threshold(int64_t depth) const {
    if (depth >= max_score) return -infinity;  // depths end there
    // A hundredth of a bit covers the roundings.
    return float(-(double(depth) / 65536 + 0.01) / double(scale));
  }

  static constexpr const auto& scan = tile_scan_;
};

// Probabilities, which lie in [0, 1] and are never normalised.  Contract: docs/operator.md.
struct ProbabilityValues {
  static constexpr float of_nan = 0;
  static constexpr bool bounded = true;
  static constexpr int32_t octave = 1 << (23 - unit_depth_shift);

  float top, scale;  // the largest value; without a use

  float origin() const { return 0; }
  bool weightless(float most) const { return most < least_unit; }
  uint64_t mass(const float* x, float most) const { return weightless(most) ? 0 : unit_mass_(x); }
  void weigh(const float* x, int64_t n, uint64_t* weights) const { unit_weigh_(x, n, weights); }
  void score(const float* x, int64_t n, int32_t, int32_t* scores) const {
    unit_score_(x, n, top, scores);
  }
  void add_bins(const float* x, int32_t, uint64_t* bins) const { unit_add_bins_(x, top, bins); }
  int collect_scored(const float* x, const int32_t* listed, int32_t first_id, int32_t, int32_t from,
                     int32_t to, int32_t* ids, float* values) const {
    return unit_collect_scored_(x, listed, first_id, top, from, to, ids, values);
  }
  float threshold(int64_t depth) const {
    const int64_t zero = ordered(0.0f), least = ordered(top) - ((depth + 1) << unit_depth_shift);
    return least < zero ? 0.0f : from_ordered(uint32_t(least + 1));
  }

  static constexpr const auto& scan = unit_scan_;
};

}  // namespace aleator
