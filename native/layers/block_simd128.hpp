// Products in WebAssembly's vectors.  Included by block_linear.isa.cpp only.
#pragma once

#include <wasm_simd128.h>

#include <vector>

#include "layers/block_linear.hpp"
#include "layers/block_types.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// Four rows and a few tokens at a time.
constexpr int tile_rows = 4, tile_tokens = 4;

// Where elements go to 255 they are taken as signed, and have no zero to subtract.
template <class B>
constexpr int zero_of = B::wide ? 0 : B::zero;
// Whether bytes are multiplied: of x, q as it is stands for 16 elements; else two vectors of int16.
#if defined(__wasm_relaxed_simd__)
template <class B>
constexpr bool of_bytes = !B::wide;
#else
template <class B>
constexpr bool of_bytes = false;
#endif
template <class B>
constexpr int per16 = of_bytes<B> ? 1 : 2;

// Of a type of which elements go to 255 these are the first and the last eight bytes, of others
// those of even and those of odd places.
template <class B>
static inline void spread(const int8_t* q, v128_t* to) {
  const v128_t v = wasm_v128_load(q);
  if constexpr (of_bytes<B>) {
    to[0] = v;
  } else if constexpr (B::wide) {
    to[0] = wasm_i16x8_extend_low_i8x16(v), to[1] = wasm_i16x8_extend_high_i8x16(v);
  } else {
    to[0] = wasm_i16x8_shr(wasm_i16x8_shl(v, 8), 8), to[1] = wasm_i16x8_shr(v, 8);
  }
}
// Lanes whose sum is that of n times 16 products.
template <class B, int n>
static inline vi dot(const uint8_t* u, const v128_t* x) {
  v128_t sum = {};
  for (int i = 0; i < n; i++) {
    v128_t v = wasm_v128_load(u + 16 * i), w[2];
#if defined(__wasm_relaxed_simd__)
    if constexpr (of_bytes<B>) {
      // To each lane four products, of signed bytes and of bytes up to 127, with which the
      // instruction is exact everywhere.  Clang 14 lacks it: tools/relaxed_simd.py puts it in the
      // place of this one.
      sum = reinterpret<v128_t>(__builtin_wasm_fms_f32x4(reinterpret<vf>(x[i]), reinterpret<vf>(v),
                                                         reinterpret<vf>(sum)));
      continue;
    }
#endif
    if constexpr (B::wide) {
      v = wasm_v128_xor(v, wasm_i8x16_const_splat(-128));
      w[0] = wasm_i16x8_extend_low_i8x16(v), w[1] = wasm_i16x8_extend_high_i8x16(v);
    } else {
      w[0] = wasm_v128_and(v, wasm_v128_load(wasm_low_bytes)), w[1] = wasm_u16x8_shr(v, 8);
    }
    sum = wasm_i32x4_add(sum, wasm_i32x4_add(wasm_i32x4_dot_i16x8(w[0], x[2 * i]),
                                             wasm_i32x4_dot_i16x8(w[1], x[2 * i + 1])));
  }
  return reinterpret<vi>(sum);
}

#if defined(__wasm_relaxed_simd__)
// A sum, and what is added to it with one rounding.
struct Total {
  vf total = {};
  void add(vf a, vf b) { total = fused(a, b, total); }
  vf value() const { return total; }
};

#else
// The same in float64, as `fused` says.  Sums so small that their float32 has fewer bits are exact
// here: all is a multiple of 2^-173, least of all m (2^-24) times a float32 (2^-149).
struct Total {
  v2d low = {}, high = {};
  static v2d rounded(v2d v) {
    return reinterpret<v2d>(
        wasm_f64x2_promote_low_f32x4(wasm_f32x4_demote_f64x2_zero(reinterpret<v128_t>(v))));
  }
  // Not wherever a loop is unrolled: seldom called.
  [[gnu::noinline]] static v2d to_odd(v2d product, v2d total) { return sum_to_odd(product, total); }
  void add(vf a, vf b) {
    const v2d products[2] = {low_half(a) * low_half(b), high_half(a) * high_half(b)};
    v2d sums[2] = {products[0] + low, products[1] + high};
    const vi ends =
        __builtin_shufflevector(reinterpret<vi>(sums[0]), reinterpret<vi>(sums[1]), 0, 2, 4, 6);
    const vi half_way = (ends & load_as<vi>(wasm_ties.lost)) == load_as<vi>(wasm_ties.half);
    if (__builtin_expect(wasm_v128_any_true(reinterpret<v128_t>(half_way)), false))
      sums[0] = to_odd(products[0], low), sums[1] = to_odd(products[1], high);
    low = rounded(sums[0]), high = rounded(sums[1]);
  }
  vf value() const { return narrow(low, high); }
};

#endif

static inline vi dot16_s16(const int16_t* a, const int16_t* b) {
  const auto half = [&](int i) {
    return wasm_i32x4_dot_i16x8(wasm_v128_load(a + i), wasm_v128_load(b + i));
  };
  return reinterpret<vi>(wasm_i32x4_add(half(0), half(8)));
}
// The lanes' sums of four rows.
static inline vi row_sums(const vi (&v)[tile_rows]) {
  const auto pairs = [](vi a, vi b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  };
  const vi ab = pairs(v[0], v[1]), cd = pairs(v[2], v[3]);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}
static inline vf floats(vi v) { return __builtin_convertvector(v, vf); }
template <class F>
static inline auto each_row(F&& f) {
  typedef decltype(f(0)) Four __attribute__((vector_size(16)));
  return Four{f(0), f(1), f(2), f(3)};
}

// Rows that come some tiles later, read a little with every block, in the order in which they lie:
// the processor follows that, and guesses nothing from four rows that begin anew for every tile.
// No instruction asks for memory; a load whose value nobody wants does.
class Ahead {
 public:
  Ahead(const Weights& w, int64_t row) {
    const int64_t tile = tile_rows * w.row_bytes, apart = ((least_ahead - 1) / tile + 1) * tile;
    if ((w.out - row) * w.row_bytes >= apart + tile) from_ = w.data + row * w.row_bytes + apart;
  }
  // Of the tile's bytes these.
  void read(int64_t begin, int64_t bytes) const {
    if (!from_) return;
    for (int64_t i = begin; i < begin + bytes; i += 64)
      static_cast<void>(*static_cast<const volatile uint8_t*>(from_ + i));
  }

 private:
  static constexpr int64_t least_ahead = 4 << 10;
  const uint8_t* from_ = nullptr;  // null: beyond the last row
};

// Four rows times T tokens; `q` is what their x is spread into.
template <class B, int T>
static void tile(const Weights& w, int64_t row, int64_t rows, const Rounded& x, const v128_t* q,
                 int64_t t0, float* y, int64_t y_stride) {
  constexpr int64_t block = block_shape(B::type).elements, bytes = block_shape(B::type).bytes;
  const uint8_t* p[tile_rows];
  for (int r = 0; r < tile_rows; r++)
    p[r] = w.data + (row + (r < rows ? r : rows - 1)) * w.row_bytes;
  Total total[T];
  const int64_t n = x.in / block, vectors = x.in / 16 * per16<B>;
  const Ahead ahead(w, row);
  for (int64_t b = 0; b < n; b++) {
    ahead.read(tile_rows * bytes * b, tile_rows * bytes);
    vi dots[T][tile_rows], least[T][tile_rows];
    for (int r = 0; r < tile_rows; r++) {
      if constexpr (large<B>) {
        constexpr int group = B::group / 16;
        Parts part;
        B::unpack(p[r] + b * bytes, part);
        for (int t = 0; t < T; t++) {
          const v128_t* with = q + t * vectors + b * 16 * per16<B>;
          const int16_t* sums = x.sums + ((t0 + t) * n + b) * 16;
          vi acc = {};
          for (int j = 0; j < 16; j += group)
            acc += dot<B, group>(part.u + 16 * j, with + j * per16<B>) * int32_t(part.scale[j]);
          if constexpr (zero_of<B> != 0) acc -= dot16_s16(part.scale, sums) * int32_t(zero_of<B>);
          dots[t][r] = acc;
          if constexpr (B::has_least) least[t][r] = dot16_s16(part.least, sums);
        }
      } else {
        const vu8x32 u = B::unpack(p[r] + b * bytes);
        for (int t = 0; t < T; t++)
          dots[t][r] =
              dot<B, 2>(reinterpret_cast<const uint8_t*>(&u), q + t * vectors + b * 2 * per16<B>);
      }
    }
    const int64_t at = b * bytes;
    vf d, m = {};
    if constexpr (large<B>) {
      d = each_row([&](int r) { return large_scale_of<B>(p[r] + at); });
      if constexpr (B::has_least)
        m = each_row([&](int r) { return half_at(p[r] + at + B::dmin_at); });
    } else if constexpr (B::has_m) {
      const vi both = each_row([&](int r) { return load_as<int32_t>(p[r] + at); });
      d = vf_of_upper_halves(both << 16);
      m = vf_of_upper_halves(both);
    } else if constexpr (B::type == Stored::mxfp4) {
      d = each_row([&](int r) { return scale_of<B>(p[r] + at); });
    } else {
      d = vf_of_halves(each_row([&](int r) { return int32_t(load_as<uint16_t>(p[r] + at)); }));
    }
    for (int t = 0; t < T; t++) {
      const float dx = x.d[(t0 + t) * n + b];
      if constexpr (large<B>) {
        total[t].add(d * dx, floats(row_sums(dots[t])));
        if constexpr (B::has_least) total[t].add(-(m * dx), floats(row_sums(least[t])));
      } else {
        const int32_t sum = sum32(x.sums + (t0 + t) * 2 * n + 2 * b);
        total[t].add(d * dx, floats(row_sums(dots[t]) - zero_of<B> * sum));
        if constexpr (B::has_m) total[t].add(m, splat(dx * float(sum)));
      }
    }
  }
  for (int t = 0; t < T; t++) {
    const vf sums = total[t].value();
    for (int r = 0; r < rows; r++)
      y[(t0 + t) * y_stride + row + r] = w.bias ? sums[r] + w.bias[row + r] : sums[r];
  }
}

template <class B, int T>
static void rows_of(const Weights& w, int64_t begin, int64_t end, const Rounded& x, int64_t t,
                    float* y, int64_t y_stride) {
  static thread_local std::vector<v128_t> spread_out;
  const int64_t n = T * x.in / 16;
  spread_out.resize(size_t(n * per16<B>));
  for (int64_t i = 0; i < n; i++)
    spread<B>(x.q + t * x.in + 16 * i, &spread_out[size_t(i * per16<B>)]);
  for (int64_t row = begin; row < end; row += tile_rows)
    tile<B, T>(w, row, end - row < tile_rows ? end - row : tile_rows, x, spread_out.data(), t, y,
               y_stride);
}

template <class B>
static void product(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                    int64_t y_stride) {
  int64_t t = 0;
  for (; t + tile_tokens <= x.tokens; t += tile_tokens)
    rows_of<B, tile_tokens>(w, begin, end, x, t, y, y_stride);
  for (; t < x.tokens; t++) rows_of<B, 1>(w, begin, end, x, t, y, y_stride);
}

}  // namespace aleator::ALEATOR_ISA
