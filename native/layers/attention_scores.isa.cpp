#include <algorithm>
#include <type_traits>

#include "layers/attention.hpp"
#include "layers/widened.hpp"

namespace aleator::ALEATOR_ISA {

// Sums that are kept in registers at a time.
constexpr int sums_at_once = lanes == 16 ? 16 : 4;
constexpr int64_t many_keys = 64;  // that many queries meet at a time, at most
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
  if constexpr (!Blocks<Read>)  // which fill rows
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
    else if (most == 3)
      score_rows<Read, 3>(q, rows, n, dim, scale, to);
    else if (most == 2)
      score_rows<Read, 2>(q, rows, n, dim, scale, to);
    else
      score_rows<Read, 1>(q, rows, n, dim, scale, to);
    i += most;
  }
}

// For each of NQ queries and the keys in the lanes of NK vectors, the part of the tree over the
// virtual lanes 0, apart, 2 * apart, ...; channel i's keys are 16 * i after `columns`.
template <int NQ, int NK, int apart>
[[gnu::always_inline]] static inline void lane_sums(const float* const (&columns)[NK],
                                                    const float* const (&q)[NQ], int64_t width,
                                                    vf (&sums)[NQ * NK]) {
  if constexpr (apart == 16) {
    for (vf& s : sums) s = vf{};
    for (int64_t i = 0; i < width; i += 16) {
      vf keys[NK];
      for (int k = 0; k < NK; k++) keys[k] = load(columns[k] + i * 16);
      for (int r = 0; r < NQ; r++) {
        const vf x = splat_from(q[r] + i);
        for (int k = 0; k < NK; k++) sums[r * NK + k] = fused(keys[k], x, sums[r * NK + k]);
      }
    }
  } else {
    const float *columns_on[NK], *q_on[NQ];
    for (int k = 0; k < NK; k++) columns_on[k] = columns[k] + apart * 16;
    for (int r = 0; r < NQ; r++) q_on[r] = q[r] + apart;
    vf other[NQ * NK];
    lane_sums<NQ, NK, apart * 2>(columns, q, width, sums);
    lane_sums<NQ, NK, apart * 2>(columns_on, q_on, width, other);
    for (int i = 0; i < NQ * NK; i++) sums[i] += other[i];
  }
}

// Of NQ queries the highest scores so far, in sixteen lanes each, and scores of keys from j on.
template <int NQ, int NK>
[[gnu::always_inline]] static inline void meet_highest(const vf (&scores)[NQ * NK], int64_t j,
                                                       float* highest) {
  for (int r = 0; r < NQ; r++)
    for (int k = 0; k < NK; k++) {
      float* at = highest + r * 16 + (j + k * lanes) % 16;
      store(at, higher(scores[r * NK + k], load(at)));
    }
}

// n keys, of which each 16 are a square of columns, and NQ queries, `apart` floats from each other;
// scores are `stride` from each other. `highest`: see score_columns.
template <int NQ, int NK>
static void score_squares(const float* columns, int64_t n, const float* queries, int64_t apart,
                          int64_t width, float scale, float* to, int64_t stride, float* highest) {
  for (int64_t j = 0; j < n; j += NK * lanes) {
    // The tree's halves one after the other: in one piece GCC keeps more of it in memory.
    vf total[NQ * NK] = {};
#pragma GCC unroll 1
    for (int l = 0; l < 2; l++) {
      const float *q[NQ], *at[NK];
      for (int r = 0; r < NQ; r++) q[r] = queries + r * apart + l;
      for (int k = 0; k < NK; k++) {
        const int64_t key = j + k * lanes;
        at[k] = columns + key / 16 * 16 * width + l * 16 + key % 16;
      }
      vf sums[NQ * NK];
      lane_sums<NQ, NK, 2>(at, q, width, sums);
      for (int i = 0; i < NQ * NK; i++) total[i] = l ? total[i] + sums[i] : sums[i];
    }
    for (vf& t : total) t *= scale;
    for (int r = 0; r < NQ; r++)
      for (int k = 0; k < NK; k++) store(to + r * stride + j + k * lanes, total[r * NK + k]);
    if (highest) meet_highest<NQ, NK>(total, j, highest);
  }
}

// Queries that go together, and whether those from the i-th on all see columns [begin, end).
constexpr int64_t queries_at_once = 4;
static bool all_see(const Attended& seen, int64_t i, int64_t begin, int64_t end) {
  for (int64_t r = i; r < std::min(i + queries_at_once, seen.n_queries); r++)
    if (seen.first[r] > begin || seen.end[r] < end) return false;
  return true;
}

// Keys [from, end) of n in `columns`, of 16 or a multiple of NK vectors, and many queries; the
// first is column j. `highest`: of queries that see all of them, or none.
template <int NK>
static void score_many(const Attended& seen, int64_t variant, const float* columns, int64_t j,
                       int64_t n, int64_t from, int64_t end, int64_t width, float scale,
                       float* scores, int64_t stride, float* highest) {
  const bool whole = end - from == n;
  const int64_t apart = seen.variants * width;
  for (int64_t i = 0; i < seen.n_queries; i += queries_at_once) {
    const float* q = seen.q + i * apart + variant * width;
    const int64_t most = std::min(queries_at_once, seen.n_queries - i);
    float some[queries_at_once * many_keys], *to = scores + i * stride;
    float* const tops = highest && all_see(seen, i, j, j + n) ? highest + i * 16 : nullptr;
    with_count<queries_at_once>(most, [&](auto count) {
      score_squares<count(), NK>(columns, n, q, apart, width, scale, whole ? to : some,
                                 whole ? stride : many_keys, tops);
    });
    if (!whole)
      for (int64_t r = 0; r < most; r++)
        std::memcpy(to + r * stride + from, some + r * many_keys + from, size_t(end - from) * 4);
  }
}

// The highest scores of columns [begin, end) for those who do not see all of them; of all queries
// where nothing was `met` yet.
static void meet_others(const Attended& seen, bool met, int64_t begin, int64_t end, float* scores,
                        int64_t stride, float* highest) {
  for (int64_t i = 0; i < seen.n_queries; i += queries_at_once) {
    if (met && all_see(seen, i, begin, end)) continue;
    Attended some = seen;
    some.first += i, some.end += i;
    some.n_queries = std::min(queries_at_once, seen.n_queries - i);
    find_highest(some, begin, end, scores + i * stride, stride, highest + i * 16);
  }
}

void score_columns(const Attended& seen, const float* columns, int64_t width, float scale,
                   int64_t begin, int64_t end, float* scores, int64_t stride, float* highest) {
  // As many as stay in the first-level cache beside the queries.
  const int64_t most = width > 64 ? many_keys / 2 : many_keys;
  const Attended::Part* part = seen.parts;
  while (part->end <= begin) part++;
  for (int64_t j = begin; j < end;) {
    int64_t n = std::min(most, end - j);
    if (n > 32) n = n / 32 * 32;
    const float* at = columns + (j - begin) * width;
    float* row = scores + (j - begin);
    const bool whole = n % 16 == 0 && part->end - j >= n;
    float* const tops = whole ? highest : nullptr;
    for (int64_t k = 0; k < n;) {
      const int64_t to = std::min(n, part->end - j);
      if (lanes == 16 && n <= 16)
        score_many<1>(seen, part->variant, at, j, 16, k, to, width, scale, row, stride, tops);
      else
        score_many<2>(seen, part->variant, at, j, padded(n), k, to, width, scale, row, stride,
                      tops);
      k = to;
      if (part->end - j <= k && j + k < seen.n) part++;
    }
    if (highest) meet_others(seen, whole, j, j + n, row, stride, highest);
    j += n;
  }
}

// Rows of n <= 16 keys from column j on as float32 in a block, rotated there if they are stored
// unrotated.
template <class Read>
static void widen_keys(const Attended& seen, const CacheSide& keys, int64_t j, int64_t n,
                       float* block, const uint8_t** rows) {
  for (int64_t k = 0; k < n; k++) {
    float* row = block + k * padded(keys.dim);
    widen_row<Read>(rows[k], 0, keys.dim, row);
    rows[k] = reinterpret_cast<const uint8_t*>(row);
    if (!seen.key_angles) continue;
    if (keys.rotation) hadamard(row, keys.dim, keys.rotation);
    const int64_t at = seen.key_rows ? seen.key_rows[j + k] : 0;
    rotate(row + seen.offset, seen.key_angles + at * seen.pairs * 2, seen.pairs, seen.interleaved);
  }
}

// Where n <= 16 keys from column j on are read, in the cache or the block, the last one repeated
// for who reads several at once.
template <class Read>
static void find_rows(const Attended& seen, const CacheSide& keys, int64_t j, int64_t n,
                      float* block, const uint8_t* (&rows)[32]) {
  const CacheSide::Rows all = keys.rows(seen.head);
  for (int64_t k = 0; k < n; k++) rows[k] = all[seen.cells[j + k]];
  if (seen.key_angles || widened_first<Read>) widen_keys<Read>(seen, keys, j, n, block, rows);
  std::fill(rows + n, rows + 32, rows[n - 1]);
}

// Calls f(Read, Found) for the type of keys and the one as which find_rows leaves them.
template <class F>
static void with_keys(const Attended& seen, const CacheSide& keys, F&& f) {
  with_reader(keys.type, [&](auto read) {
    using Read = decltype(read);
    if (widened_first<Read> || seen.key_angles)
      f(read, ReadF32());
    else if constexpr (!widened_first<Read>)
      f(read, read);
  });
}

void score_keys(const Attended& seen, const CacheSide& keys, float scale, int64_t begin,
                int64_t end, float* scores, int64_t stride, float* room, Ahead& ahead) {
  const Attended::Part* part = seen.parts;
  while (part->end <= begin) part++;
  with_keys(seen, keys, [&](auto read, auto found) {
    for (int64_t j = begin; j < end; j += 16) {
      const int64_t n = std::min<int64_t>(16, end - j);
      ahead.ask(n * keys.row_bytes());
      const uint8_t* rows[32];
      find_rows<decltype(read)>(seen, keys, j, n, room, rows);
      for (int64_t k = 0; k < n;) {
        const int64_t to = std::min(n, part->end - j);
        score_few<decltype(found)>(seen, part->variant, rows + k, to - k, keys.dim, scale,
                                   scores + (j - begin) + k, stride);
        k = to;
        if (part->end - j <= k && j + k < seen.n) part++;
      }
    }
  });
}

void key_columns(const Attended& seen, const CacheSide& keys, int64_t begin, int64_t end,
                 float* columns, float* room, Ahead& ahead) {
  with_keys(seen, keys, [&](auto read, auto found) {
    for (int64_t j = begin; j < end; j += 16) {
      ahead.ask(16 * keys.row_bytes());
      const uint8_t* rows[32];
      find_rows<decltype(read)>(seen, keys, j, std::min<int64_t>(16, end - j), room, rows);
      transpose_rows<decltype(found)>(rows, keys.dim, columns + (j - begin) * padded(keys.dim));
    }
  });
}

}  // namespace aleator::ALEATOR_ISA
