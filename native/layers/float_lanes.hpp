// Products of many tokens where a register holds half of the lanes: lane by lane, with sixteen rows
// of W in two registers. So sums of a lane are kept in registers without those of others, and the
// tree needs no shuffles. Included by linear.isa.cpp only.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "layers/float_tiles.hpp"
#include "layers/linear.hpp"
#include "layers/lines.hpp"

namespace aleator::ALEATOR_ISA {

// Sixteen elements of each of eight rows change places: those of a lane get side by side.
// at(row, i): elements i to i + 4; to(lane): eight of it, a row's each.
template <class At, class To>
static inline void turn(At&& at, To&& to) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const auto two = [&](int row) {
      return __builtin_shufflevector(at(row, i), at(row + 4, i), 0, 1, 2, 3, 4, 5, 6, 7);
    };
    const vf a = two(0), b = two(1), c = two(2), d = two(3);
    const vf ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    const vf cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    store(to(i), __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13));
    store(to(i + 1), __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15));
    const vf ba = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const vf dc = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    store(to(i + 2), __builtin_shufflevector(ba, dc, 0, 1, 8, 9, 4, 5, 12, 13));
    store(to(i + 3), __builtin_shufflevector(ba, dc, 2, 3, 10, 11, 6, 7, 14, 15));
  }
}
// The same of float16; at(row): all of its elements.
template <class At, class To>
static inline void turn_halves(At&& at, To&& to) {
  __m256i v[8], w[8];
#pragma GCC unroll 8
  for (int row = 0; row < 8; row++) v[row] = at(row);
  // Each time elements of rows half as far apart get side by side.
#pragma GCC unroll 4
  for (int time = 0; time < 3; time++) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      w[2 * i] = _mm256_unpacklo_epi16(v[i], v[i + 4]);
      w[2 * i + 1] = _mm256_unpackhi_epi16(v[i], v[i + 4]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = w[i];
  }
#pragma GCC unroll 8
  for (int lane = 0; lane < 8; lane++) {
    _mm_storeu_si128((__m128i*)to(lane), _mm256_castsi256_si128(v[lane]));
    _mm_storeu_si128((__m128i*)to(lane + 8), _mm256_extracti128_si256(v[lane], 1));
  }
}
// Sixteen rows of W as they are stored, lane by lane, `apart` bytes from one to the next. Of each
// row a cache line at a time, as rows that push each other out of the first level are common.
template <class Read>
[[gnu::noinline]] static void turn_rows(const uint8_t* w, int64_t row_bytes, int64_t in, uint8_t* y,
                                        int64_t apart) {
  constexpr int64_t line = 64 / Read::bytes(1), size = Read::bytes(1);
  for (int64_t begin = 0; begin < in; begin += line)
    for (int half = 0; half < 16; half += 8)
      for (int64_t i = begin; i < in && i < begin + line; i += 16) {
        const uint8_t* rows = w + half * row_bytes + i * size;
        int64_t stride = row_bytes;
        uint8_t last[8][16 * size];
        if (in - i < 16) {
          std::memset(last, 0, sizeof last);
          for (int r = 0; r < 8; r++) std::memcpy(last[r], rows + r * stride, (in - i) * size);
          rows = last[0], stride = sizeof last[0];
        }
        const auto to = [&](int lane) {
          return y + turn_of_lane(lane) * apart + (i + half) * size;
        };
        if constexpr (Read::type == Stored::f16)
          turn_halves([&](int r) { return load_as<__m256i>(rows + r * stride); }, to);
        else
          turn([&](int r, int k) { return load_as<v4>(rows + r * stride + k * size); },
               [&](int lane) { return reinterpret_cast<float*>(to(lane)); });
      }
}

constexpr int64_t lane_rows = 32, lane_tokens = 24;  // whose sums stay near
constexpr int64_t lane_bytes_near = 12 << 10;        // of a lane's rows that stay near
constexpr int64_t lane_sums = lane_rows * lane_tokens;
constexpr int64_t most_x = 8 << 20;  // bytes of x that no pass needs to ask for

struct LanePass {
  const uint8_t* w;
  const float* x;
  int64_t steps;
  float* sums;  // [tokens, 16], and those that wait, lane_sums before each other
  bool begins;
  int added;  // of those that wait
  const uint8_t *ask, *ask_end;
  const float* soon;  // half of the next tile's x
};
// One lane of sixteen rows times T tokens. Where x is `far` it is asked for a tile ahead, half of
// it in each of the tile's two passes.
template <class Read, int T, bool far>
[[gnu::noinline]] static void lane_pass(const LanePass& of) {
  vf sums[T][2];
  const auto each_sum = [&](auto&& f) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) f(sums[t][0], 16 * t), f(sums[t][1], 16 * t + 8);
  };
  for (const uint8_t* p = of.ask; p < of.ask_end; p += 64) ask_for_later(p);
  if (of.begins)
    each_sum([](vf& sum, int) { sum = vf{}; });
  else
    each_sum([&](vf& sum, int i) { sum = load(of.sums + i); });
  const float* x = of.x;
  const uint8_t* w = of.w;
  const auto steps = [&](int64_t n) __attribute__((always_inline)) {
    for (int64_t step = 0; step < n; step++, w += Read::bytes(16), x += lane_tile) {
      const vf low = loaded_once(Read::vector(w, 0)), high = loaded_once(Read::vector(w, 8));
#pragma GCC unroll 8
      for (int t = 0; t < T; t++) {
        const vf each = loaded_once(splat(x[t]));
        sums[t][0] = fused(low, each, sums[t][0]), sums[t][1] = fused(high, each, sums[t][1]);
      }
    }
  };
  if constexpr (far) {
    const float* soon = of.soon;
    for (int64_t left = of.steps; left > 0; left -= 16) {
      for (int i = 0; i < 16 / 2 * lane_tile; i += 16, soon += 16) __builtin_prefetch(soon, 0, 3);
      steps(std::min<int64_t>(left, 16));
    }
  } else {
    steps(of.steps);
  }
  float* to = of.sums;
  for (int i = 0; i < of.added; i++) {
    to -= lane_sums;
    each_sum([&](vf& sum, int k) { sum += load(to + k); });
  }
  each_sum([&](const vf& sum, int i) { store(to + i, sum); });
}

// Rows [row, end) but up to fifteen, the first of which is given back.
template <class Read>
[[gnu::noinline]] static int64_t times_lanes(const Weights& w, int64_t row, int64_t end,
                                             const Input& in, float* y, int64_t y_stride) {
  static thread_local Lines<float> room;
  constexpr int64_t size = Read::bytes(16), steps_near = lane_bytes_near / size;
  const int64_t steps = (w.in + 15) / 16, apart = size * steps + 64;
  const int64_t x_lane = lane_apart(w.in), x_tile = tile_apart(w.in);
  const int64_t chunks = (steps + steps_near - 1) / steps_near;
  const LaneTiles all{in.tokens};
  const int64_t tiles = all.n;
  const int64_t groups = (in.tokens + lane_tokens - 1) / lane_tokens;
  const bool far = 4 * tiles * x_tile > most_x;
  room.resize(size_t(5 * lane_sums + lane_rows * apart / 4));
  float* const sums = room.data();
  uint8_t* const turned = reinterpret_cast<uint8_t*>(sums + 5 * lane_sums);
  for (int64_t rows; (rows = (end - row) / 16 * 16) > 0; row += rows) {
    rows = rows < lane_rows ? rows : lane_rows;
    for (int64_t r = 0; r < rows; r += 16)
      turn_rows<Read>(w.data + (row + r) * w.row_bytes, w.row_bytes, w.in, turned + r * apart,
                      apart);
    // Each pass of the last tokens asks for its share of the next rows: what was asked for earlier,
    // x may push out of the second-level cache.
    const uint8_t* const next = w.data + (row + rows) * w.row_bytes;
    const int64_t bytes = rows * w.row_bytes, last_tiles = tiles - tiles * (groups - 1) / groups;
    const int64_t share = (bytes / (last_tiles * chunks * rows) + 64) / 64 * 64;
    int64_t asked = 0;
    for (int64_t group = 0; group < groups; group++) {
      const int64_t first_tile = tiles * group / groups, end_tile = tiles * (group + 1) / groups;
      const int64_t first = all.first(first_tile);
      for (int lane = 0; lane < 16; lane++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
          const int64_t begin = steps * chunk / chunks, n = steps * (chunk + 1) / chunks - begin;
          for (int64_t tile = first_tile; tile < end_tile; tile++) {
            const int64_t t = all.first(tile), count = all.first(tile + 1) - t;
            for (int64_t r = 0; r < rows; r += 16) {
              const int64_t until = end_tile < tiles ? 0 : std::min(asked + share, bytes);
              const float* const x = in.lanes + tile * x_tile + lane * x_lane + begin * lane_tile;
              const LanePass pass{turned + (r + lane) * apart + size * begin,
                                  x,
                                  n,
                                  sums + std::popcount(unsigned(lane)) * lane_sums +
                                      r * lane_tokens + (t - first) * 16,
                                  begin == 0,
                                  begin + n == steps ? std::countr_one(unsigned(lane)) : 0,
                                  next + asked,
                                  next + until,
                                  x + x_tile + r / 16 * n * lane_tile / 2};
              asked = until;
              with_count<lane_tile>(count, [&](auto T) {
                if constexpr (Read::type == Stored::f16)
                  if (far) return lane_pass<Read, T(), true>(pass);
                lane_pass<Read, T(), false>(pass);
              });
            }
          }
        }
      for (int64_t t = 0; t < all.first(end_tile) - first; t++)
        for (int64_t r = 0; r < rows; r += 8) {
          const vf sum = load(sums + r / 16 * 16 * lane_tokens + t * 16 + r % 16);
          store(y + (first + t) * y_stride + row + r, w.bias ? sum + load(w.bias + row + r) : sum);
        }
    }
  }
  return row;
}

}  // namespace aleator::ALEATOR_ISA
