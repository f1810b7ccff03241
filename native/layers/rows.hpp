// What a decoder does to single rows of float32 besides matrix products.
#pragma once

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// Keys or values of one layer: [n_cells, heads, dim], contiguous.
struct CacheSide {
  uint8_t* data = nullptr;
  Stored type = Stored::f32;  // not q8_0
  int64_t heads = 0, dim = 0;
  int64_t row_bytes() const { return dim * (type == Stored::f32 ? 4 : 2); }
  uint8_t* row(int64_t cell, int64_t head) const {
    return data + (cell * heads + head) * row_bytes();
  }
};

// y = x / sqrt(mean(x^2) + eps) * weight; y may be x.
ALEATOR_DECLARE(void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y))
// Turns x by cos_sin [pairs][2]: channels (2i, 2i + 1) if interleaved, else (i, i + pairs).
ALEATOR_DECLARE(void rotate(float* x, const float* cos_sin, int64_t pairs, bool interleaved))
// gate = silu(gate) * up.
ALEATOR_DECLARE(void swiglu(float* gate, const float* up, int64_t n))
// Rounds n values to nearest, ties to even, into a row of the cache.
ALEATOR_DECLARE(void store_row(const float* x, int64_t n, Stored type, uint8_t* row))
// out[values.dim] = softmax(q k^T * scale) v over the n listed cells (at least one) of one head.
// scores: room for n and `attention_slack` more.
ALEATOR_DECLARE(void attend(const float* q, const CacheSide& keys, const CacheSide& values,
                            int64_t head, const int32_t* cells, int64_t n, float scale,
                            float* scores, float* out))
constexpr int64_t attention_slack = 16;

}  // namespace aleator
