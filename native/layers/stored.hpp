// A weight matrix as its file has it.
#pragma once

#include <cstdint>

namespace aleator {

// f16 and bf16 widen exactly; a q8_0 block is one f16 scale and 32 int8, 34 bytes (ggml's layout).
enum class Stored : int { f32, f16, bf16, q8_0 };

struct Weights {
  const uint8_t* data = nullptr;  // rows of row_bytes each; any alignment
  Stored type = Stored::f32;
  int64_t out = 0, in = 0;  // [out, in]
  int64_t row_bytes = 0;
  const float* bias = nullptr;  // [out] or none
};

constexpr int64_t q8_0_block = 32, q8_0_bytes = 34;

}  // namespace aleator
