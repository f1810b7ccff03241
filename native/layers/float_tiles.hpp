// Tiles of a matrix of floats: rows of W times rows of x, read side by side along their elements,
// each pair with sixteen lanes of its own. Included by linear.isa.cpp only.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "layers/pairs.hpp"
#include "layers/scaled.hpp"
#include "layers/tile_sums.hpp"

namespace aleator::ALEATOR_ISA {

// As many pairs as there are registers.
#if defined(ALEATOR_ISA_v4) || defined(__aarch64__)
constexpr int tile_tokens = 6;
#else
constexpr int tile_tokens = 3;
#endif
// How many of a pair's registers are taken in one pass along the elements.
constexpr int parts_at_once(int pairs) {
  int parts = parts16;
  while (parts > 1 && pairs * parts > tile_rows * tile_tokens) parts /= 2;
  return parts;
}

// What a tile asks of memory at each of its steps: by itself the processor looks no further than
// the page.
struct AskNothing {
  template <class Read, int R, int T>
  void ask(int64_t) const {}
};
// Rows of a later tile.
struct AskRows {
  Asked asked;
  template <class Read, int R, int T>
  void ask(int64_t i) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const uint8_t* next = asked.first + r * asked.apart + asked.along * Read::bytes(i);
      if (T == 1 && asked.in_order())
        ask_onward(next);
      else
        ask_for_later(next);
      if constexpr (Read::bytes(Read::step) > 64) ask_for_later(next + Read::bytes(Read::step) - 1);
    }
  }
};
// What follows soon, where rows are read one after another.
struct AskOnward {
  const uint8_t* next;
  template <class Read, int R, int T>
  void ask(int64_t i) const {
    ask_onward(next + Read::bytes(i));
  }
};
// A part of these, as other tiles ask for the rest. Of a matrix of float32 in each pass again:
// where the first level misses much, a Zen 4 drops what is asked for meanwhile.
template <bool in_each_pass>
struct AskShare {
  const uint8_t* next;
  int64_t along;  // bytes a step
  template <class Read, int R, int T>
  void ask(int64_t) {
    ask_for_later(next);
    ask_for_later(next + along / 2);
    next += along;
  }
};

// What a tile of `count` of the tokens, from token t on, asks for of n elements of each of the rows
// that begin at `next`.
template <class Read, int step>
static inline auto share_of(const uint8_t* next, int64_t n, int64_t t, int64_t count,
                            int64_t tokens) {
  return AskShare<Read::type == Stored::f32>{
      next + tile_rows * Read::bytes(n) * t / tokens,
      tile_rows * Read::bytes(64) * step / 64 * count / tokens + 1};
}

// Adds n elements of R rows of W times T rows of x to `from`, or to zeros.
template <class Read, int R, int T, class Ask>
static inline __attribute__((always_inline)) void add_tile(const uint8_t* w, int64_t row_bytes,
                                                           int64_t n, const float* x,
                                                           int64_t x_stride, Ask asks,
                                                           const v16 (*from)[R],
                                                           v16 (&total)[T][R]) {
  constexpr int at_once = parts_at_once(R * T);
#pragma GCC unroll 4
  for (int part = 0; part < parts16; part += at_once) {
    vf sums[T][R][at_once];
    const auto each_sum = [&](auto&& f) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int t = 0; t < T; t++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
          for (int k = 0; k < at_once; k++) f(sums[t][r][k], t, r, part + k);
    };
    // Sixteen elements of each row.
    const auto step = [&](auto&& w_row, auto&& x_row) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int k = 0; k < at_once; k++) {
        vf own[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) own[t] = loaded_once(x_row(x + t * x_stride).part[part + k]);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          const vf row = loaded_once(w_row(r).part[part + k]);
#pragma GCC unroll 8
          for (int t = 0; t < T; t++) sums[t][r][k] = fused(row, own[t], sums[t][r][k]);
        }
      }
    };
    if (from)
      each_sum([&](vf& sum, int t, int r, int k) { sum = from[t][r].part[k]; });
    else
      each_sum([](vf& sum, int, int, int) { sum = vf{}; });
    int64_t i = 0;
    if constexpr (one_by_one<Read, R * T>) {
      for (; i < n; i += 16) {
        const int j = int(i) & (Read::step - 1);
        if (part == 0 && j == 0) asks.template ask<Read, R, T>(i);
        const uint8_t* at = w + Read::bytes(i - j);
        step([&](int r) { return moved(at + r * row_bytes, j); },
             [&](const float* p) { return load16(p + i); });
      }
    } else if constexpr (Grouped<Read>) {
      for (; i < n; i += Read::step) {
        if (part == 0) asks.template ask<Read, R, T>(i);
        const auto blocks = [&]<int... r>(std::integer_sequence<int, r...>) {
          return std::array{
              typename OfGroup<Read, R * T>::Block(w + r * row_bytes + Read::bytes(i))...};
        }(std::make_integer_sequence<int, R>());
#pragma GCC unroll 4
        for (int j = 0; j < Read::step; j += 16)
          step([&](int r) { return blocks[r].sixteen(j); },
               [&](const float* p) { return load16(p + i + j); });
      }
    } else {
      constexpr bool again = std::is_same_v<Ask, AskShare<true>>;
      Ask own_asks = asks;
      for (; i + 16 <= n; i += 16) {
        if ((part == 0 || again) && i % Read::step == 0) own_asks.template ask<Read, R, T>(i);
        step([&](int r) { return load16_as<Read>(w + r * row_bytes, i); },
             [&](const float* p) { return load16(p + i); });
      }
      if (i < n)
        step([&](int r) { return load16_as<Read>(w + r * row_bytes, i, n - i); },
             [&](const float* p) { return load16(p + i, n - i); });
    }
    each_sum([&](const vf& sum, int t, int r, int k) { total[t][r].part[k] = sum; });
  }
}
// Elements of a tile's rows, perhaps not all: from the first on, or to the last.
struct Chunk {
  const uint8_t* rows;
  int64_t row_bytes, n;
  bool begins, ends;
};
// A chunk of a tile, whose sums wait in `rest` for the next one. Inlined it would
// lack registers.
template <class Read, int R, int T, class Ask>
[[gnu::noinline]] static void tile(const Chunk& of, Ask asks, const float* x, int64_t x_stride,
                                   v16 (*rest)[R], const float* bias, float* y, int64_t y_stride) {
  v16 total[T][R];
  add_tile<Read, R, T>(of.rows, of.row_bytes, of.n, x, x_stride, asks, of.begins ? nullptr : rest,
                       total);
  if (of.ends) return finish<R, T>(total, bias, y, y_stride);
#pragma GCC unroll 8
  for (int t = 0; t < T; t++)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) rest[t][r] = total[t][r];
}

// f(count, first token, whether it is the first tile): tokens in tiles as equal as they can be.
template <class F>
static inline void each_tile(int64_t tokens, F&& f) {
  const int64_t tiles = (tokens + tile_tokens - 1) / tile_tokens;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t t = tokens * i / tiles, n = tokens * (i + 1) / tiles - t;
    with_count<tile_tokens>(n, [&](auto count) {
      if constexpr (2 * count() > tile_tokens)  // of several tiles only the first may be smaller
        if (i > 0) return f(count, t, std::false_type());
      f(count, t, std::true_type());
    });
  }
}

}  // namespace aleator::ALEATOR_ISA
