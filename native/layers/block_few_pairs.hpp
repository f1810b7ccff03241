// Products with few tokens of types of 256 elements: AVX2.  Included by block_few.isa.cpp only.
//
// Four rows side by side.  x is brought into order once for all of them, and scales of two rows are
// taken apart in the halves of one vector.
#pragma once

#include "layers/block_dots.hpp"

namespace aleator::ALEATOR_ISA {

static inline __m256i everywhere(__m128i v) { return _mm256_broadcastsi128_si256(v); }
static inline __m256i bytes_of(int v) { return _mm256_set1_epi8(char(v)); }
static inline __m256i moved_right(__m256i v, int bits) { return _mm256_srli_epi16(v, bits); }

// The first or the second half, twice.
template <int half>
static inline __m256i half_twice(__m256i v) {
  return _mm256_permute2x128_si256(v, v, half * 0x11);
}
// Orders of bytes that put one word everywhere in each half, eight of them: of the word's bytes,
// k = 0 and 1, byte(i, half, k) says where they come from.
struct WordOrders {
  alignas(32) uint8_t of[8][32];
  constexpr WordOrders(auto&& byte) : of{} {
    for (int i = 0; i < 8; i++)
      for (int n = 0; n < 32; n++) of[i][n] = uint8_t(byte(i, n / 16, n % 2));
  }
  __m256i operator[](int i) const { return load256(of[i]); }
};
static inline __m256i add_scaled(__m256i acc, __m256i pairs, __m256i scale) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, scale));
}

// --- IQ4_XS ---

// Sixteen bytes hold a group of 32: its first half in their low nibbles, its second in the high
// ones.  So 32 bytes are the first halves of two groups and the second ones, and x's are brought
// into this order; x's magnitudes are multiplied by weights that have its signs.
struct PairsOfGroups {
  void put(const int8_t* q) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const __m256i a = load256(q + 64 * i), b = load256(q + 64 * i + 32);
      x[2 * i] = _mm256_permute2x128_si256(a, b, 0x20);
      x[2 * i + 1] = _mm256_permute2x128_si256(a, b, 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) size[i] = _mm256_abs_epi8(x[i]);
  }
  __m256i dot(int i, __m256i u) const {
    return _mm256_maddubs_epi16(size[i], _mm256_sign_epi8(u, x[i]));
  }
  __m256i x[8], size[8];
};
// The scales of eight groups in words, of two rows: four bits of each, and two above them.
static inline __m256i iq4_scales(const uint8_t* a, const uint8_t* b) {
  const auto header = [](const uint8_t* p) { return _mm_loadl_epi64((const __m128i*)p); };
  const __m256i both = _mm256_setr_m128i(header(a), header(b));
  const __m256i four = _mm256_shuffle_epi8(
      both, everywhere(_mm_setr_epi8(4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1)));
  const __m256i two = _mm256_shuffle_epi8(
      both, everywhere(_mm_setr_epi8(2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1)));
  // To bits 4 to 7, and 8 and 9.
  const __m256i low = _mm256_and_si256(
      _mm256_mullo_epi16(four, everywhere(_mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1))),
      _mm256_set1_epi16(0xf0));
  const __m256i high = _mm256_and_si256(
      _mm256_mullo_epi16(two, everywhere(_mm_setr_epi16(256, 64, 16, 4, 256, 64, 16, 4))),
      _mm256_set1_epi16(0x300));
  return _mm256_srai_epi16(_mm256_sub_epi16(_mm256_or_si256(low, high), _mm256_set1_epi16(32 << 4)),
                           4);
}

// Word 2 i in the lower half and 2 i + 1 in the upper one, of the first four.
constexpr WordOrders iq4_scale_orders([](int i, int half, int k) { return 4 * i + 2 * half + k; });

template <class B, int T>
static void few_iq4_xs(const FewTile& tile) {
  constexpr int64_t bytes = block_shape(B::type).bytes;
  const __m256i mask = bytes_of(15), table = everywhere(load_as<__m128i>(table_of<B>().u));
  four_rows<T>(tile, [&](const auto& p, int64_t b, auto& total) __attribute__((always_inline)) {
    PairsOfGroups x[T];
    for (int t = 0; t < T; t++) x[t].put(tile.x.q + (tile.t0 + t) * tile.x.in + b * 256);
    const __m256i scales[2] = {iq4_scales(p[0] + b * bytes, p[1] + b * bytes),
                               iq4_scales(p[2] + b * bytes, p[3] + b * bytes)};
    __m256i dots[T][4];
    each_of_four<B>(tile, p, b, [&](auto r, const uint8_t* at) __attribute__((always_inline)) {
      const __m256i own = half_twice<r() % 2>(scales[r() / 2]);
      for (int t = 0; t < T; t++) dots[t][r()] = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const __m256i q = load256(at + 8 + 32 * i);
        const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(q, mask));
        const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(moved_right(q, 4), mask));
        const __m256i scale = _mm256_shuffle_epi8(own, iq4_scale_orders[i]);
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
          dots[t][r()] = add_scaled(dots[t][r()], x[t].dot(2 * i, low), scale);
          dots[t][r()] = add_scaled(dots[t][r()], x[t].dot(2 * i + 1, high), scale);
        }
      }
    });
    add_block<B>(tile, p, b, dots, dots, total);
  });
}

}  // namespace aleator::ALEATOR_ISA
