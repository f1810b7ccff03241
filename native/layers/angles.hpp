// The angles of rotary position embeddings, with equal bits on every machine.
#pragma once

#include <cstdint>

namespace aleator {

// Rotary position embedding.
struct Rotation {
  const double* frequencies = nullptr;  // radians per position of each rotated pair
  int64_t pairs = 0;                    // at most head_dim / 2
  double magnitude = 1;
  bool interleaved = false;  // channels (2i, 2i + 1), else (i, i + pairs)
};

// out [n, pairs, 2]: magnitude times cosine and sine of sign * positions[i] * frequency, in float64
// and then rounded.
void rotary_angles(const Rotation& r, const int32_t* positions, int64_t n, double sign,
                   double magnitude, float* out);

}  // namespace aleator
