// Sums of several rows of W times several rows of x, in sixteen lanes each, as results.
// Included by *.isa.cpp files only.
#pragma once

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int tile_rows = 4;
constexpr int64_t near_x = 24 << 10;  // bytes of x's rows that stay in the first-level cache

// Whether a tile's rows are read one after another, as they lie in memory, not side by side: one
// stream comes faster than four (docs/performance.md). That pays for up to `most` tokens, if their
// rows of x, `bytes` together, stay in the first-level cache.
static inline bool one_after_another(int64_t tokens, int64_t most, int64_t bytes) {
  return lanes == 16 && (tokens == 1 || (tokens <= most && bytes <= near_x));
}
// Not so with matrices that stay in the caches (from_memory): each sum of a row waits for the one
// before, which takes up to twice the time of four rows side by side.
constexpr int64_t onward = 8 << 10;  // bytes that are asked for ahead meanwhile

// The trees of a token's four sums. With two registers for each the lanes 4 apart of two sums are
// added in one.
static inline v4 sums_of_tile(const v16 (&v)[4]) {
#if defined(ALEATOR_ISA_v3)
  const auto folds = [](v16 a, v16 b) {
    const vf x = a.part[0] + a.part[1], y = b.part[0] + b.part[1];
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 12, 13, 14, 15) +
           __builtin_shufflevector(x, y, 4, 5, 6, 7, 8, 9, 10, 11);
  };
  const vf even = folds(v[0], v[2]), odd = folds(v[1], v[3]);
  const vf pairs = __builtin_shufflevector(even, odd, 0, 1, 8, 9, 4, 5, 12, 13) +
                   __builtin_shufflevector(even, odd, 2, 3, 10, 11, 6, 7, 14, 15);
  const v4 low = __builtin_shufflevector(pairs, pairs, 0, 1, 2, 3);
  const v4 high = __builtin_shufflevector(pairs, pairs, 4, 5, 6, 7);
  return __builtin_shufflevector(low, high, 0, 2, 4, 6) +
         __builtin_shufflevector(low, high, 1, 3, 5, 7);
#else
  return sums16(v[0], v[1], v[2], v[3]);
#endif
}

// A tile's sums, to which the bias is added last.
template <int R, int T>
static inline void finish(const v16 (*total)[R], const float* bias, float* y, int64_t y_stride) {
  if constexpr (R == 4) {
    const v4 b = bias ? load_as<v4>(bias) : v4{};
    const auto put = [&](int t, v4 sums) {
      if (bias) sums += b;
      std::memcpy(y + t * y_stride, &sums, sizeof sums);
    };
    int t = 0;
    if constexpr (T >= 4) {
      const v16 sums = sums16({total[0][0], total[0][1], total[0][2], total[0][3],  //
                               total[1][0], total[1][1], total[1][2], total[1][3],  //
                               total[2][0], total[2][1], total[2][2], total[2][3],  //
                               total[3][0], total[3][1], total[3][2], total[3][3]});
      float out[16];
      store16(out, sums);
      for (; t < 4; t++) put(t, load_as<v4>(out + 4 * t));
    }
#pragma GCC unroll 4
    for (; t < T; t++) put(t, sums_of_tile(total[t]));
  } else {
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const float sum = sum16(total[t][r]);
        y[t * y_stride + r] = bias ? sum + bias[r] : sum;
      }
  }
}

// The sums of a row of each of P parts of W.
template <int P>
static inline void finish_parts(const Weights& w, int64_t row, const v16 (&total)[P], float* y) {
  const int64_t rows = w.out / P;
  for (int part = 0; part < P; part += 4) {
    const v4 sums = sums_of_tile(reinterpret_cast<const v16(&)[4]>(total[part]));
    for (int64_t i = 0; i < 4; i++, row += rows) y[row] = w.bias ? sums[i] + w.bias[row] : sums[i];
  }
}

}  // namespace aleator::ALEATOR_ISA
