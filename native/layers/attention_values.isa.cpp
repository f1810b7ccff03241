#include <algorithm>
#include <type_traits>

#include "layers/attention.hpp"
#include "layers/widened.hpp"

namespace aleator::ALEATOR_ISA {

// Where the values of a block of columns are read: in the cache, or widened.
template <class Read>
struct InCache {
  using Type = Read;
  CacheSide::Rows rows;
  const int32_t* cells;
  Ahead& ahead;
  const uint8_t* row(int64_t j) const { return rows[cells[j]]; }
  void ask(int64_t channels) const { ahead.ask(Read::bytes(channels)); }
};
struct Widened {
  using Type = ReadF32;
  const float* rows;
  int64_t width;
  const uint8_t* row(int64_t j) const { return reinterpret_cast<const uint8_t*>(rows + j * width); }
  void ask(int64_t) const {}
};

// One chain of additions for each query and channel, over rows [begin, end).
template <int NQ, int NC, bool whole, class Rows>
static inline void mix_chunk(const Rows& from, int64_t begin, int64_t end, int64_t dim, int64_t c,
                             const float* const (&weights)[NQ], float* const (&out)[NQ]) {
  using Read = typename Rows::Type;
  constexpr int vectors = span<Read> / lanes;
  from.ask((end - begin) * NC * lanes);
  vf sum[NQ][NC];
#pragma GCC unroll 8
  for (int r = 0; r < NQ; r++)
#pragma GCC unroll 8
    for (int k = 0; k < NC; k++) sum[r][k] = load(out[r] + c + k * lanes);
  for (int64_t j = begin; j < end; j++) {
    const uint8_t* row = from.row(j);
    vf v[NC];
#pragma GCC unroll 8
    for (int k = 0; k < NC; k += vectors) {
      vf some[vectors];
      widen<Read, whole>(row, c + k * lanes, dim, some);
#pragma GCC unroll 8
      for (int m = 0; m < vectors; m++) v[k + m] = some[m];
    }
#pragma GCC unroll 8
    for (int r = 0; r < NQ; r++) {
      const vf w = splat_from(weights[r] + j);
#pragma GCC unroll 8
      for (int k = 0; k < NC; k++) sum[r][k] = fused(w, v[k], sum[r][k]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < NQ; r++)
#pragma GCC unroll 8
    for (int k = 0; k < NC; k++) store(out[r] + c + k * lanes, sum[r][k]);
}

template <int NQ, class Rows>
static void mix_rows(const Rows& from, int64_t begin, int64_t end, int64_t dim, int64_t c0,
                     int64_t c1, const float* const* weights, float* const* out) {
  constexpr int one = span<typename Rows::Type> / lanes;
  const float* w[NQ];
  float* to[NQ];
  for (int r = 0; r < NQ; r++) w[r] = weights[r], to[r] = out[r];
  int64_t c = c0;
  if constexpr (lanes == 16) {
    for (; c + 64 <= c1; c += 64) mix_chunk<NQ, 4, true>(from, begin, end, dim, c, w, to);
    for (; c + 32 <= c1; c += 32) mix_chunk<NQ, 2, true>(from, begin, end, dim, c, w, to);
  }
  constexpr bool blocks = Blocks<typename Rows::Type>;  // which are read whole
  for (; blocks ? c < c1 : c + one * lanes <= c1; c += one * lanes)
    mix_chunk<NQ, one, true>(from, begin, end, dim, c, w, to);
  if constexpr (!blocks)
    if (c < c1) mix_chunk<NQ, one, false>(from, begin, end, dim, c, w, to);
}

// Queries whose sums are kept in registers at a time.
template <class Rows>
constexpr int queries_at_once = lanes == 16                                 ? 6
                                : lanes == 4 && Blocks<typename Rows::Type> ? 2
                                                                            : 4;

template <class Rows>
static void mix_queries(const Rows& from, int64_t n, int64_t begin, int64_t end, int64_t dim,
                        int64_t c0, int64_t c1, const float* const* weights, float* const* out) {
  if (begin >= end) return;
  with_count<queries_at_once<Rows>>(
      n, [&](auto count) { mix_rows<count()>(from, begin, end, dim, c0, c1, weights, out); });
}

// All queries over the n columns from `begin` on, of which each takes those that it sees: `from`
// has the first as row 0.
template <class Rows>
static void mix_seen(const Rows& from, const Attended& seen, const float* weights, int64_t stride,
                     int64_t begin, int64_t n, int64_t dim, int64_t c0, int64_t c1, float* out,
                     int64_t out_stride) {
  for (int64_t i = 0; i < seen.n_queries; i += queries_at_once<Rows>) {
    const int64_t most = std::min<int64_t>(queries_at_once<Rows>, seen.n_queries - i);
    constexpr int64_t all = queries_at_once<Rows>;
    const float* w[all];
    float* to[all];
    int64_t low[all], high[all], a = 0, b = n;  // all of them see [a, b)
    for (int64_t r = 0; r < most; r++) {
      w[r] = weights + (i + r) * stride;
      to[r] = out + (i + r) * out_stride;
      low[r] = std::max<int64_t>(seen.first[i + r] - begin, 0);
      high[r] = std::min(seen.end[i + r] - begin, n);
      a = std::max(a, low[r]), b = std::min(b, high[r]);
    }
    if (a >= b) a = b = n;  // nothing in common: each by itself, up to its end
    for (int64_t r = 0; r < most; r++)
      mix_queries(from, 1, low[r], std::min(a, high[r]), dim, c0, c1, w + r, to + r);
    mix_queries(from, most, a, b, dim, c0, c1, w, to);
    for (int64_t r = 0; r < most; r++)
      mix_queries(from, 1, std::max(b, low[r]), high[r], dim, c0, c1, w + r, to + r);
  }
}

// Channels [c0, c1) of values that lie channel by channel, as rows: squares of neighbouring cells
// by transposing.
template <class Read>
static void gather_channels(const CacheSide& values, int64_t head, const int32_t* cells, int64_t n,
                            int64_t c0, int64_t c1, float* rows, int64_t width) {
  const int64_t size = stored_bytes(values.type, 1);
  for (int64_t j = 0; j < n;) {
    const bool square = n - j >= lanes && cells[j + lanes - 1] - cells[j] == lanes - 1 &&
                        std::is_sorted(cells + j, cells + j + lanes);
    const int64_t taken = square ? lanes : 1;
    for (int64_t c = c0; c < c1;) {
      if (square && c + lanes <= c1) {
        vf v[lanes];
        for (int k = 0; k < lanes; k++)
          v[k] = Read::vector(values.channel(head, c + k) + cells[j] * size, 0);
        transpose(v);
        for (int k = 0; k < lanes; k++) store(rows + (j + k) * width + c - c0, v[k]);
        c += lanes;
      } else {
        for (int64_t k = j; k < j + taken; k++)
          rows[k * width + c - c0] = Read::one(values.channel(head, c), cells[k]);
        c++;
      }
    }
    j += taken;
  }
}

// Whether many queries read values as float32 side by side: with AVX-512 halves are as fast where
// they lie.
template <class Read>
constexpr bool copied = lanes < 16 || Blocks<Read> || Read::type == Stored::f32;

template <class Read>
static void mix_cells(const Attended& seen, const CacheSide& values, const float* weights,
                      int64_t stride, int64_t begin, int64_t end, int64_t c0, int64_t c1,
                      float* out, int64_t out_stride, float* room, Ahead& ahead) {
  const int64_t dim = values.dim, n = end - begin;
  const int32_t* cells = seen.cells + begin;
  const CacheSide::Rows rows = values.rows(seen.head);
  if constexpr (!widened_first<Read>)
    if (!values.by_channel &&
        !(copied<Read> && seen.n_queries >= (Blocks<Read> ? many_mixed : many_scores)))
      return mix_seen(InCache<Read>{rows, cells, ahead}, seen, weights, stride, begin, n, dim, c0,
                      c1, out, out_stride);
  const int64_t width = padded(c1 - c0);
  if (Blocks<Read> || !values.by_channel) {
    for (int64_t j = 0; j < n; j++) {
      ahead.ask(Read::bytes(c1) - Read::bytes(c0));
      widen_row<Read>(rows[cells[j]], c0, std::min(c1, dim), room + j * width);
    }
  } else if constexpr (!Blocks<Read>) {
    for (int64_t j = 0; j < n; j++)
      for (int64_t c = dim - c0; c < width; c++) room[j * width + c] = 0;
    gather_channels<Read>(values, seen.head, cells, n, c0, std::min(c1, dim), room, width);
  }
  mix_seen(Widened{room, width}, seen, weights, stride, begin, n, width, 0, width, out + c0,
           out_stride);
}

void mix(const Attended& seen, const CacheSide& values, const float* weights, int64_t stride,
         int64_t begin, int64_t end, int64_t c0, int64_t c1, float* out, int64_t out_stride,
         float* room, Ahead& ahead) {
  with_reader(values.type, [&](auto read) {
    mix_cells<decltype(read)>(seen, values, weights, stride, begin, end, c0, c1, out, out_stride,
                              room, ahead);
  });
}

}  // namespace aleator::ALEATOR_ISA
