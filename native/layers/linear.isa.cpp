#include "layers/linear.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "layers/lanes16.hpp"
#include "layers/pair_dots.hpp"
#include "layers/pairs.hpp"
#include "layers/scaled.hpp"
#include "layers/tile_sums.hpp"

namespace aleator::ALEATOR_ISA {

// One kernel for any number of tokens: a tile of rows of W and rows of x, read side by side along
// their elements, each pair with sixteen lanes of its own. As many pairs as there are registers.
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
// Elements of x's rows that one row of W after another meets: they stay in the second-level cache.
constexpr int64_t near_elements = 1 << 17;
constexpr int64_t most_near_tokens = parts16 == 1 ? 256 : 16 * tile_tokens;
// Where registers hold a part of the lanes, rows of W are read twice for every tile, and scaled
// ones take longer to read. For so many tokens they are widened first, a chunk at a time, which
// stays in the first-level cache.
constexpr int64_t most_chunk = 768;
template <class Read>
constexpr bool may_widen = parts16 > 1 || Grouped<Read>;
template <class Read>
constexpr int64_t least_widened = widened_first<Read>          ? 1
                                  : scaled(Read::type)         ? tile_tokens + 1
                                  : Read::type != Stored::bf16 ? 16
                                  : lanes == 16                ? 24
                                                               : 10;
// Whether a row ends within a group: then it is widened for any number of tokens.
template <class Read>
static inline bool ragged(const Weights& w) {
  if constexpr (Grouped<Read>) return w.in % Read::step;
  return false;
}

// Elements [0, end) of a row as float32; in blocks whole ones, zeros after the last element.
template <class Read>
static void widen(const uint8_t* p, int64_t end, float* y) {
  int64_t i = 0;
  if constexpr (Grouped<Read>) {
    const auto group = [&](const uint8_t* at) {
      typename OfGroup<Read>::Block block(at);
#pragma GCC unroll 4
      for (int j = 0; j < Read::step; j += 16) store16(y + i + j, block.sixteen(j));
    };
    for (; i + Read::step <= end; i += Read::step) group(p + Read::bytes(i));
    if constexpr (!scaled(Read::type))  // those are whole groups
      if (i < end) {
        alignas(64) uint8_t last[Read::bytes(Read::step)] = {};
        std::memcpy(last, p + Read::bytes(i), size_t(Read::bytes(end - i)));
        group(last);
      }
  } else {
    for (; i + 16 <= end; i += 16) store16(y + i, load16_as<Read>(p, i));
    if (i < end) store16(y + i, load16_as<Read>(p, i, end - i), end - i);
  }
}

// Adds n elements of R rows of W times T rows of x to `from`, or to zeros. The first tile of these
// rows asks for the rows of a later one: by itself the processor looks no further than the page.
template <class Read, int R, int T, bool first>
static inline __attribute__((always_inline)) void add_tile(const uint8_t* w, int64_t row_bytes,
                                                           int64_t n, const float* x,
                                                           int64_t x_stride, Asked asked,
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
    const auto ask = [&](int64_t i) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const uint8_t* next = asked.first + r * asked.apart + asked.along * Read::bytes(i);
        if (T == 1 && asked.in_order())
          __builtin_prefetch(next, 0, 3);
        else
          __builtin_prefetch(next, 0, 2);
        if constexpr (Read::bytes(Read::step) > 64)
          __builtin_prefetch(next + Read::bytes(Read::step) - 1, 0, 2);
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
        if (first && part == 0 && j == 0) ask(i);
        const uint8_t* at = w + Read::bytes(i - j);
        step([&](int r) { return moved(at + r * row_bytes, j); },
             [&](const float* p) { return load16(p + i); });
      }
    } else if constexpr (Grouped<Read>) {
      for (; i < n; i += Read::step) {
        if (first && part == 0) ask(i);
        const auto blocks = [&]<int... r>(std::integer_sequence<int, r...>) {
          return std::array{typename OfGroup<Read>::Block(w + r * row_bytes + Read::bytes(i))...};
        }(std::make_integer_sequence<int, R>());
#pragma GCC unroll 4
        for (int j = 0; j < Read::step; j += 16)
          step([&](int r) { return blocks[r].sixteen(j); },
               [&](const float* p) { return load16(p + i + j); });
      }
    } else {
      for (; i + 16 <= n; i += 16) {
        if (first && part == 0 && i % Read::step == 0) ask(i);
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
  Asked asked;
};
// A chunk of a tile, whose sums wait in `rest` for the next one. Inlined it would
// lack registers.
template <class Read, int R, int T, bool first>
[[gnu::noinline]] static void tile(const Chunk& of, const float* x, int64_t x_stride,
                                   v16 (*rest)[R], const float* bias, float* y, int64_t y_stride) {
  v16 total[T][R];
  add_tile<Read, R, T, first>(of.rows, of.row_bytes, of.n, x, x_stride, of.asked,
                              of.begins ? nullptr : rest, total);
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

// tile_rows rows from `row` on times tokens [first, first + tokens).
template <class Read>
static void rows_of(const Weights& w, int64_t row, const Input& in, int64_t first, int64_t tokens,
                    float* y, int64_t y_stride) {
  alignas(64) float wide[tile_rows][most_chunk];
  v16 total[most_near_tokens * tile_rows];
  const bool many = may_widen<Read> && tokens >= least_widened<Read>;
  const bool widened = many || ragged<Read>(w);
  const int64_t most = widened                       ? most_chunk
                       : parts16 == 1 || tokens <= 2 ? w.in
                                                     : most_chunk * 4 / Read::bytes(64) * 64;
  const int64_t chunks = (w.in + most - 1) / most;
  const int64_t chunk = chunks == 1 ? w.in : ((w.in + chunks - 1) / chunks + 63) / 64 * 64;
  for (int64_t begin = 0; begin < w.in; begin += chunk) {
    const int64_t n = w.in - begin < chunk ? w.in - begin : chunk;
    const auto products = [&]<class From>(From, const auto* rows, int64_t row_bytes, int64_t n,
                                          auto asks) {
      each_tile(tokens, [&](auto count, int64_t t, auto head) {
        // A pass for each half of the lanes would cost more than it saves where a tile is small.
        constexpr int at_once = parts16 > 1 && count() == 2 ? 2 : tile_rows;
        for (int r = 0; r < tile_rows; r += at_once) {
          Chunk of{reinterpret_cast<const uint8_t*>(rows) + r * row_bytes,
                   row_bytes,
                   n,
                   begin == 0,
                   begin + n >= w.in,
                   {}};
          if constexpr (head() && asks()) {
            of.asked = Asking(w, at_once, tokens)(row + r);
            of.asked.first += Read::bytes(begin);
          }
          // Of a scaled type there is one tile: where there are several it is widened.
          if constexpr (head() || !scaled(From::type))
            tile<From, at_once, count(), head() && asks()>(
                of, in.x + (first + t) * in.stride + begin, in.stride,
                reinterpret_cast<v16(*)[at_once]>(total +
                                                  (chunks == 1 ? 0 : t * tile_rows + r * count())),
                w.bias ? w.bias + row + r : nullptr, y + (first + t) * y_stride + row + r,
                y_stride);
        }
      });
    };
    const uint8_t* rows = w.data + row * w.row_bytes + Read::bytes(begin);
    if (!widened) {
      if constexpr (least_widened<Read> > 1)
        products(Read(), rows, w.row_bytes, n, std::true_type());
    } else if constexpr (may_widen<Read>) {
      for (int r = 0; r < tile_rows; r++) {
        const uint8_t* p = rows + r * w.row_bytes;
        for (int64_t i = 0; i < Read::bytes(n); i += 64)
          __builtin_prefetch(p + 16 * w.row_bytes + i, 0, 2);
        widen<Read>(p, n, wide[r]);
      }
      const int64_t all = Grouped<Read> ? (n + Read::step - 1) / Read::step * Read::step : n;
      products(ReadF32(), wide, sizeof wide[0], all, std::false_type());
    }
  }
}

// Rows times one token, which takes too short a time for a call per tile; the first row that is
// left.
template <class Read>
static int64_t times_one(const Weights& w, int64_t row, int64_t end, const float* x, float* y) {
  const Asking asking(w, tile_rows, 1);
  for (; row + tile_rows <= end; row += tile_rows) {
    v16 total[1][tile_rows];
    add_tile<Read, tile_rows, 1, true>(w.data + row * w.row_bytes, w.row_bytes, w.in, x, 0,
                                       asking(row), nullptr, total);
    finish<tile_rows, 1>(total, w.bias ? w.bias + row : nullptr, y + row, 0);
  }
  return row;
}

// Rows times as many tokens as a tile has, two at least: without a call per tile, which takes an
// eighth of their time; the first row that is left.
template <class Read, int T>
[[gnu::noinline]] static int64_t times_few(const Weights& w, int64_t row, int64_t end,
                                           const Input& in, float* y, int64_t y_stride) {
  const Asking asking(w, tile_rows, T);
  for (; row + tile_rows <= end; row += tile_rows) {
    v16 total[T][tile_rows];
    add_tile<Read, tile_rows, T, true>(w.data + row * w.row_bytes, w.row_bytes, w.in, in.x,
                                       in.stride, asking(row), nullptr, total);
    finish<tile_rows, T>(total, w.bias ? w.bias + row : nullptr, y + row, y_stride);
  }
  return row;
}

// One row times one token.
template <class Read>
static void single(const Weights& w, int64_t row, const float* x, float* y) {
  const uint8_t* data = w.data + row * w.row_bytes;
  const float* bias = w.bias ? w.bias + row : nullptr;
  v16 total[1][1];
  if (!ragged<Read>(w))
    return tile<Read, 1, 1, false>({data, 0, w.in, true, true, {}}, x, 0, total, bias, y, 0);
  if constexpr (Grouped<Read>)
    for (int64_t begin = 0; begin < w.in; begin += most_chunk) {
      alignas(64) float wide[most_chunk];
      const int64_t n = std::min(most_chunk, w.in - begin);
      const int64_t all = (n + Read::step - 1) / Read::step * Read::step;
      const auto* chunk = reinterpret_cast<const uint8_t*>(wide);
      widen<Read>(data + Read::bytes(begin), n, wide);
      tile<ReadF32, 1, 1, false>({chunk, 0, all, begin == 0, begin + n == w.in, {}}, x + begin, 0,
                                 total, bias, y, 0);
    }
}

// How many tokens of a product one row of W after another meets.
static int64_t near_tokens(int64_t elements) {
  const int64_t most = near_elements / elements / tile_tokens * tile_tokens;
  return most < 2 * tile_tokens    ? 2 * tile_tokens
         : most > most_near_tokens ? most_near_tokens
                                   : most;
}

template <class Read>
static void product(const Weights& w, int64_t begin, int64_t end, const Input& in, float* y,
                    int64_t y_stride) {
  const int64_t near = near_tokens(w.in);
  for (int64_t first = 0; first < in.tokens; first += near) {
    const int64_t tokens = in.tokens - first < near ? in.tokens - first : near;
    int64_t row = begin;
    if (least_widened<Read> > 1 && in.tokens == 1 && !ragged<Read>(w))
      row = times_one<Read>(w, row, end, in.x, y);
    if constexpr (parts16 == 1 && least_widened<Read> > tile_tokens)
      if (in.tokens > 1 && in.tokens <= tile_tokens && !ragged<Read>(w))
        with_count<tile_tokens - 1>(in.tokens - 1, [&](auto more) {
          row = times_few<Read, 1 + more()>(w, row, end, in, y, y_stride);
        });
    for (; row + tile_rows <= end; row += tile_rows)
      rows_of<Read>(w, row, in, first, tokens, y, y_stride);
    for (; row < end; row++)  // up to three are left
      for (int64_t t = first; t < first + tokens; t++)
        single<Read>(w, row, in.x + t * in.stride, y + t * y_stride + row);
  }
}

#if defined(ALEATOR_ISA_v4)
// Rows of W in BF16 by AVX512-BF16, or, with a small weight among them, by fused multiply-adds; the
// first row that is left.
static int64_t product_by_dots(const Weights& w, int64_t begin, int64_t end, const Paired& x,
                               const Input& in, float* y, int64_t y_stride) {
  const int64_t near = near_tokens((w.in + 1) / 2);  // which are half as large
  const Asking asking(w, tile_rows, in.tokens);
  int64_t row = begin;
  for (int64_t first = 0; first < in.tokens; first += near) {
    const int64_t tokens = std::min(near, in.tokens - first);
    for (row = begin; row + tile_rows <= end;) {
      const int64_t until = tokens <= tile_tokens ? end : row + tile_rows;
      int64_t done = row;
      each_tile(tokens, [&](auto count, int64_t t, auto head) {
        const int64_t to = head() ? until : done;
        const int64_t after =
            dots<count(), head()>(w, row, to, asking, x.halves + (first + t) * x.stride, x.stride,
                                  y + (first + t) * y_stride, y_stride);
        if (head()) done = after;
      });
      row = done;
      if (row + tile_rows > until) continue;
      rows_of<ReadPairs>(w, row, in, first, tokens, y, y_stride);
      row += tile_rows;
    }
  }
  return row;
}
#endif

// Rows of W in BF16.
static void product_of_pairs(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                             int64_t y_stride) {
  Input in = x;
  in.x = x.pairs.floats, in.stride = x.pairs.stride;
#if defined(ALEATOR_ISA_v4)
  if (x.pairs.halves && x.tokens > 1)
    begin = product_by_dots(w, begin, end, x.pairs, in, y, y_stride);
#endif
  product<ReadPairs>(w, begin, end, in, y, y_stride);
}

void linear_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                 int64_t y_stride) {
  if (w.type == Stored::bf16) return product_of_pairs(w, begin, end, x, y, y_stride);
  if (in_blocks(w.type))
    return block_rows(w, begin, end, block_shape(w.type).elements == 32 ? x.small : x.large, y,
                      y_stride);
  with_one_of<ReadF32, ReadF16, ReadF8, ReadNF4>(
      w.type, [&](auto read) { product<decltype(read)>(w, begin, end, x, y, y_stride); });
}

void float_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                int64_t y_stride) {
  with_floats(w.type, [&](auto read) { product<decltype(read)>(w, begin, end, x, y, y_stride); });
}

void read_row(const Weights& w, int64_t row, float* y) {
  if (in_blocks(w.type)) return read_block_row(w, row, y);
  with_one_of<ReadF32, ReadF16, ReadBF16, ReadF8, ReadNF4>(
      w.type, [&](auto read) { widen<decltype(read)>(w.data + row * w.row_bytes, w.in, y); });
}

}  // namespace aleator::ALEATOR_ISA
