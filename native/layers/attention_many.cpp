// Many queries of one head over the columns of a tile. Their scores lie block by block, a block's
// queries one after the other, so that memory is read in its order.
#include <algorithm>
#include <cmath>

#include "layers/attention_step.hpp"

namespace aleator {

// Floats of transposed keys that a thread keeps for the next tile: four megabytes.
constexpr int64_t kept_floats = 1 << 20;

// Scores of columns [begin, end), the first a multiple of 16.
void AttentionStep::score(Scratch& own, const AttentionShape& s, const Attended& seen, bool keeps,
                          int64_t begin, int64_t end, float* scores, int64_t stride, Ahead& ahead,
                          float* highest) const {
  if (seen.n_queries < many_scores)
    return score_keys_(seen, s.keys, s.scale, begin, end, scores, stride, own.room.data(), ahead);
  const int64_t width = padded(s.keys.dim), most = std::min(kept_floats / width, padded(seen.n));
  if (own.head != seen.head || own.cells != seen.cells)
    own.head = seen.head, own.cells = seen.cells, own.transposed = 0;
  float *block = own.room.data(), *columns = block + 16 * width;
  int64_t known = begin;
  if (keeps && padded(end) <= most && begin <= own.transposed) {
    if (int64_t(own.columns.size()) < most * width)
      own.columns.resize(std::min(kept_floats, most * width * 5 / 4));
    columns = &own.columns[begin * width];
    known = std::clamp(own.transposed / 16 * 16, begin, end);
    own.transposed = std::max(own.transposed, end);
  }
  if (known < end)
    key_columns_(seen, s.keys, known, end, columns + (known - begin) * width, block, ahead);
  score_columns_(seen, columns, width, s.scale, begin, end, scores, stride, highest);
}

// The highest score of each query, or its sink: `highest` has lanes of them, and gets the result.
static void across_lanes(Lines<float>& highest, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float top = highest[i * 16];
    for (int64_t k = 1; k < 16; k++) top = highest[i * 16 + k] > top ? highest[i * 16 + k] : top;
    highest[i] = top;
  }
}

void AttentionStep::run_many(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h,
                             float* out) const {
  const int64_t group = s.group(), n = tile.tokens * group, dim = s.values.dim, width = padded(dim);
  const int64_t together = columns_together(n, dim);
  const Attended& seen = own.seen.front();
  const auto sink = [&](int64_t i) { return s.sinks ? s.sinks[h * group + i % group] : -INFINITY; };
  const auto blocks = [&](auto&& f) {
    for (int64_t j = 0; j < tile.n; j += together)
      f(j, std::min(tile.n, j + together), &own.scores[j * n]);
  };
  const size_t floats = size_t((tile.n + together - 1) / together * together * n);
  if (own.scores.size() < floats) own.scores.resize(floats * 5 / 4);
  own.highest.resize(n * 16);
  for (int64_t i = 0; i < n; i++) std::fill_n(&own.highest[i * 16], 16, sink(i));
  own.totals.assign(n * 16, 0.0f);
  own.mixed.assign(n * width, 0.0f);
  own.factors.assign(n, 0.0f);
  float* const highest = own.highest.data();
  const bool adjusts = s.softcap != 0 || s.slopes;
  Ahead keys(s.keys, tile.cells, tile.n, h, h + 1), values(s.values, tile.cells, tile.n, h, h + 1);
  blocks([&](int64_t begin, int64_t end, float* scores) {
    keys.expect(end, end + together);
    score(own, s, seen, tile.keeps, begin, end, scores, together, keys,
          adjusts ? nullptr : highest);
    if (!adjusts) return;
    adjust_block(own, s, tile, h, begin, end, scores, together);
    find_highest_(seen, begin, end, scores, together, highest);
  });
  across_lanes(own.highest, n);
  blocks([&](int64_t begin, int64_t end, float* scores) {
    weigh_columns_(seen, begin, end, scores, together, highest, own.totals.data());
    values.expect(end, end + together);
    mix_(seen, s.values, scores, together, begin, end, 0, dim, own.mixed.data(), width,
         own.room.data(), values);
  });
  for (int64_t i = 0; i < n; i++)
    if (own.first[i] < own.end[i])
      own.factors[i] = weight_factor_(&own.totals[i * 16], own.first[i], own.highest[i], sink(i));
  finish(own, s, tile, h, 0, out);
}

void AttentionStep::adjust_block(const Scratch& own, const AttentionShape& s, const Tile& tile,
                                 int64_t h, int64_t begin, int64_t end, float* scores,
                                 int64_t stride) const {
  const int64_t group = s.group();
  for (int64_t i = 0; i < tile.tokens * group; i++) {
    const int64_t low = std::max(begin, own.first[i]), high = std::min(end, own.end[i]);
    if (low < high)
      adjust(s, tile, tile.token + i / group, h * group + i % group,
             scores + i * stride + low - begin, low, high);
  }
}

}  // namespace aleator
