#include "layers/linear.hpp"

#include <algorithm>
#include <type_traits>

#if defined(ALEATOR_ISA_v3)
#include "layers/float_lanes.hpp"
#endif
#include "layers/float_panels.hpp"
#include "layers/float_tiles.hpp"
#include "layers/pair_dots.hpp"

namespace aleator::ALEATOR_ISA {

// Elements of x's rows that one row of W after another meets: they stay in the second-level cache.
constexpr int64_t near_elements = 1 << 17;
constexpr int64_t most_near_tokens = parts16 == 1 ? 256 : 16 * tile_tokens;
template <class Read>
constexpr bool may_widen = parts16 > 1 || scaled(Read::type) || Read::type == Stored::q8_0;
template <class Read>
constexpr int64_t least_widened = widened_first<Read>          ? 1
                                  : Read::type == Stored::q8_0 ? 2
                                  : scaled(Read::type)         ? tile_tokens + 1
                                  : Read::type == Stored::bf16 ? 10
                                                               : 16;
// Whether a row ends within a group: then it is widened for any number of tokens.
template <class Read>
static inline bool ragged(const Weights& w) {
  if constexpr (Grouped<Read>) return w.in % Read::step;
  return false;
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
    const uint8_t* const next =
        w.data + (row + tile_rows) * w.row_bytes + tile_rows * Read::bytes(begin);
    const auto products = [&]<class From>(From, const auto* rows, int64_t row_bytes,
                                          int64_t elements, auto asks) {
      each_tile(tokens, [&](auto count, int64_t t, auto head) {
        // A pass for each half of the lanes would cost more than it saves where a tile is small.
        constexpr int at_once = parts16 > 1 && count() == 2 ? 2 : tile_rows;
        for (int r = 0; r < tile_rows; r += at_once) {
          const Chunk of{reinterpret_cast<const uint8_t*>(rows) + r * row_bytes, row_bytes,
                         elements, begin == 0, begin + n == w.in};
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
          } else if constexpr (!asks() && parts16 > 1) {
            part(share_of<Read, From::step>(next, elements, t, count(), tokens));
          } else if constexpr (!scaled(From::type)) {
            part(AskNothing());  // of a scaled type there is one tile: of several it is widened
          }
        }
      });
    };
    const uint8_t* const rows = w.data + row * w.row_bytes + Read::bytes(begin);
    if (!widened) {
      if constexpr (least_widened<Read> > 1)
        products(Read(), rows, w.row_bytes, n, std::true_type());
    } else if constexpr (may_widen<Read> || Grouped<Read>) {
      for (int r = 0; r < tile_rows; r++) {
        const uint8_t* p = rows + r * w.row_bytes;
        if (parts16 == 1)  // where tiles take too short a time to ask
          for (int64_t i = 0; i < Read::bytes(n); i += 64) ask_for_later(p + 16 * w.row_bytes + i);
        widen<Read>(p, n, wide[r]);
      }
      const int64_t all = Grouped<Read> ? (n + Read::step - 1) / Read::step * Read::step : n;
      products(ReadF32(), wide, sizeof wide[0], all, std::false_type());
    }
  }
}

// Rows times few tokens, without a call per tile, which takes an eighth of their time. With AVX2
// each row is read by itself, with both halves of its lanes at once.
template <class Read>
constexpr int few_tokens = lanes == 8 && Read::type == Stored::f32      ? 6
                           : parts16 == 1 && Read::type != Stored::q8_0 ? tile_tokens
                                                                        : 1;
template <class Read, int T>
[[gnu::noinline]] static void times_few(const Weights& w, int64_t row, int64_t end, const Input& in,
                                        float* y, int64_t y_stride) {
  const Asking asking(w, tile_rows, T);
  const bool alone =
      lanes == 8 ? !scaled(Read::type) && (T > 1 || from_memory(w))
                 : from_memory(w) && one_after_another(T, 2, T * w.in * int64_t(sizeof(float)));
  for (; row + tile_rows <= end; row += tile_rows) {
    const uint8_t* const rows = w.data + row * w.row_bytes;
    v16 total[T][tile_rows];
    if (alone)
      for (int r = 0; r < tile_rows; r++) {
        const uint8_t* const own = rows + r * w.row_bytes;
        v16 sums[T][1];
        add_tile<Read, 1, T>(own, w.row_bytes, w.in, in.x, in.stride, AskOnward{own + onward},
                             nullptr, sums);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) total[t][r] = sums[t][0];
      }
    else
      add_tile<Read, tile_rows, T>(rows, w.row_bytes, w.in, in.x, in.stride, AskRows{asking(row)},
                                   nullptr, total);
    finish<tile_rows, T>(total, w.bias ? w.bias + row : nullptr, y + row, y_stride);
  }
}

// Rows times more tokens than a tile has. A part of a tile of x stays in the first-level cache
// while some rows meet it, whose sums wait for the next part. Meanwhile each tile asks for its
// share of as many rows that come next, which stay in the second-level cache.
constexpr int64_t tokens_waiting = (lanes == 8 ? 8 : 3) * tile_tokens;
template <class Read>
constexpr bool reads_most = lanes == 8 && Read::type == Stored::f32;
template <class Read>
constexpr int64_t rows_waiting = reads_most<Read> ? 16 : 64;
template <class Read>
constexpr int64_t near_columns = reads_most<Read> ? most_chunk : 1024;
// Tokens that each four rows meet in turn: two tiles where W's bytes from the second-level cache
// are what takes time.
template <class Read>
constexpr int64_t tokens_in_turn = (reads_most<Read> ? 2 : 1) * tile_tokens;
template <class Read>
[[gnu::noinline]] static void times_many(const Weights& w, int64_t row, int64_t end,
                                         const Input& in, float* y, int64_t y_stride) {
  v16 waiting[rows_waiting<Read> * tokens_waiting];
  const int64_t chunks = (w.in + near_columns<Read> - 1) / near_columns<Read>;
  const int64_t chunk = ((w.in + chunks - 1) / chunks + 63) / 64 * 64;
  const int64_t groups = (in.tokens + tokens_waiting - 1) / tokens_waiting;
  for (int64_t rows; (rows = (end - row) / tile_rows * tile_rows) > 0; row += rows) {
    if (rows > rows_waiting<Read>) rows = rows_waiting<Read>;
    for (int64_t group = 0; group < groups; group++) {
      const int64_t first = in.tokens * group / groups;
      const int64_t tokens = in.tokens * (group + 1) / groups - first;
      for (int64_t begin = 0; begin < w.in; begin += chunk) {
        const int64_t n = w.in - begin < chunk ? w.in - begin : chunk;
        const uint8_t* const next = w.data + rows * w.row_bytes + tile_rows * Read::bytes(begin);
        const int64_t turns = (tokens + tokens_in_turn<Read> - 1) / tokens_in_turn<Read>;
        for (int64_t turn = 0; turn < turns; turn++) {
          const int64_t from = tokens * turn / turns, to = tokens * (turn + 1) / turns;
          for (int64_t r = row; r < row + rows; r += tile_rows)
            each_tile(to - from, [&](auto count, int64_t in_turn, auto) {
              const int64_t t = from + in_turn;
              tile<Read, tile_rows, count()>(
                  Chunk{w.data + r * w.row_bytes + Read::bytes(begin), w.row_bytes, n, begin == 0,
                        begin + n == w.in},
                  share_of<Read, Read::step>(next + r * w.row_bytes, n, first + t, count(),
                                             in.tokens),
                  in.x + (first + t) * in.stride + begin, in.stride,
                  reinterpret_cast<v16(*)[tile_rows]>(waiting + (r - row) * tokens + t * tile_rows),
                  w.bias ? w.bias + r : nullptr, y + (first + t) * y_stride + r, y_stride);
            });
        }
      }
    }
  }
}

// Whether few tokens are faster in times_few. With AVX2 those whose rows of x leave the first-level
// cache are not.
template <class Read>
static bool few(int64_t tokens, int64_t in) {
  return tokens > 0 && tokens <= few_tokens<Read> &&
         (lanes != 8 || tokens <= 3 || tokens * in * int64_t(sizeof(float)) <= near_x);
}
// With how many tokens at least times_many is faster than tiles of all rows, and at most than to
// widen rows first.
template <class Read>
constexpr int64_t least_many = lanes != 8                  ? parts16 * tile_tokens + 1
                               : Read::type == Stored::f32 ? 4
                                                           : 6;
template <class Read>
constexpr int64_t most_many =
    (parts16 == 1 && !may_widen<Read>) || (lanes == 8 && Read::type == Stored::f16) ? INT64_MAX
    : lanes == 8 && Read::type == Stored::f32                                       ? 24
                                                                                    : 0;

// How many tokens of a product one row of W after another meets.
static int64_t near_tokens(int64_t elements) {
  const int64_t most = near_elements / elements / tile_tokens * tile_tokens;
  return most < 2 * tile_tokens    ? 2 * tile_tokens
         : most > most_near_tokens ? most_near_tokens
                                   : most;
}

// Rows in tiles; up to three are left.
template <class Read>
static void tiled(const Weights& w, int64_t row, int64_t end, const Input& in, float* y,
                  int64_t y_stride) {
#if defined(ALEATOR_ISA_v3)
  if constexpr (Read::type == Stored::f32 || Read::type == Stored::f16)
    if (in.lanes && in.tokens >= least_laned(Read::type))
      row = times_lanes<Read>(w, row, end, in, y, y_stride);
#endif
  if (!ragged<Read>(w)) {
    if constexpr (least_widened<Read> > 1)
      if (few<Read>(in.tokens, w.in))
        return with_count<few_tokens<Read>>(
            in.tokens, [&](auto count) { times_few<Read, count()>(w, row, end, in, y, y_stride); });
    if constexpr (most_many<Read> > 0)
      if (in.tokens >= least_many<Read> && in.tokens <= most_many<Read>)
        return times_many<Read>(w, row, end, in, y, y_stride);
  }
  if constexpr (parts16 > 1 || most_many<Read> < INT64_MAX || Grouped<Read>) {
    const int64_t near = near_tokens(w.in);
    for (int64_t first = 0; first < in.tokens; first += near) {
      const int64_t tokens = std::min(near, in.tokens - first);
      for (int64_t r = row; r + tile_rows <= end; r += tile_rows)
        rows_of<Read>(w, r, in, first, tokens, y, y_stride);
    }
  }
}

// One row times one token.
template <class Read>
static void single(const Weights& w, int64_t row, const float* x, float* y) {
  const uint8_t* data = w.data + row * w.row_bytes;
  const float* bias = w.bias ? w.bias + row : nullptr;
  v16 total[1][1];
  if (!ragged<Read>(w))
    return tile<Read, 1, 1>({data, 0, w.in, true, true}, AskNothing(), x, 0, total, bias, y, 0);
  if constexpr (Grouped<Read>)
    for (int64_t begin = 0; begin < w.in; begin += most_chunk) {
      alignas(64) float wide[most_chunk];
      const int64_t n = std::min(most_chunk, w.in - begin);
      const int64_t all = (n + Read::step - 1) / Read::step * Read::step;
      const auto* chunk = reinterpret_cast<const uint8_t*>(wide);
      widen<Read>(data + Read::bytes(begin), n, wide);
      tile<ReadF32, 1, 1>({chunk, 0, all, begin == 0, begin + n == w.in}, AskNothing(), x + begin,
                          0, total, bias, y, 0);
    }
}

template <class Read>
static void product(const Weights& w, int64_t begin, int64_t end, const Input& in, float* y,
                    int64_t y_stride) {
  tiled<Read>(w, begin, end, in, y, y_stride);
  for (int64_t row = end - (end - begin) % tile_rows; row < end; row++)
    for (int64_t t = 0; t < in.tokens; t++)
      single<Read>(w, row, in.x + t * in.stride, y + t * y_stride + row);
}

#if defined(ALEATOR_ISA_v4)
// Rows of W in BF16 by AVX512-BF16; the first row that is left. That is of the first four with a
// small weight, if there are any: where one is, others often are, so that the rest is not tried.
static int64_t product_by_dots(const Weights& w, int64_t begin, int64_t end, const Paired& x,
                               int64_t all_tokens, float* y, int64_t y_stride) {
  if (in_chunks(w, all_tokens)) return chunks_by_dots(w, begin, end, x, all_tokens, y, y_stride);
  const int64_t near = near_tokens((w.in + 1) / 2);  // which are half as large
  const Asking asking(w, tile_rows, all_tokens);
  int64_t row = begin;
  for (int64_t first = 0; first < all_tokens; first += near) {
    const int64_t tokens = std::min(near, all_tokens - first);
    row = begin;
    for (bool small = false; !small && row + tile_rows <= end;) {
      const int64_t until = tokens <= tile_tokens ? end : row + tile_rows;
      int64_t done = row;
      each_tile(tokens, [&](auto count, int64_t t, auto head) {
        const int64_t to = head() ? until : done;
        const int64_t after =
            dots<count(), head()>(w, row, to, asking, x.halves + (first + t) * x.stride, x.stride,
                                  y + (first + t) * y_stride, y_stride);
        if (head()) done = after;
      });
      small = done + tile_rows <= until, row = done;
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
  if (x.pairs.halves && (x.tokens > 1 || from_memory(w)))
    begin = product_by_dots(w, begin, end, x.pairs, x.tokens, y, y_stride);
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

template <class Read, int P>
[[gnu::noinline]] static void rows_apart(const Weights& w, int64_t row, int64_t end, const float* x,
                                         float* y) {
  const int64_t apart = w.out / P * w.row_bytes;
  for (; row < end; row++) {
    v16 total[1][P];
    add_tile<Read, P, 1>(w.data + row * w.row_bytes, apart, w.in, x, 0, AskNothing(), nullptr,
                         total);
    finish_parts(w, row, total[0], y);
  }
}

void rows_of_parts(const Weights& w, int64_t parts, int64_t begin, int64_t end, const Input& x,
                   float* y) {
#if defined(ALEATOR_ISA_v4)
  if (w.type == Stored::bf16 && x.pairs.halves)
    begin = quarters_by_dots(w, begin, end, x.pairs.halves, y);
#endif
  with_one_of<ReadF32, ReadF16, ReadPairs>(w.type, [&](auto read) {
    using Read = decltype(read);
    const float* floats = w.type == Stored::bf16 ? x.pairs.floats : x.x;
    if constexpr (parts16 == 1)
      if (parts == 8) return rows_apart<Read, 8>(w, begin, end, floats, y);
    rows_apart<Read, 4>(w, begin, end, floats, y);
  });
}

void float_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                int64_t y_stride) {
  with_one_of<ReadF32, ReadF16, ReadBF16, ReadQ8>(
      w.type, [&](auto read) { product<decltype(read)>(w, begin, end, x, y, y_stride); });
}

void rows_by_lanes(const float* x, int64_t stride, int64_t tokens, int64_t in, float* y) {
  const int64_t apart = lane_apart(in);
  float last[8][16];
  for (int64_t i = 0; i < in; i += 16, y += lane_tile) {
    const auto to = [&](int lane) { return y + turn_of_lane(lane) * apart; };
    const float* rows[8];
    for (int64_t t = 0; t < 8; t++) {
      rows[t] = x + std::min(t, tokens - 1) * stride + i;
      if (in - i >= 16) continue;
      std::fill(std::copy_n(rows[t], in - i, last[t]), std::end(last[t]), 0.f);
      rows[t] = last[t];
    }
#if defined(ALEATOR_ISA_v3)
    // Of each lane eight are stored: two of the next step, whose own come afterwards.
    turn([&](int t, int k) { return load_as<v4>(rows[t] + k); }, to);
#else
    for (int lane = 0; lane < 16; lane++)
      for (int64_t t = 0; t < tokens; t++) to(lane)[t] = rows[t][lane];
#endif
  }
}

void read_row(const Weights& w, int64_t row, float* y) {
  if (in_blocks(w.type)) return read_block_row(w, row, y);
  with_one_of<ReadF32, ReadF16, ReadBF16, ReadF8, ReadNF4>(
      w.type, [&](auto read) { widen<decltype(read)>(w.data + row * w.row_bytes, w.in, y); });
}

}  // namespace aleator::ALEATOR_ISA
