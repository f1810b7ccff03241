// What a decoder does to single rows of float32 besides matrix products.
#pragma once

#include "layers/stored.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// Keys or values of one layer: [n_cells, heads, dim], contiguous; or channel by channel, [heads,
// dim, n_cells], where the type is not one in blocks.
struct CacheSide {
  uint8_t* data = nullptr;
  Stored type = Stored::f32;
  int64_t heads = 0, dim = 0, n_cells = 0;
  bool by_channel = false;
  int64_t rotation = 0;  // heads are stored rotated by a Hadamard matrix in blocks of so many
  int64_t within = 0;    // values are the first `dim` of so many channels of the keys; 0: apart
  int64_t row_bytes() const { return stored_bytes(type, within ? within : dim); }
  // Where one head's rows lie, by cell: worked out once for many of them, since it takes a
  // division.
  struct Rows {
    uint8_t* first;
    int64_t step;
    uint8_t* operator[](int64_t cell) const { return first + cell * step; }
  };
  Rows rows(int64_t head) const {
    const int64_t bytes = row_bytes();
    return {data + head * bytes, heads * bytes};
  }
  uint8_t* row(int64_t cell, int64_t head) const {
    return data + (cell * heads + head) * row_bytes();
  }
  uint8_t* channel(int64_t head, int64_t i) const {
    return data + (head * dim + i) * n_cells * stored_bytes(type, 1);
  }
};

// y = x / sqrt(mean(x^2) + eps) * weight; y may be x.
ALEATOR_KERNEL(void, rms_norm,
               (const float* x, const float* weight, int64_t n, float eps, float* y))
// y = (x - mean) / sqrt(variance + eps) * weight + bias, where the n biases follow the n weights; y
// may be x.
ALEATOR_KERNEL(void, layer_norm,
               (const float* x, const float* weight, int64_t n, float eps, float* y))
// Turns x by cos_sin [pairs][2]: channels (2i, 2i + 1) if interleaved, else (i, i + pairs).
ALEATOR_KERNEL(void, rotate, (float* x, const float* cos_sin, int64_t pairs, bool interleaved))
// Turns every `block` (a power of 2) of n values by the Hadamard matrix of that size in its natural
// order, scaled to be its own inverse.
ALEATOR_KERNEL(void, hadamard, (float* x, int64_t n, int64_t block))
// Rounds n values to nearest, ties to even, or into blocks, into a row of the cache.
ALEATOR_KERNEL(void, store_row, (const float* x, int64_t n, Stored type, uint8_t* row))
// One head of one cell.
ALEATOR_KERNEL(void, store_head,
               (const float* x, const CacheSide& side, int64_t cell, int64_t head))
}  // namespace aleator
