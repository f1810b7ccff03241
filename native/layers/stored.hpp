// Elements as a model file or the KV cache has them.
#pragma once

#include <cstdint>

namespace aleator {

// f16 and bf16 widen exactly.  ggml's blocks of 32 elements: q8_0 is one f16 scale and 32 int8, 34
// bytes; q4_0 one f16 scale and 16 bytes of nibbles, 8 more than the value, byte i holding elements
// i (low) and i + 16, 18 bytes.
enum class Stored : int { f32, f16, bf16, q8_0, q4_0 };

struct Weights {
  const uint8_t* data = nullptr;  // rows of row_bytes each; any alignment
  Stored type = Stored::f32;
  int64_t out = 0, in = 0;  // [out, in]
  int64_t row_bytes = 0;
  const float* bias = nullptr;  // [out] or none
};

constexpr int64_t block_elements = 32, q8_0_bytes = 34, q4_0_bytes = 18;
constexpr bool in_blocks(Stored type) { return type == Stored::q8_0 || type == Stored::q4_0; }
// Bytes of n elements; n fills whole blocks.
constexpr int64_t stored_bytes(Stored type, int64_t n) {
  if (type == Stored::q8_0) return n / block_elements * q8_0_bytes;
  if (type == Stored::q4_0) return n / block_elements * q4_0_bytes;
  return n * (type == Stored::f32 ? 4 : 2);
}

}  // namespace aleator
