// Kernels over tiles of 128 logits.  Contract: docs/numerics.md; every instruction set gives the
// same bits.
#pragma once

#include <cstdint>

#include "contract.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

constexpr int tile_size = 128, groups_per_tile = 16;

// log2(e) / T as the contract rounds it: a float64 division, then float32.
inline float weight_scale(double temperature) { return float(contract::log2_e / temperature); }

// Below this many bits under the maximum a weight is zero: 2^41 >> 42.  With a margin of one bit.
constexpr float zero_weight_bits = -43.0f;

// Below this many bits a weight is nothing to the entropy: 2^(40 - 47) * 47 is less than 1.
constexpr float no_entropy_bits = -47.0f;

constexpr int32_t max_score = int32_t(-contract::least_bits * contract::depth_unit);
constexpr int bin_shift = 12, n_bins = (max_score >> bin_shift) + 1;  // a sixteenth of a bit each

// Sums for the entropy (samplers/candidates.hpp): of weights, and of weights times their bits.
struct EntropySums {
  uint64_t weight = 0, bits = 0;
};

// Probabilities: below this a weight is zero.  Depths are distances of the values' ordered
// integers, shifted right by so many bits; the largest is that of 0, under `max_score`.
constexpr float least_unit = 0x1p-40f;
constexpr int unit_depth_shift = 8;

// Sums of weights, and of their squares.
struct SquareSums {
  uint64_t weight = 0;
  unsigned __int128 squares = 0;
};

struct Moments {
  uint64_t count = 0;
  int64_t sum = 0;
  uint64_t squares = 0;
};

// What a race's uniforms are made of besides a token's id.
struct RaceNoise {
  uint64_t seed, position;
  uint32_t stream;
};

// clang-format off
// Where each tile is, its maximum, and whether it holds a NaN (then the maximum is not to be used).
ALEATOR_KERNEL(void, tile_scan, (const float *x, int64_t n_tiles, const float **tiles, float *maxima, uint8_t *has_nan))
// Maxima of the groups of 8 logits of one tile; the tile holds no NaN.
ALEATOR_KERNEL(void, group_maxima, (const float *x, float *maxima))
// The largest of n values, none of them NaN.
ALEATOR_KERNEL(float, maximum, (const float* x, int64_t n))
// How many of n values are at least `bound`.
ALEATOR_KERNEL(int64_t, count_at_least, (const float* x, int64_t n, float bound))
// The tiles whose maxima have x - zmax >= threshold, -inf never; returns their count.  The maxima
// are padded with -inf to a multiple of 16.
ALEATOR_KERNEL(int64_t, find_tiles, (const float* maxima, int64_t n, float zmax, float threshold, int32_t* tiles))
// Sum of the Q40 weights of one tile; `most` is its largest value, or more.
ALEATOR_KERNEL(uint64_t, tile_mass, (const float *x, float most, float zmax, float scale))
// Adds what lies at `second` or below it in n tiles to the sums of the entropy; `second` weighs 2^40.
ALEATOR_KERNEL(void, add_entropy, (const float *const *tiles, const float *maxima, int64_t n, float second, float scale, EntropySums *sums))
// Adds the weights of a tile and their squares; `most` is its largest value, or more.
ALEATOR_KERNEL(void, add_squares, (const float *x, float most, float zmax, float scale, SquareSums *sums))
// The smallest value of a tile above -inf; +inf if there is none.
ALEATOR_KERNEL(float, least_finite, (const float *x))
// The largest of n values, a multiple of 16, below `top`, -inf if there is none; adds to `count` how
// many equal it.
ALEATOR_KERNEL(float, below_top, (const float *x, int64_t n, float top, int64_t *count))
// Q40 weights of n logits.
ALEATOR_KERNEL(void, weigh, (const float *x, int64_t n, float zmax, float scale, uint64_t *weights))
// Scores of n logits: abs(depth - mean), at most `max_score`.
ALEATOR_KERNEL(void, score, (const float *x, int64_t n, float zmax, float scale, int32_t mean, int32_t *scores))
// Adds a tile's weights to bins of score, n_bins of them.
ALEATOR_KERNEL(void, add_bins, (const float *x, float zmax, float scale, int32_t mean, uint64_t *bins))
// Adds a tile's count, sum and sum of squares of q = rint(max(x - zmax, -256) * 4096), masked tokens left out.
ALEATOR_KERNEL(void, add_moments, (const float *x, float zmax, Moments *moments))
// Appends the elements of a tile with x - zmax >= threshold, -inf never; returns their count.
// Their ids are listed, or, where that is null, count on from first_id.  ids and logits need room for
// a whole tile.
ALEATOR_KERNEL(int, collect, (const float *x, const int32_t *listed, int32_t first_id, float zmax, float threshold, int32_t *ids, float *logits))
// The same for from <= score <= to.
ALEATOR_KERNEL(int, collect_scored, (const float *x, const int32_t *listed, int32_t first_id, float zmax, float scale, int32_t mean, int32_t from, int32_t to, int32_t *ids, float *logits))
// The ids of the elements of a tile that are at least `bound`; returns their count.
ALEATOR_KERNEL(int, find_at_least, (const float* x, float bound, int32_t first_id, int32_t* ids))
// Which elements of a tile may have E / w of at most `bound` in a race, Dist's; all that have, and few
// others.  Returns their count.
ALEATOR_KERNEL(int, find_contenders, (const float *x, const int32_t *listed, int32_t first_id, float zmax, float scale, const RaceNoise &noise, float bound, int32_t *found))
// Probabilities.  The same, and whether a tile holds a NaN or a value outside [0, 1].
ALEATOR_KERNEL(void, unit_scan, (const float *x, int64_t n_tiles, const float **tiles, float *maxima, uint8_t *irregular))
// Q40 weights trunc(x * 2^40); below 0 is padding and weighs 0.
ALEATOR_KERNEL(void, unit_weigh, (const float *x, int64_t n, uint64_t *weights))
// Their sum over one tile.
ALEATOR_KERNEL(uint64_t, unit_mass, (const float *x))
// The depths, weights by bins of depth, and the elements of a tile with from <= depth <= to.
ALEATOR_KERNEL(void, unit_score, (const float *x, int64_t n, float top, int32_t *scores))
ALEATOR_KERNEL(void, unit_add_bins, (const float *x, float top, uint64_t *bins))
ALEATOR_KERNEL(int, unit_collect_scored, (const float *x, const int32_t *listed, int32_t first_id, float top, int32_t from, int32_t to, int32_t *ids, float *values))
// clang-format on

}  // namespace aleator
