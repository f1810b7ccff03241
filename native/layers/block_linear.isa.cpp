#include "layers/block_linear.hpp"

#include <cmath>

#include "layers/block_types.hpp"
#include "layers/lanes16.hpp"

#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
#include "layers/block_dots.hpp"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "layers/block_sdot.hpp"
#elif defined(__wasm_simd128__)
#include "layers/block_simd128.hpp"
#endif

namespace aleator::ALEATOR_ISA {

void round_row(const float* x, int64_t in, int64_t block, int8_t* q, float* d, int16_t* sums) {
  for (int64_t b = 0; b < in; b += block) {
    const float* from = x + b;
    vi top = {};
    for (int64_t i = 0; i < block; i += lanes) {
      const vi bits = reinterpret<vi>(load(from + i)) & 0x7fffffff;
      const vi higher = bits > top;
      top = (bits & higher) | (top & ~higher);
    }
    int32_t most = 0;
    for (int i = 0; i < lanes; i++) most = top[i] > most ? top[i] : most;
    const float largest = reinterpret<float>(most);
    const bool none = largest < 0x1p-100f, broken = most >= 0x7f800000;
    const float factor = none || broken ? 0.0f : 127.0f / largest;
    d[b / block] = broken ? NAN : none ? 0.0f : largest / 127.0f;
    for (int64_t i = 0; i < block; i += 16) {
      int32_t sum = 0;
      for (int64_t k = i; k < i + 16; k++) {
        const float scaled = (broken ? 0.0f : from[k]) * factor;
        const int32_t n = reinterpret<int32_t>(scaled + 0x1.8p23f) - 0x4b400000;
        q[b + k] = int8_t(n);
        sum += n;
      }
      sums[(b + i) / 16] = int16_t(sum);
    }
  }
}

#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)

// Up to so many tokens it costs less to read rows of W as they lie, again for every two to four
// tokens, than to take them apart once for all: measured with matrices that come from memory
// (docs/performance.md, "Many tokens").
static int64_t few_tokens([[maybe_unused]] Stored type) {
#if defined(ALEATOR_ISA_v4)
  if (type == Stored::q6_k) return 5;
  const bool fifths = type == Stored::q5_0 || type == Stored::q5_1;
  return fifths || type == Stored::q3_k || type == Stored::q8_0 ? 4 : 3;
#else
  return 2;
#endif
}

void block_rows(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride) {
  (x.tokens <= few_tokens(w.type) ? block_few : block_many)(w, begin, end, x, y, y_stride);
}

#else

#if !defined(__ARM_FEATURE_DOTPROD) && !defined(__wasm_simd128__)
// The contract in plain words: one row and one token at a time.
template <class B>
static float dot(const uint8_t* p, const int8_t* q, const float* d, const int16_t* sums,
                 int64_t in) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  float total = 0;
  for (int64_t b = 0; b < in / block; b++, p += bytes, q += block, sums += block / 16) {
    if constexpr (large<B>) {
      Parts part;
      B::unpack(p, part);
      int32_t sum = 0, least = 0;
      for (int j = 0; j < 16; j++) {
        int32_t dot = 0;
        for (int i = 16 * j; i < 16 * j + 16; i++) dot += int32_t(part.u[i]) * q[i];
        sum += part.scale[j] * (dot - B::zero * sums[j]);
        if constexpr (B::has_least) least += part.least[j] * sums[j];
      }
      total = fused(large_scale_of<B>(p) * d[b], float(sum), total);
      if constexpr (B::has_least)
        total = fused(-(half_at(p + B::dmin_at) * d[b]), float(least), total);
    } else {
      const vu8x32 u = B::unpack(p);
      int32_t sum = 0;
      for (int i = 0; i < 32; i++) sum += int32_t(u[i]) * q[i];
      total = fused(scale_of<B>(p) * d[b], float(sum - B::zero * sum32(sums)), total);
      if constexpr (B::has_m) total = fused(half_at(p + 2), d[b] * float(sum32(sums)), total);
    }
  }
  return total;
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  const int64_t blocks_ = x.in / block_shape(B::type).elements;
  for (int64_t row = begin; row < end; row++)
    for (int64_t t = 0; t < x.tokens; t++) {
      const float sum = dot<B>(w.data + row * w.row_bytes, x.q + t * x.in, x.d + t * blocks_,
                               x.sums + t * x.in / 16, x.in);
      y[t * y_stride + row] = w.bias ? sum + w.bias[row] : sum;
    }
}

#endif

void block_rows(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride) {
  with_block(w.type, [&](auto block) { product<decltype(block)>(w, begin, end, x, y, y_stride); });
}

#endif

// GCC 12 at -O3 with AVX2 takes this for a function that writes nothing, and drops its calls.
#if defined(__GNUC__) && !defined(__clang__)
#define ALEATOR_KEPT [[gnu::noipa]]
#else
#define ALEATOR_KEPT
#endif
template <class B>
ALEATOR_KEPT static void read_blocks(const uint8_t* p, int64_t in, float* y) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  for (int64_t b = 0; b < in / block; b++, p += bytes, y += block) {
    if constexpr (large<B>) {
      Parts part;
      B::unpack(p, part);
      const float d = large_scale_of<B>(p);
      float dmin = 0;
      if constexpr (B::has_least) dmin = half_at(p + B::dmin_at);
      for (int j = 0; j < 16; j++) {
        const float scale = d * float(part.scale[j]);
        const float least = B::has_least ? dmin * float(part.least[j]) : 0.0f;
        for (int i = 16 * j; i < 16 * j + 16; i++) {
          const float v = scale * float(int(part.u[i]) - B::zero);
          y[i] = B::has_least ? v - least : v;
        }
      }
    } else {
      const vu8x32 u = B::unpack(p);
      const float d = scale_of<B>(p), m = B::has_m ? half_at(p + 2) : 0.0f;
      for (int i = 0; i < 32; i++) {
        const float v = d * float(int(u[i]) - B::zero);
        y[i] = B::has_m ? v + m : v;
      }
    }
  }
}

void read_block_row(const Weights& w, int64_t row, float* y) {
  with_block(w.type, [&](auto block) {
    read_blocks<decltype(block)>(w.data + row * w.row_bytes, w.in, y);
  });
}

}  // namespace aleator::ALEATOR_ISA
