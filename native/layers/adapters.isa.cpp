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

// Sixteen rows for T tokens. One block after another: memory is read as it lies.
template <class Read, int T>
static inline __attribute__((always_inline)) void add_block(const LowRanks& of, int64_t at,
                                                            int64_t begin, int64_t end,
                                                            int64_t token, int64_t ahead) {
  const int64_t rank = of.rank, bytes = of.b->row_bytes;
  const int64_t first = at < begin ? begin : at, n = (at + 16 < end ? at + 16 : end) - first;
  const uint8_t* column = of.b->data + at / 16 * rank * bytes;
  const float* low = of.low + token * of.low_stride;
  float* y = of.y + token * of.y_stride + first;
  v16 sums[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) sums[t] = load_within16(y + t * of.y_stride, first - at, n);
  for (int64_t j = 0; j < rank; j++, column += bytes) {
    if (ahead) ask_for_later(column + ahead);
    const v16 numbers = load16_as<Read>(column, 0);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
      sums[t] = fused(numbers, splat16(low[t * of.low_stride + j]), sums[t]);
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) store_within16(y + t * of.y_stride, first - at, n, sums[t]);
}

void add_low_ranks(const LowRanks& of, int64_t begin, int64_t end) {
  // What the next piece will read mostly lies behind this one's: by then it is near.
  const int64_t ahead = (end - begin + 15) / 16 * of.rank * of.b->row_bytes;
  with_floats(of.b->type, [&](auto read) {
    using Read = decltype(read);
    int64_t token = 0;
    for (; token + 4 <= of.tokens; token += 4)
      for (int64_t at = begin / 16 * 16; at < end; at += 16)
        add_block<Read, 4>(of, at, begin, end, token, 0);
    for (; token < of.tokens; token++)
      for (int64_t at = begin / 16 * 16; at < end; at += 16)
        add_block<Read, 1>(of, at, begin, end, token, token ? 0 : ahead);
  });
}

}  // namespace aleator::ALEATOR_ISA
