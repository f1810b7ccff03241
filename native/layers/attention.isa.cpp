#include "layers/attention.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

// --- reading the cache ---

// Elements that are widened at a time.
template <class Read>
constexpr int span = Blocks<Read> ? block_elements : 16;

// Elements i to i + lanes of a row of single numbers.
template <class Read>
static inline vf cached(const uint8_t* row, int64_t i) {
  if constexpr (std::is_same_v<Read, ReadF16>) return vf_of_f16(row + 2 * i);
  if constexpr (std::is_same_v<Read, ReadBF16>) return vf_of_bf16(row + 2 * i);
  return load_as<vf>(row + 4 * i);
}
// Elements i to i + span of a row of dim; zeros past dim.
template <class Read, bool whole = false>  // whole: they are all within the row
static inline void widen(const uint8_t* row, int64_t i, int64_t dim, vf (&v)[span<Read> / lanes]) {
  if constexpr (Blocks<Read>) {
    Read::group(row, i, v);
  } else if (whole || i + 16 <= dim) {
#pragma GCC unroll 4
    for (int k = 0; k < 16 / lanes; k++) v[k] = cached<Read>(row, i + k * lanes);
  } else {
    float some[16] = {};
    for (int64_t k = i; k < dim; k++) some[k - i] = Read::one(row, k);
    for (int k = 0; k < 16 / lanes; k++) v[k] = load(some + k * lanes);
  }
}

template <class Read>
static void widen_row(const uint8_t* row, int64_t dim, float* to) {
  for (int64_t i = 0; i < dim; i += span<Read>) {
    vf v[span<Read> / lanes];
    widen<Read>(row, i, dim, v);
    for (int k = 0; k < span<Read> / lanes; k++) store(to + i + k * lanes, v[k]);
  }
}

// The rows of one head lie apart from each other, so the processor does not guess the next ones.
static inline void expect(const uint8_t* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

template <int apart, bool second, int... i>
static inline vf blended(vf a, vf b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(
      a, b, (i & apart ? (second ? lanes + i : lanes + i - apart) : (second ? i + apart : i))...);
}
// A square of lanes x lanes elements, row by row: rows and columns change places.
template <int apart = 1>
static inline void transpose(vf (&v)[lanes]) {
  if constexpr (apart < lanes) {
    constexpr auto all = std::make_integer_sequence<int, lanes>();
    for (int i = 0; i < lanes; i++) {
      if (i & apart) continue;
      const vf a = v[i], b = v[i + apart];
      v[i] = blended<apart, false>(a, b, all);
      v[i + apart] = blended<apart, true>(a, b, all);
    }
    transpose<apart * 2>(v);
  }
}
// rows [16, width] as columns [width, 16]; width is a multiple of 16.
static void transpose(const float* rows, int64_t width, float* columns) {
  for (int64_t i = 0; i < width; i += lanes)
    for (int r = 0; r < 16; r += lanes) {
      vf v[lanes];
      for (int k = 0; k < lanes; k++) v[k] = load(rows + (r + k) * width + i);
      transpose(v);
      for (int k = 0; k < lanes; k++) store(columns + (i + k) * 16 + r, v[k]);
    }
}

// --- scores ---

// Sums that are kept in registers at a time.
constexpr int sums_at_once = lanes == 16 ? 16 : 4;
// Keys that NQ queries meet at a time.
template <int NQ>
constexpr int keys_at_once = sums_at_once / (NQ == 3 ? 4 : NQ);

[[maybe_unused]] static inline void store_trees(const v16 (&v)[16], float scale, float* to) {
  store16(to, sums16(v) * splat16(scale));
}
[[maybe_unused]] static inline void store_trees(const v16 (&v)[4], float scale, float* to) {
  const v4 four = sums16(v[0], v[1], v[2], v[3]) * scale;
  std::memcpy(to, &four, sizeof four);
}

template <class Read, int NQ>
static void score_keys(const float* const (&q)[NQ], const uint8_t* const* rows, int64_t n,
                       int64_t dim, float scale, float* const (&to)[NQ]) {
  constexpr int C = keys_at_once<NQ>, vectors = span<Read> / lanes;
  v16 total[sums_at_once];
  for (v16& t : total) t = splat16(0);
  const auto add = [&](int64_t i, auto whole) {
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) {
      vf v[vectors];
      widen<Read, whole.value>(rows[c], i, dim, v);
#pragma GCC unroll 4
      for (int r = 0; r < NQ; r++)
#pragma GCC unroll 8
        for (int k = 0; k < vectors; k++) {
          vf& sum = total[r * C + c].part[k % parts16];
          sum = fused(v[k], load(q[r] + i + k * lanes), sum);
        }
    }
  };
  int64_t i = 0;
  for (; i + span<Read> <= dim; i += span<Read>) add(i, std::true_type());
  if (i < dim) add(i, std::false_type());
  float dots[sums_at_once];
  store_trees(total, scale, dots);
  for (int r = 0; r < NQ; r++) {
    if (n >= C)
      std::memcpy(to[r], dots + r * C, C * 4);
    else
      std::memcpy(to[r], dots + r * C, size_t(n) * 4);
  }
}

template <class Read, int NQ>
static void score_rows(const float* const* q, const uint8_t* const* rows, int64_t n, int64_t dim,
                       float scale, float* const* to) {
  constexpr int C = keys_at_once<NQ>;
  const float* forms[NQ];
  float* at[NQ];
  for (int r = 0; r < NQ; r++) forms[r] = q[r], at[r] = to[r];
  for (int64_t j = 0; j < n; j += C) {
    score_keys<Read, NQ>(forms, rows + j, n - j, dim, scale, at);
    for (float*& p : at) p += C;
  }
}

// Scores of n <= 16 rows of keys and a few queries; as many rows again may be read.
template <class Read>
static void score_few(const Attended& seen, int64_t variant, const uint8_t* const* rows, int64_t n,
                      int64_t dim, float scale, float* scores, int64_t stride) {
  for (int64_t i = 0; i < seen.n_queries;) {
    const float* q[4];
    float* to[4];
    const int64_t most = std::min<int64_t>(4, seen.n_queries - i);
    for (int64_t r = 0; r < most; r++) {
      q[r] = seen.q + ((i + r) * seen.variants + variant) * padded(dim);
      to[r] = scores + (i + r) * stride;
    }
    if (most == 4)
      score_rows<Read, 4>(q, rows, n, dim, scale, to);
    else if (most == 3 && lanes == 16)
      score_rows<Read, lanes == 16 ? 3 : 2>(q, rows, n, dim, scale, to);
    else if (most >= 2)
      score_rows<Read, 2>(q, rows, n, dim, scale, to);
    else
      score_rows<Read, 1>(q, rows, n, dim, scale, to);
    i += most == 3 && lanes < 16 ? 2 : most;
  }
}

// For each of NQ queries and the keys in a vector's lanes, the part of the tree over the virtual
// lanes l, l + apart, l + 2 * apart, ...
template <int NQ, int l, int apart>
[[gnu::always_inline]] static inline void lane_sums(const float* columns,
                                                    const float* const (&q)[NQ], int64_t width,
                                                    vf (&sums)[NQ]) {
  vf other[NQ] = {};
  if constexpr (apart == 8) {
    for (vf& s : sums) s = vf{};
    for (int64_t i = l; i < width; i += 16) {
      const vf a = load(columns + i * 16), b = load(columns + (i + 8) * 16);
      for (int r = 0; r < NQ; r++) {
        sums[r] = fused(a, splat(q[r][i]), sums[r]);
        other[r] = fused(b, splat(q[r][i + 8]), other[r]);
      }
    }
  } else {
    lane_sums<NQ, l, apart * 2>(columns, q, width, sums);
    lane_sums<NQ, l + apart, apart * 2>(columns, q, width, other);
  }
  for (int r = 0; r < NQ; r++) sums[r] += other[r];
}

template <int NQ>
static void score_columns(const float* columns, const float* const* forms, int64_t width,
                          float scale, float* const* to) {
  const float* q[NQ];
  for (int r = 0; r < NQ; r++) q[r] = forms[r];
  for (int k = 0; k < 16; k += lanes) {
    vf sums[NQ];
    lane_sums<NQ, 0, 1>(columns + k, q, width, sums);
    for (int r = 0; r < NQ; r++) store(to[r] + k, sums[r] * scale);
  }
}

// Keys [from, to) of a block of 16 and many queries: `columns` holds the keys transposed.
static void score_many(const Attended& seen, int64_t variant, const float* columns, int64_t from,
                       int64_t end, int64_t width, float scale, float* scores, int64_t stride) {
  const bool whole = end - from == 16;
  for (int64_t i = 0; i < seen.n_queries; i += 4) {
    const float* q[4];
    float *to[4], some[4][16];
    const int64_t most = std::min<int64_t>(4, seen.n_queries - i);
    for (int64_t r = 0; r < 4; r++) {
      q[r] = seen.q + ((i + std::min(r, most - 1)) * seen.variants + variant) * width;
      to[r] = whole && r < most ? scores + (i + r) * stride : some[r];
    }
    if (most == 4)
      score_columns<4>(columns, q, width, scale, to);
    else if (most >= 2)
      score_columns<3>(columns, q, width, scale, to);
    else
      score_columns<1>(columns, q, width, scale, to);
    if (!whole)
      for (int64_t r = 0; r < most; r++)
        std::memcpy(scores + (i + r) * stride + from, some[r] + from, size_t(end - from) * 4);
  }
}

template <class Read>
static void score_cells(const Attended& seen, const CacheSide& keys, float scale, int64_t begin,
                        int64_t end, float* scores, int64_t stride, float* room) {
  const int64_t dim = keys.dim, width = padded(dim), row_bytes = keys.row_bytes();
  const bool many = seen.n_queries >= many_queries, raw = seen.key_angles;
  float *block = room, *columns = room + 16 * width;
  const Attended::Part* part = seen.parts;
  while (part->end <= begin) part++;
  for (int64_t j = begin; j < end; j += 16) {
    const int64_t n = std::min<int64_t>(16, end - j);
    const uint8_t* rows[32];  // repeated past the end, for who reads several at once
    for (int64_t k = 0; k < 32; k++)
      rows[k] = keys.row(seen.cells[j + std::min(k, n - 1)], seen.head);
    for (int64_t k = j + mixed_rows; k < std::min(j + 16 + mixed_rows, seen.n); k++)
      expect(keys.row(seen.cells[k], seen.head), row_bytes);
    if (many || raw)
      for (int64_t k = 0; k < 16; k++) {
        float* row = block + k * width;
        widen_row<Read>(rows[k], dim, row);
        if (!raw) continue;
        if (keys.rotation) hadamard(row, dim, keys.rotation);
        const int64_t at = seen.key_rows ? seen.key_rows[j + std::min(k, n - 1)] : 0;
        rotate(row, seen.key_angles + at * seen.pairs * 2, seen.pairs, seen.interleaved);
        rows[k] = rows[k + 16] = reinterpret_cast<const uint8_t*>(row);
      }
    if (many) transpose(block, width, columns);
    for (int64_t k = 0; k < n;) {
      const int64_t to = std::min(n, part->end - j);
      if (many)
        score_many(seen, part->variant, columns, k, to, width, scale, scores + j, stride);
      else if (raw)
        score_few<ReadF32>(seen, part->variant, rows + k, to - k, dim, scale, scores + j + k,
                           stride);
      else
        score_few<Read>(seen, part->variant, rows + k, to - k, dim, scale, scores + j + k, stride);
      k = to;
      if (part->end - j <= k && j + k < seen.n) part++;
    }
  }
}

void score(const Attended& seen, const CacheSide& keys, float scale, int64_t begin, int64_t end,
           float* scores, int64_t stride, float* room) {
  with_reader(keys.type, [&](auto read) {
    score_cells<decltype(read)>(seen, keys, scale, begin, end, scores, stride, room);
  });
}

// --- weights ---

float weigh(float* scores, int64_t n) {
  for (int64_t j = n; j % 16; j++) scores[j] = -INFINITY;
  vf tops = load(scores);
  for (int64_t j = lanes; j < n; j += lanes) {
    const vf v = load(scores + j);
    tops = where(v > tops, v, tops);
  }
  float highest = tops[0];
  for (int i = 1; i < lanes; i++) highest = tops[i] > highest ? tops[i] : highest;
  v16 total = splat16(0);
  for (int64_t j = 0; j < n; j += 16) {
    const v16 s = load16(scores + j) - splat16(highest);
    const v16 e = each_part([&](int k) { return exponential(s.part[k]); });
    store16(scores + j, e);
    total = total + e;
  }
  return 1.0f / sum16(total);
}

// --- values ---

// Where the values of a block of columns are read: in the cache, or widened.
template <class Read>
struct InCache {
  using Type = Read;
  const CacheSide& side;
  const int32_t* cells;
  int64_t n, head;
  const uint8_t* row(int64_t j) const { return side.row(cells[j], head); }
  // Asks for n channels from c on of a row that comes later.
  void expect_after(int64_t j, int64_t c, int64_t channels) const {
    if (j + mixed_rows < n) expect(row(j + mixed_rows) + Read::bytes(c), Read::bytes(channels));
  }
};
struct Widened {
  using Type = ReadF32;
  const float* rows;
  int64_t width;
  const uint8_t* row(int64_t j) const { return reinterpret_cast<const uint8_t*>(rows + j * width); }
  void expect_after(int64_t, int64_t, int64_t) const {}
};

// One chain of additions for each query and channel, over rows [begin, end).
template <int NQ, int NC, bool whole, class Rows>
static inline void mix_chunk(const Rows& from, int64_t begin, int64_t end, int64_t dim, int64_t c,
                             const float* const (&weights)[NQ], float* const (&out)[NQ]) {
  using Read = typename Rows::Type;
  constexpr int vectors = span<Read> / lanes;
  vf sum[NQ][NC];
#pragma GCC unroll 4
  for (int r = 0; r < NQ; r++)
#pragma GCC unroll 8
    for (int k = 0; k < NC; k++) sum[r][k] = load(out[r] + c + k * lanes);
  for (int64_t j = begin; j < end; j++) {
    const uint8_t* row = from.row(j);
    from.expect_after(j, c, NC * lanes);
    vf v[NC];
#pragma GCC unroll 8
    for (int k = 0; k < NC; k += vectors) {
      vf some[vectors];
      widen<Read, whole>(row, c + k * lanes, dim, some);
#pragma GCC unroll 8
      for (int m = 0; m < vectors; m++) v[k + m] = some[m];
    }
#pragma GCC unroll 4
    for (int r = 0; r < NQ; r++) {
      const vf w = splat(weights[r][j]);
#pragma GCC unroll 8
      for (int k = 0; k < NC; k++) sum[r][k] = fused(w, v[k], sum[r][k]);
    }
  }
#pragma GCC unroll 4
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
  if constexpr (lanes == 16)
    for (; c + 64 <= c1; c += 64) mix_chunk<NQ, 4, true>(from, begin, end, dim, c, w, to);
  for (; c + one * lanes <= c1; c += one * lanes)
    mix_chunk<NQ, one, true>(from, begin, end, dim, c, w, to);
  if (c < c1) mix_chunk<NQ, one, false>(from, begin, end, dim, c, w, to);
}

// Queries whose sums are kept in registers at a time.
template <class Rows>
constexpr int64_t queries_at_once = lanes < 16 && Blocks<typename Rows::Type> ? 2 : 4;

template <class Rows>
static void mix_queries(const Rows& from, int64_t n, int64_t begin, int64_t end, int64_t dim,
                        int64_t c0, int64_t c1, const float* const* weights, float* const* out) {
  if (begin >= end) return;
  if constexpr (queries_at_once<Rows> == 4) {
    if (n == 4) return mix_rows<4>(from, begin, end, dim, c0, c1, weights, out);
    if (n == 3) return mix_rows<3>(from, begin, end, dim, c0, c1, weights, out);
  }
  if (n == 2) return mix_rows<2>(from, begin, end, dim, c0, c1, weights, out);
  mix_rows<1>(from, begin, end, dim, c0, c1, weights, out);
}

// All queries over the n columns from `begin` on, of which each takes those that it sees: `from`
// has the first as row 0.
template <class Rows>
static void mix_seen(const Rows& from, const Attended& seen, const float* weights, int64_t stride,
                     int64_t begin, int64_t n, int64_t dim, int64_t c0, int64_t c1, float* out,
                     int64_t out_stride) {
  for (int64_t i = 0; i < seen.n_queries; i += queries_at_once<Rows>) {
    const int64_t most = std::min(queries_at_once<Rows>, seen.n_queries - i);
    const float* w[4];
    float* to[4];
    int64_t low[4], high[4], a = 0, b = n;  // all of them see [a, b)
    for (int64_t r = 0; r < most; r++) {
      w[r] = weights + (i + r) * stride + begin;
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

// Values that lie channel by channel, as rows: squares of neighbouring cells by transposing.
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
          v[k] = cached<Read>(values.channel(head, c + k) + cells[j] * size, 0);
        transpose(v);
        for (int k = 0; k < lanes; k++) store(rows + (j + k) * width + c, v[k]);
        c += lanes;
      } else {
        for (int64_t k = j; k < j + taken; k++)
          rows[k * width + c] = Read::one(values.channel(head, c), cells[k]);
        c++;
      }
    }
    j += taken;
  }
}

template <class Read>
static void mix_cells(const Attended& seen, const CacheSide& values, const float* weights,
                      int64_t stride, int64_t begin, int64_t end, int64_t c0, int64_t c1,
                      float* out, int64_t out_stride, float* room) {
  const int64_t dim = values.dim, width = padded(dim), n = end - begin;
  const int32_t* cells = seen.cells + begin;
  if (!values.by_channel && seen.n_queries < many_queries)
    return mix_seen(InCache<Read>{values, cells, seen.n - begin, seen.head}, seen, weights, stride,
                    begin, n, dim, c0, c1, out, out_stride);
  if constexpr (!Blocks<Read>) {
    if (values.by_channel) {
      for (int64_t j = 0; j < n; j++)
        for (int64_t c = dim; c < width; c++) room[j * width + c] = 0;
      gather_channels<Read>(values, seen.head, cells, n, c0, std::min(c1, dim), room, width);
    }
  }
  if (!values.by_channel)
    for (int64_t j = 0; j < n; j++) {
      if (begin + j + n < seen.n) expect(values.row(cells[j + n], seen.head), values.row_bytes());
      widen_row<Read>(values.row(cells[j], seen.head), dim, room + j * width);
    }
  mix_seen(Widened{room, width}, seen, weights, stride, begin, n, width, c0, c1, out, out_stride);
}

void mix(const Attended& seen, const CacheSide& values, const float* weights, int64_t stride,
         int64_t begin, int64_t end, int64_t c0, int64_t c1, float* out, int64_t out_stride,
         float* room) {
  with_reader(values.type, [&](auto read) {
    mix_cells<decltype(read)>(seen, values, weights, stride, begin, end, c0, c1, out, out_stride,
                              room);
  });
}

}  // namespace aleator::ALEATOR_ISA
