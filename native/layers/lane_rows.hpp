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
// How far a lane's elements are from those of the next one.
constexpr int64_t lane_steps(int64_t in) { return (in + 127) / 128 * 8; }

struct LanedRows {
  const float* floats = nullptr;
  int64_t stride = 0;  // from row to row
};

// x [in] lane by lane, zeros after the last element.
ALEATOR_KERNEL(void, lane_row, (const float* x, int64_t in, float* y))

// With how many tokens products by lanes are faster.
constexpr int64_t least_laned(Stored type) {
  return type == Stored::f32 || type == Stored::f16 ? 48 : INT64_MAX;
}

}  // namespace aleator
