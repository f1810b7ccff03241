// Sixteen rows of W, taken apart for products with many tokens.  AVX2 and AVX-512; included by
// block_many.isa.cpp only.
#pragma once

#include "layers/block_nibbles.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// What products with sixteen rows read, whatever type the rows were of.
struct Panel {
  int zero;
  alignas(64) uint8_t u[panel_chunk / 4][panel_rows][4];
  alignas(64) float d[panel_chunk / 32][panel_rows], m[panel_chunk / 32][panel_rows];
  // Of large blocks: the groups' scales (on AVX2 twice each, in 16 bits), and by 16 elements, two
  // by two, the least values, or the scales of a type that has none.
  alignas(64) int32_t scale[panel_chunk / 16][panel_rows];
  alignas(64) int16_t two[panel_chunk / 32][panel_rows][2];

  static void store_at(auto& rows, int first, auto v) {
    std::memcpy(reinterpret_cast<uint8_t*>(&rows) + 4 * first, &v, sizeof v);
  }
  // Block b of `lanes` rows from `first` on, which are taken apart and have no least values: the
  // same code for every such type.
  template <int group>
  [[gnu::noinline]] void put_parts(const Parts (&parts)[lanes], int64_t b, int first) {
    for (int64_t e = 0; e < 256; e += 16) {
      const Sixteen of = sixteen_bytes([&](int r) { return parts[r].u + e; });
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) store_at(u[b * 64 + e / 4 + i], first, of.v[i]);
    }
    for (int64_t j = 0; j < 16; j += 8) {
      const Sixteen scales = sixteen_bytes([&](int r) { return parts[r].scale + j; });
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const int64_t at = (b * 256 + (j + 2 * i) * 16) / group;
#if defined(ALEATOR_ISA_v4)
        const vi v = reinterpret<vi>(scales.v[i]);
        store_at(scale[at], first, v << 16 >> 16);
        if constexpr (group == 16) store_at(scale[at + 1], first, v >> 16);
#else
        store_at(scale[at], first, in_lanes(scales.v[i], 0, 1, 0, 1));
        if constexpr (group == 16)
          store_at(scale[at + 1], first, in_lanes(scales.v[i], 2, 3, 2, 3));
#endif
        store_at(two[b * 8 + j / 2 + i], first, scales.v[i]);
      }
    }
  }
};
// What these products depend on: types that agree in it share them.  A negative zero is the
// panel's: for small blocks another register would be missing.
template <int64_t block_, int group_, int zero_, bool has_least_, bool wide_, int at_once_>
struct Form {
  static constexpr int64_t block = block_;
  static constexpr int group = group_, zero = zero_, at_once = at_once_;
  static constexpr bool wide = wide_;
  static constexpr bool has_least = has_least_;  // or, of small blocks, m
};

template <class B>
struct PanelOf : Panel {
  static constexpr int64_t block = block_shape(B::type).elements;
  static constexpr int group = B::group;  // of elements that share a scale
  // Of AVX2, bytes that would not fit (`wide`) are signed, and without zero.
  static constexpr bool is_signed = zero_of<B> != B::zero;
  using Shared = Form<block, group, large<B> && zero_of<B> ? -1 : zero_of<B>, B::has_least,
                      lanes == 8 && B::wide, lanes == 8 ? added_at_once<B>(group / 4) : 1>;
  PanelOf() { zero = zero_of<B>; }

  // Elements [k, k + n) of rows [row, row + rows); the other rows are as the last one.
  void fill(const Weights& w, int64_t row, int64_t rows, int64_t k, int64_t n) {
    for (int first = 0; first < panel_rows; first += lanes) {
      const uint8_t* p[lanes];
      for (int i = 0; i < lanes; i++)
        p[i] = w.data + (row + (first + i < rows ? first + i : rows - 1)) * w.row_bytes +
               k / block * bytes;
      for (int64_t b = 0, at = 0; b < n / block; b++, at += bytes) {
        fill_block(B(), p, at, b, first);
      }
    }
  }

 private:
  static constexpr int64_t bytes = block_shape(B::type).bytes;
  // Element 4 * at and the three after it.
  void put(int64_t at, int first, vbytes v) { store_at(u[at], first, v); }
  static Sixteen of_rows(Rows p, int64_t at) {
    return sixteen_bytes([&](int r) { return p[r] + at; });
  }
  template <class Of>
  static void eight_by_eight(Rows p, Of&& of) {
    for (int r = 0; r < lanes; r += 8) {
      const uint8_t* eight[8];
      for (int i = 0; i < 8; i++) eight[i] = p[r + i];
      of(eight, r);
    }
  }

  void fill_block(auto, Rows p, int64_t at, int64_t b, int first) {
    if constexpr (large<B>)
      fill_large(p, at, b, first);
    else
      fill_small(p, at, b, first);
  }
  void fill_small(Rows p, int64_t at, int64_t b, int first) {
    if constexpr (Nibbles<B>) {
      const NibblesOfRows<B> of(p, at);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) put(b * 8 + i, first, of.four(i));
    } else {
      for (int64_t half = 0; half < 2; half++) {
        const Sixteen q = of_rows(p, at + 2 + 16 * half);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
          put(b * 8 + 4 * half + i, first, is_signed ? q.v[i] : q.v[i] ^ 128);
      }
    }
    eight_by_eight(p, [&](const auto& eight, int r) {
      if constexpr (B::has_m) {
        const Factors of = eight_factors(eight, at);
        _mm256_store_ps(d[b] + first + r, of.d);
        _mm256_store_ps(m[b] + first + r, of.m);
      } else {
        _mm256_store_ps(d[b] + first + r, eight_scales<B>(eight, at));
      }
    });
  }
  // Byte k of each lane as the scale of group j.
  template <bool negative>
  void put_scale(int64_t j, int first, vbytes v, int k) {
#if defined(ALEATOR_ISA_v4)
    if constexpr (negative)
      store_at(scale[j], first, reinterpret<vi>(in_lanes(v, -1, -1, -1, k)) >> 24);
    else
      store_at(scale[j], first, in_lanes(v, k, -1, -1, -1));
#else
    if constexpr (negative)
      store_at(scale[j], first, shorts(in_lanes(v, -1, k, -1, k)) >> 8);
    else
      store_at(scale[j], first, in_lanes(v, k, -1, k, -1));
#endif
  }
  typedef int16_t vshorts __attribute__((vector_size(4 * lanes)));
  static vshorts shorts(vbytes v) { return reinterpret<vshorts>(v); }
  // Where d and dmin stand side by side.
  void put_factors(int64_t b, int first, vbytes v) {
#if defined(ALEATOR_ISA_v4)
    const auto halves = [](vbytes of) {
      return reinterpret<vf>(_mm512_maskz_cvtph_ps(
          0xffff, _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret<__m512i>(of))));
    };
    store_at(d[b], first, halves(v));
    store_at(m[b], first, halves(reinterpret<vbytes>(reinterpret<vi>(v) >> 16)));
#else
    const Factors of = factors_of(reinterpret<__m256i>(v));
    store_at(d[b], first, of.d);
    store_at(m[b], first, of.m);
#endif
  }
  // d, and dmin if there is one, of large blocks.
  void put_factors(Rows p, int64_t at, int64_t b, int first) {
    for (int r = 0; r < lanes; r++) {
      d[b][first + r] = large_scale_of<B>(p[r] + at);
      if constexpr (B::has_least) m[b][first + r] = half_at(p[r] + at + B::dmin_at);
    }
  }
  // Q4_K and Q5_K: see six_bits.
  template <Stored type, bool fifth>
  void fill_block(BlockSixBits<type, fifth>, Rows p, int64_t at, int64_t b, int first) {
    const Sixteen header = of_rows(p, at);
    put_factors(b, first, header.v[0]);
    const auto words = [](vbytes v) { return reinterpret<vi>(v); };
    const vi one = words(header.v[1]), other = words(header.v[2]), rest = words(header.v[3]);
    const auto upper = [](vi v) { return v >> 2 & 0x30303030; };
    const vbytes scales[2] = {header.v[1] & 63,
                              reinterpret<vbytes>((rest & 0x0f0f0f0f) | upper(one))};
    const vbytes least[2] = {header.v[2] & 63,
                             reinterpret<vbytes>((rest >> 4 & 0x0f0f0f0f) | upper(other))};
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      put_scale<false>(b * 8 + g, first, scales[g / 4], g % 4);
      store_at(two[b * 8 + g], first, in_lanes(least[g / 4], g % 4, -1, g % 4, -1));
    }
    Sixteen fifths[2];
    if constexpr (B::fifths_of_groups_at != 0)
      for (int half = 0; half < 2; half++)
        fifths[half] = of_rows(p, at + B::fifths_of_groups_at + 16 * half);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
      const Sixteen q = of_rows(p, at + B::nibbles_of_groups_at + 16 * c);
      const int64_t to = b * 64 + c / 2 * 16 + c % 2 * 4;
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        vbytes low = q.v[i] & 15, high = q.v[i] >> 4;
        if constexpr (B::fifths_of_groups_at != 0) {
          const vbytes bits = fifths[c % 2].v[i] >> (c / 2 * 2);
          low |= bits << 4 & 16, high |= bits << 3 & 16;
        }
        put(to + i, first, low);
        put(to + 8 + i, first, high);
      }
    }
  }
  // Byte j as the scale of 16 elements.
  template <bool negative>
  void put_scales(int64_t b, int first, const Sixteen& scales) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; j += group / 16)
      put_scale<negative>((b * 256 + j * 16) / group, first, scales.v[j / 4], j % 4);
  }
  template <bool negative>
  void put_two(int64_t b, int first, const Sixteen& bytes_of) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      const vbytes v = bytes_of.v[j / 2];
      const int k = j % 2 * 2;
      if constexpr (negative)
        store_at(two[b * 8 + j], first, shorts(in_lanes(v, -1, k, -1, k + 1)) >> 8);
      else
        store_at(two[b * 8 + j], first, in_lanes(v, k, -1, k + 1, -1));
    }
  }
  void fill_block(BlockQ2_K, Rows p, int64_t at, int64_t b, int first) {
    put_factors(p, at, b, first);
    Sixteen scales = of_rows(p, at), least;
    for (int i = 0; i < 4; i++) least.v[i] = scales.v[i] >> 4, scales.v[i] &= 15;
    put_scales<false>(b, first, scales);
    put_two<false>(b, first, least);
    put_quarters(p, at + 16, b, first, [](vbytes quarter, int, int, int) { return quarter; });
  }
  void fill_block(BlockTQ2_0, Rows p, int64_t at, int64_t b, int first) {
    put_factors(p, at, b, first);
    const Sixteen ones = {each_sixteen(_mm_set1_epi8(1)), each_sixteen(_mm_set1_epi8(1)),
                          each_sixteen(_mm_set1_epi8(1)), each_sixteen(_mm_set1_epi8(1))};
    put_scales<false>(b, first, ones);
    put_two<false>(b, first, ones);
    put_quarters(p, at, b, first, [](vbytes quarter, int, int, int) { return quarter; });
  }
  void fill_block(BlockQ3_K, Rows p, int64_t at, int64_t b, int first) {
    put_factors(p, at, b, first);
    alignas(16) uint8_t six[lanes][16];
    for (int r = 0; r < lanes; r++) {
      const vu8x16 v = B::scales(p[r] + at) - 32;
      std::memcpy(six[r], &v, sizeof v);
    }
    const Sixteen scales = sixteen_bytes([&](int r) { return six[r]; });
    put_scales<true>(b, first, scales);
    put_two<true>(b, first, scales);
    const Sixteen bits[2] = {of_rows(p, at), of_rows(p, at + 16)};
    put_quarters(p, at + 32, b, first, [&](vbytes quarter, int bit, int half, int i) {
      return quarter | (bits[half].v[i] >> bit << 2 & 4);
    });
  }
  // Bytes of four elements, 32 apart: of(two bits, which 32 of the block, half of them, vector).
  template <class Of>
  void put_quarters(Rows p, int64_t at, int64_t b, int first, Of&& of) {
    for (int n = 0; n < 2; n++)
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        const Sixteen q = of_rows(p, at + 32 * n + 16 * half);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++)
            put(b * 64 + 32 * n + 8 * j + 4 * half + i, first,
                of(q.v[i] >> 2 * j & 3, 4 * n + j, half, i));
      }
  }
  void fill_block(BlockIQ4_XS, Rows p, int64_t at, int64_t b, int first) {
    put_factors(p, at, b, first);
    const Sixteen header = of_rows(p, at);
    const vi high = reinterpret<vi>(header.v[0]) >> 16, low = reinterpret<vi>(header.v[1]);
    const vbytes table = each_sixteen(load_as<__m128i>(table_of<B>().u));
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      const vi v = ((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32;
      const vi twice = (v & 0xffff) | v << 16;
      store_at(scale[b * 8 + g], first, lanes == 16 ? v : twice);
      store_at(two[b * 8 + g], first, twice);
      const Sixteen q = of_rows(p, at + 8 + 16 * g);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        put(b * 64 + 8 * g + i, first, shuffled(table, q.v[i] & 15));
        put(b * 64 + 8 * g + 4 + i, first, shuffled(table, q.v[i] >> 4));
      }
    }
  }
  void fill_block(BlockQ6_K, Rows p, int64_t at, int64_t b, int first) {
    put_factors(p, at, b, first);
    const Sixteen scales = of_rows(p, at + 192);
    put_scales<true>(b, first, scales);
    put_two<true>(b, first, scales);
    for (int n = 0; n < 2; n++) {
      const Sixteen bits[2] = {of_rows(p, at + 128 + 32 * n), of_rows(p, at + 144 + 32 * n)};
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) {
        const Sixteen q = of_rows(p, at + 64 * n + 16 * c);
        const int64_t to = b * 64 + 32 * n + 4 * c;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
          const vbytes high = bits[c % 2].v[i] >> (c / 2 * 2);
          put(to + i, first, (q.v[i] & 15) | (high << 4 & 48));
          put(to + 16 + i, first, q.v[i] >> 4 | (high & 48));
        }
      }
    }
  }
  void fill_large(Rows p, int64_t at, int64_t b, int first) {
    static_assert(!is_signed && !B::has_least);
    put_factors(p, at, b, first);
    Parts parts[lanes];
    for (int r = 0; r < lanes; r++) B::unpack(p[r] + at, parts[r]);
    put_parts<group>(parts, b, first);
  }
};

}  // namespace aleator::ALEATOR_ISA
