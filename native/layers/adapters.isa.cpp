#include "layers/adapters.hpp"

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// n numbers at p, which are lanes `lane` to `lane` + n of sixteen.
static inline v16 load_within16(const float* p, int64_t lane, int64_t n) {
#if defined(ALEATOR_ISA_v4)
  return {_mm512_maskz_loadu_ps(__mmask16(((1u << n) - 1) << lane), p - lane)};
#else
  if (n == 16) return load16(p);
  float some[16] = {};
  std::memcpy(some + lane, p, size_t(n) * 4);
  return load16(some);
#endif
}
static inline void store_within16(float* p, int64_t lane, int64_t n, v16 v) {
#if defined(ALEATOR_ISA_v4)
  _mm512_mask_storeu_ps(p - lane, __mmask16(((1u << n) - 1) << lane), v.part[0]);
#else
  if (n == 16) return store16(p, v);
  float some[16];
  store16(some, v);
  std::memcpy(p, some + lane, size_t(n) * 4);
#endif
}

// Sums of K blocks of sixteen rows for T tokens: as many as hide the time that one takes.
template <class Read, int K, int T>
static inline __attribute__((always_inline)) void add_blocks(const LowRanks& of, int64_t at,
                                                             int64_t begin, int64_t end,
                                                             int64_t token, int64_t ahead) {
  const int64_t rank = of.rank, bytes = of.b->row_bytes;
  const uint8_t* columns = of.b->data + at / 16 * rank * bytes;
  const float* low = of.low + token * of.low_stride;
  float* y = of.y + token * of.y_stride;
  v16 sums[T][K];
  const auto each = [&](auto&& f) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) {
        const int64_t from = at + 16 * k, first = from < begin ? begin : from;
        f(y + t * of.y_stride + first, first - from, (from + 16 < end ? from + 16 : end) - first,
          sums[t][k]);
      }
  };
  each([](const float* p, int64_t lane, int64_t n, v16& sum)
           __attribute__((always_inline)) { sum = load_within16(p, lane, n); });
  for (int64_t j = 0; j < rank; j++) {
    v16 column[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) {
      const uint8_t* row = columns + (k * rank + j) * bytes;
      if (ahead) __builtin_prefetch(row + ahead, 0, 2);
      column[k] = load16_as<Read>(row, 0);
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const v16 by = splat16(low[t * of.low_stride + j]);
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) sums[t][k] = fused(column[k], by, sums[t][k]);
    }
  }
  each([](float* p, int64_t lane, int64_t n, const v16& sum)
           __attribute__((always_inline)) { store_within16(p, lane, n, sum); });
}

void add_low_ranks(const LowRanks& of, int64_t begin, int64_t end) {
  // What the next piece will read mostly lies behind this one's: by then it is near.
  const int64_t ahead = (end - begin + 15) / 16 * of.rank * of.b->row_bytes;
  with_floats(of.b->type, [&](auto read) {
    using Read = decltype(read);
    int64_t token = 0, at = begin / 16 * 16;
    for (; token + 4 <= of.tokens; token += 4)
      for (at = begin / 16 * 16; at < end; at += 16)
        add_blocks<Read, 1, 4>(of, at, begin, end, token, 0);
    for (; token < of.tokens; token++) {
      for (at = begin / 16 * 16; at + 48 < end; at += 64)
        add_blocks<Read, 4, 1>(of, at, begin, end, token, token ? 0 : ahead);
      for (; at < end; at += 16)
        add_blocks<Read, 1, 1>(of, at, begin, end, token, token ? 0 : ahead);
    }
  });
}

}  // namespace aleator::ALEATOR_ISA
