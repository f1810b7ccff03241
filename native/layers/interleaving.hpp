// Bytes of several rows side by side, so that each lane has those of one row.  AVX2 and AVX-512.
#pragma once

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

typedef uint8_t vbytes __attribute__((vector_size(4 * lanes)));

static inline vbytes shuffled(vbytes v, vbytes order) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vbytes>(
      _mm512_shuffle_epi8(reinterpret<__m512i>(v), reinterpret<__m512i>(order)));
#else
  return reinterpret<vbytes>(
      _mm256_shuffle_epi8(reinterpret<__m256i>(v), reinterpret<__m256i>(order)));
#endif
}
static inline vbytes each_sixteen(__m128i v) {
#if defined(ALEATOR_ISA_v4)
  return reinterpret<vbytes>(_mm512_maskz_broadcast_i32x4(0xffff, v));
#else
  return reinterpret<vbytes>(_mm256_broadcastsi128_si256(v));
#endif
}
// In every lane the bytes a, b, c and d of it; 0 for one that is negative.
static inline vbytes in_lanes(vbytes v, int a, int b, int c, int d) {
  alignas(16) int8_t order[16];
  for (int i = 0; i < 16; i++) {
    const int from = i % 4 == 0 ? a : i % 4 == 1 ? b : i % 4 == 2 ? c : d;
    order[i] = int8_t(from < 0 ? -128 : i / 4 * 4 + from);
  }
  return shuffled(v, each_sixteen(load_as<__m128i>(order)));
}

// In every 128 bits the lower halves of a's and b's in turn, word by word, or the upper ones.
template <class Words, bool upper>
static inline vbytes interleaved(vbytes a, vbytes b) {
  constexpr int n = sizeof(Words) / sizeof(Words{}[0]), part = n * 16 / sizeof(Words);
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return reinterpret<vbytes>(__builtin_shufflevector(
        reinterpret<Words>(a), reinterpret<Words>(b),
        (i / part * part + (upper ? part / 2 : 0) + i % part / 2 + (i % 2 ? n : 0))...));
  }(std::make_integer_sequence<int, n>());
}

// One lane for each of as many rows, from 16 bytes of each row: result i has their bytes 4 i to
// 4 i + 3.
struct Sixteen {
  vbytes v[4];
};
template <class At>
static inline Sixteen sixteen_bytes(At&& at) {
  vbytes v[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const auto row = [&](int r) { return load_as<__m128i>(at(r)); };
#if defined(ALEATOR_ISA_v4)
    __m512i all = _mm512_maskz_inserti32x4(0xffff, _mm512_setzero_si512(), row(i), 0);
    all = _mm512_maskz_inserti32x4(0xffff, all, row(i + 4), 1);
    all = _mm512_maskz_inserti32x4(0xffff, all, row(i + 8), 2);
    v[i] = reinterpret<vbytes>(_mm512_maskz_inserti32x4(0xffff, all, row(i + 12), 3));
#else
    v[i] =
        reinterpret<vbytes>(_mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1));
#endif
  }
  typedef int64_t vlongs __attribute__((vector_size(4 * lanes)));
  const vbytes a = interleaved<vi, false>(v[0], v[1]), b = interleaved<vi, true>(v[0], v[1]);
  const vbytes c = interleaved<vi, false>(v[2], v[3]), d = interleaved<vi, true>(v[2], v[3]);
  return {{interleaved<vlongs, false>(a, c), interleaved<vlongs, true>(a, c),
           interleaved<vlongs, false>(b, d), interleaved<vlongs, true>(b, d)}};
}

}  // namespace aleator::ALEATOR_ISA
