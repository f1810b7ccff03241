// Elements as a model file or the KV cache has them.
#pragma once

#include <cstdint>

namespace aleator {

// f16 and bf16 widen exactly.  The others are ggml's blocks of 32 elements.  A block begins with
// its scale d (f16); byte i of the nibbles holds elements i (low) and i + 16; bit i of the u32 `qh`
// is the fifth bit of element i.
//
//   q8_0    d, 32 int8                      q * d              34 bytes
//   q4_0    d, nibbles                      (q - 8) * d        18
//   q4_1    d, least m (f16), nibbles       q * d + m          20
//   q5_0    d, qh, nibbles                  (q - 16) * d       22
//   q5_1    d, least m (f16), qh, nibbles   q * d + m          24
//   iq4_nl  d, nibbles                      iq4_nl_values[q] * d   18
enum class Stored : int { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl };

constexpr float iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

struct Weights {
  const uint8_t* data = nullptr;  // rows of row_bytes each; any alignment
  Stored type = Stored::f32;
  int64_t out = 0, in = 0;  // [out, in]
  int64_t row_bytes = 0;
  const float* bias = nullptr;  // [out] or none
};

constexpr int64_t block_elements = 32;
// Bytes of a block; 0 where elements are stored singly.
constexpr int64_t block_bytes(Stored type) {
  switch (type) {
    case Stored::q8_0:
      return 34;
    case Stored::q4_0:
    case Stored::iq4_nl:
      return 18;
    case Stored::q4_1:
      return 20;
    case Stored::q5_0:
      return 22;
    case Stored::q5_1:
      return 24;
    default:
      return 0;
  }
}
constexpr bool in_blocks(Stored type) { return block_bytes(type) > 0; }
// Whether a matrix of weights may have the type; the others are for the cache.
constexpr bool of_weights(Stored type) { return type <= Stored::q4_0; }
// Bytes of n elements; n fills whole blocks.
constexpr int64_t stored_bytes(Stored type, int64_t n) {
  if (in_blocks(type)) return n / block_elements * block_bytes(type);
  return n * (type == Stored::f32 ? 4 : 2);
}

}  // namespace aleator
