// Attention of queries over the cells of one key-value head.  What comes out for a query depends on
// itself and on the cells that it sees, in their order, on nothing else: docs/numerics.md, part 2.
#pragma once

#include "layers/rows.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

// Queries of one key-value head, and the cells that any of them sees: its columns.
struct Attended {
  // Neighbouring columns whose keys are met by one form of each query.
  struct Part {
    int64_t end;  // index after its last column
    int64_t variant;
  };
  const int32_t* cells = nullptr;
  int64_t n = 0;
  const Part* parts = nullptr;  // the last one's end is at least n
  // Query i's form of variant v: q + (i * variants + v) * padded(dim), zeros from dim on.
  const float* q = nullptr;
  int64_t variants = 1, n_queries = 0;
  const int64_t *first = nullptr, *end = nullptr;  // [n_queries] the columns that query i sees
  int64_t head = 0;
  // Where keys are stored unrotated: column j's is rotated by row key_rows[j] of key_angles [rows,
  // pairs, 2] before it is met; key_rows may be none: by row 0.
  const float* key_angles = nullptr;
  const int32_t* key_rows = nullptr;
  int64_t pairs = 0;
  bool interleaved = false;
  int64_t offset = 0;  // channels before the rotated ones
};

// What is read next of a cache: columns' rows, which are asked for in memory's order, as many bytes
// as are read meanwhile. Rows of one head lie apart, so the processor does not guess them.
class Ahead {
 public:
  // Of each column heads [h0, h1): from channel c0 of the first one up to c1, if there are so many,
  // of the last one.
  Ahead(const CacheSide& side, const int32_t* cells, int64_t columns, int64_t h0, int64_t h1,
        int64_t c0 = 0, int64_t c1 = INT64_MAX)
      : rows_(side.rows(h0)), cells_(cells), columns_(side.by_channel ? 0 : columns) {
    const int64_t before = stored_bytes(side.type, c0);
    rows_.first += before;
    bytes_ = (h1 - 1 - h0) * side.row_bytes() +
             stored_bytes(side.type, c1 < side.dim ? c1 : side.dim) - before;
  }
  // Columns from `begin` up to `end` may be asked for now.
  void expect(int64_t begin, int64_t end) {
    if (next_ < begin) next_ = begin, left_ = 0;
    end_ = end < columns_ ? end : columns_;
  }
  // Asks for so many more bytes of them. Inlined, as kernels of any instruction set have it.
  [[gnu::always_inline]] void ask(int64_t bytes) {
    while (bytes > 0) {
      if (left_ <= 0) {
        if (next_ >= end_) return;
        at_ = rows_[cells_[next_++]], left_ = bytes_;
      }
      const int64_t n = bytes < left_ ? bytes : left_;
      for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(at_ + i, 0, 2);
      at_ += n, left_ -= n, bytes -= n;
    }
  }

 private:
  CacheSide::Rows rows_;
  const int32_t* cells_;
  int64_t columns_, bytes_ = 0, next_ = 0, end_ = 0, left_ = 0;
  const uint8_t* at_ = nullptr;
};

constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }
// Columns in one call of mix, at most: few queries take few, so that memory is read as it lies;
// many take more, so that sums are stored and loaded again less often.
constexpr int64_t few_rows = 32, many_rows = 128;
// From so many queries on keys are read, widened and transposed once for all of them, and values in
// blocks widened.
constexpr int64_t many_scores = 9, many_mixed = 6;
// Columns that one head takes before the next: of many queries as many as the first-level cache has
// room for.
constexpr int64_t columns_together(int64_t queries, int64_t dim) {
  if (queries < many_scores) return few_rows;
  const int64_t fit = many_rows * 128 / dim / 32 * 32;
  return fit < few_rows ? few_rows : fit > many_rows ? many_rows : fit;
}
// Floats of working memory for heads of so many channels.
constexpr int64_t attention_room(int64_t dim) { return (16 + many_rows) * padded(dim); }
constexpr int64_t attention_slack = 16;  // floats that a row of scores must have beyond n

// scores[i * stride + j - begin] = q_i . key_j * scale for columns [begin, end) and every query.
ALEATOR_KERNEL(void, score_keys,
               (const Attended& seen, const CacheSide& keys, float scale, int64_t begin,
                int64_t end, float* scores, int64_t stride, float* room, Ahead& ahead))
// The same for many queries in two steps. Keys of columns [begin, end) as float32, each 16 as a
// square [padded(dim), 16], the last one filled up; and scores of columns from there on. `highest`,
// if it is given: see find_highest.
ALEATOR_KERNEL(void, key_columns,
               (const Attended& seen, const CacheSide& keys, int64_t begin, int64_t end,
                float* columns, float* room, Ahead& ahead))
ALEATOR_KERNEL(void, score_columns,
               (const Attended& seen, const float* columns, int64_t width, float scale,
                int64_t begin, int64_t end, float* scores, int64_t stride, float* highest))
// scores[j] -= slope * |positions[j] - position|, the product rounded by itself.
ALEATOR_KERNEL(void, lean,
               (float* scores, int64_t n, float slope, const int32_t* positions, int32_t position))
// Scores of n cells become e^(score - highest); returns 1 / their sum.  `sink` is one more score,
// of a cell without a value; -infinity: there is none.  Overwrites up to 15 floats after the
// scores.
ALEATOR_KERNEL(float, weigh_keys, (float* scores, int64_t n, float sink))
// The same for many queries in steps over columns [begin, end), begin a multiple of 16, whose
// scores are as score_columns leaves them. The highest scores so far of query i, in sixteen lanes
// from highest[i * 16] on; what it does not see in a sixteen of columns becomes -infinity.
ALEATOR_KERNEL(void, find_highest,
               (const Attended& seen, int64_t begin, int64_t end, float* scores, int64_t stride,
                float* highest))
// Scores become weights, highest[i] being query i's highest score of all; their sums go on in
// sixteen lanes from totals[i * 16] on.
ALEATOR_KERNEL(void, weigh_columns,
               (const Attended& seen, int64_t begin, int64_t end, float* scores, int64_t stride,
                const float* highest, float* totals))
// 1 / the sum of one query's weights, of which `first` is the first column that it sees.
ALEATOR_KERNEL(float, weight_factor,
               (const float* totals, int64_t first, float highest, float sink))
// out[i * out_stride + c] += sum over columns [begin, end) that query i sees of weights[i * stride
// + j - begin] * value_j[c], for channels [c0, c1), of which c0 is a multiple of 32, and c1 too or
// the last. At most many_rows columns.  Rows of out have padded(dim) floats.
ALEATOR_KERNEL(void, mix,
               (const Attended& seen, const CacheSide& values, const float* weights, int64_t stride,
                int64_t begin, int64_t end, int64_t c0, int64_t c1, float* out, int64_t out_stride,
                float* room, Ahead& ahead))

}  // namespace aleator
