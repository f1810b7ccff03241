// Rows of x by the lanes of their sums (docs/numerics.md, part 2), which some products take in
// turn.
#pragma once

#include <cstdint>

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// Lanes follow each other in such an order that each sum of the tree has its parts when the second
// one is there.
constexpr int turn_of_lane(int lane) {
  return (lane & 1) << 3 | (lane & 2) << 1 | (lane & 4) >> 1 | lane >> 3;
}
// Tokens in tiles, of nearly as many each.
constexpr int64_t lane_tile = 6;
struct LaneTiles {
  int64_t tokens, n = (tokens + lane_tile - 1) / lane_tile;
  int64_t first(int64_t tile) const { return tokens * tile / n; }
};
// How far a lane's elements of a tile are from those of the next one, and of the next tile. A step
// has lane_tile elements.
constexpr int64_t lane_apart(int64_t in) { return (in + 15) / 16 * lane_tile + 16; }
constexpr int64_t tile_apart(int64_t in) { return 16 * lane_apart(in); }

// Rows x [tokens, in] of a tile lane by lane, those of a step side by side, zeros after the last
// element.
ALEATOR_KERNEL(void, rows_by_lanes,
               (const float* x, int64_t stride, int64_t tokens, int64_t in, float* y))

// With how many tokens products by lanes are faster.
constexpr int64_t least_laned(Stored type) {
  return type == Stored::f32 || type == Stored::f16 ? 48 : INT64_MAX;
}

}  // namespace aleator
