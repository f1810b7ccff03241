#include "layers/rows.hpp"

#include <cmath>

#include "cache/quantise.hpp"
#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float factor = 1.0f / std::sqrt(dot16(x, x, n) / float(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

void layer_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float mean = total16(x, n) / float(n);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
  const float factor = 1.0f / std::sqrt(dot16(y, y, n) / float(n) + eps), *bias = weight + n;
  for (int64_t i = 0; i < n; i++) {
    const float scaled = y[i] * factor * weight[i];
    y[i] = scaled + bias[i];
  }
}

void rotate(float* x, const float* cos_sin, int64_t pairs, bool interleaved) {
  const int64_t next = interleaved ? 2 : 1, other = interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; i++) {
    float &a = x[i * next], &b = x[i * next + other];
    const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a0 = a, b0 = b;
    a = a0 * c - b0 * s;
    b = a0 * s + b0 * c;
  }
}

template <int half, int... i>
static inline vf exchanged(vf v, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(v, v, (i ^ half)...);
}
// Sums and differences of lanes `half` apart, for the halves below a vector's width.
template <int half>
static inline vf butterflies(vf v) {
  if constexpr (half < lanes) {
    vf sign;
    for (int i = 0; i < lanes; i++) sign[i] = i & half ? -1.0f : 1.0f;
    return butterflies<half * 2>(exchanged<half>(v, std::make_integer_sequence<int, lanes>()) +
                                 v * sign);
  }
  return v;
}

void hadamard(float* x, int64_t n, int64_t block) {
  const float scale = 1.0f / std::sqrt(float(block));
  for (float *at = x, *end = x + n; at < end; at += block) {
    int64_t half = 1;
    if (block >= lanes) {
      half = lanes;
      for (int64_t k = 0; k < block; k += lanes) store(at + k, butterflies<1>(load(at + k)));
    }
    for (; half < block; half *= 2)
      for (int64_t i = 0; i < block; i += 2 * half)
        for (int64_t j = i; j < i + half; j++) {
          const float a = at[j], b = at[j + half];
          at[j] = a + b;
          at[j + half] = a - b;
        }
    for (int64_t i = 0; i < block; i++) at[i] *= scale;
  }
}

static inline uint16_t half_of(float x, Stored type) {
  return type == Stored::f16 ? f16_of_f32(x) : bf16_of_f32(x);
}

void store_row(const float* x, int64_t n, Stored type, uint8_t* row) {
  if (in_blocks(type)) return quantise_row(x, n, type, row);
  if (type == Stored::f32) {
    std::memcpy(row, x, size_t(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const uint16_t h = half_of(x[i], type);
    std::memcpy(row + 2 * i, &h, 2);
  }
}

void store_head(const float* x, const CacheSide& side, int64_t cell, int64_t head) {
  if (!side.by_channel) return store_row(x, side.dim, side.type, side.row(cell, head));
  const int64_t size = stored_bytes(side.type, 1);
  for (int64_t i = 0; i < side.dim; i++)
    store_row(x + i, 1, side.type, side.channel(head, i) + cell * size);
}

}  // namespace aleator::ALEATOR_ISA
