// Elements as a model file or the KV cache has them.
#pragma once

#include <cstdint>

namespace aleator {

// f16 and bf16 widen exactly.  f8_e4m3 and nf4 are floats with a scale, for which see
// layers/scaled.hpp.  The others are ggml's blocks (ggml-common.h), for which see
// layers/blocks.hpp; the cache stores those of 32 elements only.
enum class Stored : int {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  iq4_nl,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_xs,
  mxfp4,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq1_s,
  iq1_m,
  tq1_0,
  tq2_0,
  f8_e4m3,
  nf4
};

constexpr float iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// Twice what MXFP4's elements stand for, before their scale, half of which is read.
constexpr float mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// What NF4's codes stand for, before their scale (Dettmers et al. 2023, arXiv:2305.14314).
constexpr float nf4_values[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};

struct Weights {
  const uint8_t* data = nullptr;  // rows of row_bytes each; any alignment
  Stored type = Stored::f32;
  int64_t out = 0, in = 0;  // [out, in]
  int64_t row_bytes = 0;
  const float* bias = nullptr;  // [out] or none
  // Of matrices in blocks: column i meets element order[i] of x, [in]; none: element i.
  const int32_t* order = nullptr;
};

// Whether a matrix stays in no cache: models are seldom as small as that.
constexpr bool from_memory(const Weights& w) {
  return w.row_bytes >= 1 << 10 && w.out * w.row_bytes >= 512 << 10;
}

// How a type is stored: so many elements in so many bytes.
struct BlockShape {
  const char* name;
  int64_t elements, bytes;
};
constexpr BlockShape block_shapes[] = {
    {"F32", 1, 4},        {"F16", 1, 2},       {"BF16", 1, 2},       {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},     {"Q4_1", 32, 20},    {"Q5_0", 32, 22},     {"Q5_1", 32, 24},
    {"IQ4_NL", 32, 18},   {"Q2_K", 256, 84},   {"Q3_K", 256, 110},   {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},   {"Q6_K", 256, 210},  {"IQ4_XS", 256, 136}, {"MXFP4", 32, 17},
    {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ2_S", 256, 82},   {"IQ3_XXS", 256, 98},
    {"IQ3_S", 256, 110},  {"IQ1_S", 256, 50},  {"IQ1_M", 256, 56},   {"TQ1_0", 256, 54},
    {"TQ2_0", 256, 66},   {"F8_E4M3", 64, 68}, {"NF4", 64, 36}};
constexpr BlockShape block_shape(Stored type) { return block_shapes[int(type)]; }

constexpr int64_t block_elements = 32;  // of the cache's blocks
constexpr bool single(Stored type) { return block_shape(type).elements == 1; }
// Of floats that share a scale: products meet activations in float32, as with single numbers.
constexpr bool scaled(Stored type) { return type >= Stored::f8_e4m3; }
// Of ggml's blocks: products meet activations rounded to int8.
constexpr bool in_blocks(Stored type) { return !single(type) && !scaled(type); }
// Bytes of n elements; n fills whole blocks.
constexpr int64_t stored_bytes(Stored type, int64_t n) {
  return n / block_shape(type).elements * block_shape(type).bytes;
}

}  // namespace aleator
