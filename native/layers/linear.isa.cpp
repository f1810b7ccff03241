#include "layers/linear.hpp"

#include <array>
#include <type_traits>
#include <utility>

#include "layers/lanes16.hpp"
#include "layers/scaled.hpp"

namespace aleator::ALEATOR_ISA {

// One kernel for any number of tokens: a tile of rows of W and rows of x, read side by side along
// their elements, each pair with sixteen lanes of its own. As many pairs as there are registers.
constexpr int tile_rows = 4;
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
constexpr bool may_widen = parts16 > 1 || scaled(Read::type);
template <class Read>
constexpr int64_t least_widened = widened_first<Read>          ? 1
                                  : scaled(Read::type)         ? tile_tokens + 1
                                  : Read::type == Stored::bf16 ? 10
                                                               : 16;

// Elements [0, end) of a row as float32.
template <class Read>
static void widen(const uint8_t* p, int64_t end, float* y) {
  int64_t i = 0;
  if constexpr (scaled(Read::type)) {
    for (; i < end; i += Read::step) {
      const typename Read::Block block(p + Read::bytes(i));
#pragma GCC unroll 4
      for (int j = 0; j < Read::step; j += 16) store16(y + i + j, block.sixteen(j));
    }
  } else {
    for (; i + 16 <= end; i += 16) store16(y + i, load16_as<Read>(p, i));
    if (i < end) store16(y + i, load16_as<Read>(p, i, end - i), end - i);
  }
}

// Keeps GCC from reading v from memory again in every instruction that takes it.
static inline vf loaded_once(vf v) {
#if defined(ALEATOR_ISA_v4)
  asm("" : "+v"(v));
#elif defined(ALEATOR_ISA_v3)
  asm("" : "+x"(v));
#endif
  return v;
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
    for (; t < T; t++) put(t, sums16(total[t][0], total[t][1], total[t][2], total[t][3]));
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
        __builtin_prefetch(next, 0, 3);
      else
        __builtin_prefetch(next, 0, 2);
      if constexpr (Read::bytes(Read::step) > 64)
        __builtin_prefetch(next + Read::bytes(Read::step) - 1, 0, 2);
    }
  }
};
// A part of these, as other tiles ask for the rest.
struct AskShare {
  const uint8_t* next;
  int64_t along;  // bytes a step
  template <class Read, int R, int T>
  void ask(int64_t) {
    __builtin_prefetch(next, 0, 2);
    __builtin_prefetch(next + along / 2, 0, 2);
    next += along;
  }
};

// What a tile of `count` of the tokens, from token t on, asks for of n elements of each of the rows
// that begin at `next`.
template <class Read, int step>
static inline AskShare share_of(const uint8_t* next, int64_t n, int64_t t, int64_t count,
                                int64_t tokens) {
  return {next + tile_rows * Read::bytes(n) * t / tokens,
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
    if constexpr (scaled(Read::type)) {
      for (int64_t i = 0; i < n; i += Read::step) {
        if (part == 0) asks.template ask<Read, R, T>(i);
        const auto blocks = [&]<int... r>(std::integer_sequence<int, r...>) {
          return std::array{typename Read::Block(w + r * row_bytes + Read::bytes(i))...};
        }(std::make_integer_sequence<int, R>());
#pragma GCC unroll 4
        for (int j = 0; j < Read::step; j += 16)
          step([&](int r) { return blocks[r].sixteen(j); },
               [&](const float* p) { return load16(p + i + j); });
      }
    } else {
      int64_t i = 0;
      for (; i + 16 <= n; i += 16) {
        if (part == 0 && i % Read::step == 0) asks.template ask<Read, R, T>(i);
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

// tile_rows rows from `row` on times tokens [first, first + tokens).
template <class Read>
static void rows_of(const Weights& w, int64_t row, const Input& in, int64_t first, int64_t tokens,
                    float* y, int64_t y_stride) {
  alignas(64) float wide[tile_rows][most_chunk];
  v16 total[most_near_tokens * tile_rows];
  const bool widened = may_widen<Read> && tokens >= least_widened<Read>;
  const int64_t most = widened                       ? most_chunk
                       : parts16 == 1 || tokens <= 2 ? w.in
                                                     : most_chunk * 4 / Read::bytes(64) * 64;
  const int64_t chunks = (w.in + most - 1) / most;
  const int64_t chunk = chunks == 1 ? w.in : ((w.in + chunks - 1) / chunks + 63) / 64 * 64;
  for (int64_t begin = 0; begin < w.in; begin += chunk) {
    const int64_t n = w.in - begin < chunk ? w.in - begin : chunk;
    const uint8_t* const next =
        w.data + (row + tile_rows) * w.row_bytes + tile_rows * Read::bytes(begin);
    const auto products = [&]<class From>(From, const auto* rows, int64_t row_bytes, auto asks) {
      each_tile(tokens, [&](auto count, int64_t t, auto head) {
        // A pass for each half of the lanes would cost more than it saves where a tile is small.
        constexpr int at_once = parts16 > 1 && count() == 2 ? 2 : tile_rows;
        for (int r = 0; r < tile_rows; r += at_once) {
          const Chunk of{reinterpret_cast<const uint8_t*>(rows) + r * row_bytes, row_bytes, n,
                         begin == 0, begin + n == w.in};
          const auto part = [&](auto ask) {
            tile<From, at_once, count()>(
                of, ask, in.x + (first + t) * in.stride + begin, in.stride,
                reinterpret_cast<v16(*)[at_once]>(total +
                                                  (chunks == 1 ? 0 : t * tile_rows + r * count())),
                w.bias ? w.bias + row + r : nullptr, y + (first + t) * y_stride + row + r,
                y_stride);
          };
          if constexpr (head() && asks()) {
            AskRows ask{Asking(w, at_once, tokens)(row + r)};
            ask.asked.first += Read::bytes(begin);
            part(ask);
          } else if constexpr (!asks()) {
            part(share_of<Read, From::step>(next, n, t, count(), tokens));
          } else if constexpr (!scaled(From::type)) {
            part(AskNothing());  // of a scaled type there is one tile: of several it is widened
          }
        }
      });
    };
    const uint8_t* const rows = w.data + row * w.row_bytes + Read::bytes(begin);
    if (!widened) {
      if constexpr (least_widened<Read> > 1) products(Read(), rows, w.row_bytes, std::true_type());
    } else if constexpr (may_widen<Read>) {
      for (int r = 0; r < tile_rows; r++) widen<Read>(rows + r * w.row_bytes, n, wide[r]);
      products(ReadF32(), wide, sizeof wide[0], std::false_type());
    }
  }
}

// Rows times one token, which takes too short a time for a call per tile.
template <class Read>
static void times_one(const Weights& w, int64_t row, int64_t end, const float* x, float* y) {
  const Asking asking(w, tile_rows, 1);
  for (; row + tile_rows <= end; row += tile_rows) {
    v16 total[1][tile_rows];
    add_tile<Read, tile_rows, 1>(w.data + row * w.row_bytes, w.row_bytes, w.in, x, 0,
                                 AskRows{asking(row)}, nullptr, total);
    finish<tile_rows, 1>(total, w.bias ? w.bias + row : nullptr, y + row, 0);
  }
}

// Rows times as many tokens as a tile has, two at least: without a call per tile, which takes an
// eighth of their time.
template <class Read, int T>
[[gnu::noinline]] static void times_few(const Weights& w, int64_t row, int64_t end, const Input& in,
                                        float* y, int64_t y_stride) {
  const Asking asking(w, tile_rows, T);
  for (; row + tile_rows <= end; row += tile_rows) {
    v16 total[T][tile_rows];
    add_tile<Read, tile_rows, T>(w.data + row * w.row_bytes, w.row_bytes, w.in, in.x, in.stride,
                                 AskRows{asking(row)}, nullptr, total);
    finish<tile_rows, T>(total, w.bias ? w.bias + row : nullptr, y + row, y_stride);
  }
}

// Rows times more tokens than a tile has. A part of a tile of x stays in the first-level cache
// while 64 rows meet it, whose sums wait for the next part. Meanwhile each tile asks for its share
// of the next 64 rows.
constexpr int64_t rows_waiting = 64, tokens_waiting = 3 * tile_tokens, near_columns = 1024;
template <class Read>
[[gnu::noinline]] static void times_many(const Weights& w, int64_t row, int64_t end,
                                         const Input& in, float* y, int64_t y_stride) {
  v16 waiting[rows_waiting * tokens_waiting];
  const int64_t chunks = (w.in + near_columns - 1) / near_columns;
  const int64_t chunk = ((w.in + chunks - 1) / chunks + 63) / 64 * 64;
  const int64_t groups = (in.tokens + tokens_waiting - 1) / tokens_waiting;
  for (int64_t rows; (rows = (end - row) / tile_rows * tile_rows) > 0; row += rows) {
    if (rows > rows_waiting) rows = rows_waiting;
    for (int64_t group = 0; group < groups; group++) {
      const int64_t first = in.tokens * group / groups;
      const int64_t tokens = in.tokens * (group + 1) / groups - first;
      for (int64_t begin = 0; begin < w.in; begin += chunk) {
        const int64_t n = w.in - begin < chunk ? w.in - begin : chunk;
        each_tile(tokens, [&](auto count, int64_t t, auto) {
          const uint8_t* const next = w.data + rows * w.row_bytes + tile_rows * Read::bytes(begin);
          for (int64_t r = row; r < row + rows; r += tile_rows) {
            const uint8_t* const at = w.data + r * w.row_bytes + Read::bytes(begin);
            tile<Read, tile_rows, count()>(
                Chunk{at, w.row_bytes, n, begin == 0, begin + n == w.in},
                share_of<Read, Read::step>(next + r * w.row_bytes, n, first + t, count(),
                                           in.tokens),
                in.x + (first + t) * in.stride + begin, in.stride,
                reinterpret_cast<v16(*)[tile_rows]>(waiting + (r - row) * tokens + t * tile_rows),
                w.bias ? w.bias + r : nullptr, y + (first + t) * y_stride + r, y_stride);
          }
        });
      }
    }
  }
}

// With how many tokens at most that is faster than to widen rows first.
template <class Read>
constexpr int64_t most_many = parts16 == 1 && least_widened<Read> > tile_tokens ? INT64_MAX
                              : lanes == 8 && Read::type == Stored::f16         ? 31
                                                                                : 0;

// Rows in tiles; up to three are left.
template <class Read>
static void tiled(const Weights& w, int64_t row, int64_t end, const Input& in, float* y,
                  int64_t y_stride) {
  if constexpr (least_widened<Read> > 1)
    if (in.tokens == 1) return times_one<Read>(w, row, end, in.x, y);
  if constexpr (most_many<Read> > 0)
    if (in.tokens > parts16 * tile_tokens && in.tokens <= most_many<Read>)
      return times_many<Read>(w, row, end, in, y, y_stride);
  if constexpr (parts16 == 1 && least_widened<Read> > tile_tokens) {
    if (in.tokens > 1)
      with_count<tile_tokens - 1>(in.tokens - 1, [&](auto more) {
        times_few<Read, 1 + more()>(w, row, end, in, y, y_stride);
      });
  } else {
    const int64_t most = near_elements / w.in / tile_tokens * tile_tokens;
    const int64_t near = most < 2 * tile_tokens    ? 2 * tile_tokens
                         : most > most_near_tokens ? most_near_tokens
                                                   : most;
    for (int64_t first = 0; first < in.tokens; first += near) {
      const int64_t tokens = in.tokens - first < near ? in.tokens - first : near;
      for (int64_t r = row; r + tile_rows <= end; r += tile_rows)
        rows_of<Read>(w, r, in, first, tokens, y, y_stride);
    }
  }
}

template <class Read>
static void product(const Weights& w, int64_t begin, int64_t end, const Input& in, float* y,
                    int64_t y_stride) {
  tiled<Read>(w, begin, end, in, y, y_stride);
  for (int64_t row = end - (end - begin) % tile_rows; row < end; row++) {
    const Chunk of{w.data + row * w.row_bytes, w.row_bytes, w.in, true, true};
    v16 total[1][1];
    for (int64_t t = 0; t < in.tokens; t++)
      tile<Read, 1, 1>(of, AskNothing(), in.x + t * in.stride, 0, total,
                       w.bias ? w.bias + row : nullptr, y + t * y_stride + row, 0);
  }
}

// Calls f(Read{}) for a type that is multiplied with floats.
template <class F>
static inline void with_factors(Stored type, F&& f) {
  with_one_of<ReadF32, ReadF16, ReadBF16, ReadF8, ReadNF4>(type, f);
}

void linear_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                 int64_t y_stride) {
  if (in_blocks(w.type))
    return block_rows(w, begin, end, block_shape(w.type).elements == 32 ? x.small : x.large, y,
                      y_stride);
  with_factors(w.type, [&](auto read) { product<decltype(read)>(w, begin, end, x, y, y_stride); });
}

void read_row(const Weights& w, int64_t row, float* y) {
  if (in_blocks(w.type)) return read_block_row(w, row, y);
  with_factors(w.type,
               [&](auto read) { widen<decltype(read)>(w.data + row * w.row_bytes, w.in, y); });
}

}  // namespace aleator::ALEATOR_ISA
