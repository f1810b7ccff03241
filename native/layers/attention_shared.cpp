// Tiles that threads share: cells for the scores, rows for the weights, and channels for the
// values, whose sums go over all cells.
#include <algorithm>

#include "layers/attention_step.hpp"

namespace aleator {

// Channels of a head whose values one thread takes.
constexpr int64_t channels_together = 32;

// What follows once all threads have taken their parts of the scores.
void AttentionStep::finish_shared(int thread, Pool& pool, const AttentionShape& s, const float* q,
                                  float* out) {
  Scratch& own = scratch_[thread];
  const int64_t n_shared = int64_t(shared_.size()), heads = s.keys.heads;
  pool.barrier();
  pool.each(thread, shared_tokens_ * s.heads, [&](int64_t row) { weigh_row(s, row); });
  const int64_t all = heads * ((s.values.dim + channels_together - 1) / channels_together);
  int64_t units = std::min<int64_t>(all, pool.size());
  while (all % units) units++;
  pool.split(thread, units * n_shared, [&](int64_t unit) {
    const int64_t first = unit / n_shared * (all / units);
    mix_channels(own, s, *shared_[unit % n_shared], first, first + all / units, q, out);
  });
  if (!s.values.rotation) return;
  pool.barrier();
  pool.split(thread, shared_tokens_, [&](int64_t i) {
    const Tile& tile = shared_tile(i);
    const int64_t width = s.heads * s.values.dim;
    hadamard_(out + (tile.token + i - tile.shared) * width, width, s.values.rotation);
  });
}

const AttentionStep::Tile& AttentionStep::shared_tile(int64_t token) const {
  size_t i = shared_.size() - 1;
  while (shared_[i]->shared > token) i--;
  return *shared_[i];
}

// Where the rows of a shared tile's head begin in scores_: in a tile the heads follow each other.
int64_t AttentionStep::row(const AttentionShape& s, const Tile& tile, int64_t h) const {
  return tile.shared * s.heads + h * tile.tokens * s.group();
}

void AttentionStep::score_part(Scratch& own, const AttentionShape& s, const Tile& tile,
                               int64_t begin, int64_t end, const float* q) {
  if (begin >= end) return;
  const int64_t stride = padded(longest_) + attention_slack;
  form(own, s, tile, 0, s.keys.heads, q);
  const int64_t together = columns_together(tile.tokens * s.group(), s.keys.dim);
  Ahead ahead(s.keys, tile.cells, end, 0, s.keys.heads);
  for (int64_t j = begin; j < end; j += together) {
    ahead.expect(j + together, j + 2 * together);
    for (int64_t h = 0; h < s.keys.heads; h++)
      score(own, s, own.seen[h], false, j, std::min(end, j + together),
            &scores_[row(s, tile, h) * stride + j], stride, ahead);
  }
}

void AttentionStep::weigh_row(const AttentionShape& s, int64_t row) {
  const Tile& tile = shared_tile(row / s.heads);
  const int64_t stride = padded(longest_) + attention_slack, group = s.group();
  const int64_t in_tile = row - tile.shared * s.heads, i = in_tile % (tile.tokens * group);
  const int64_t t = tile.token + i / group;
  const int64_t head = in_tile / (tile.tokens * group) * group + i % group;
  const bool joined = sunk(t);
  const int64_t low = joined ? 0 : first(t) - tile.base;
  const int64_t high = joined ? tile.n : seen_.seen_count[t] - tile.base;
  factors_[row] = low < high ? weigh(s, tile, t, head, &scores_[row * stride], low, high) : 0.0f;
}

// The values of a shared tile in pieces [first, last) of channels_together channels of its heads.
void AttentionStep::mix_channels(Scratch& own, const AttentionShape& s, const Tile& tile,
                                 int64_t first, int64_t last, const float* q, float* out) {
  const int64_t group = s.group(), n = tile.tokens * group, dim = s.values.dim, width = padded(dim);
  const int64_t stride = padded(longest_) + attention_slack;
  const int64_t per_head = (dim + channels_together - 1) / channels_together;
  form(own, s, tile, 0, s.keys.heads, q);
  const auto each = [&](auto&& f) {
    for (int64_t i = first; i < last; i++) {
      const int64_t h = i / per_head, c = i % per_head * channels_together;
      f(h, c, std::min(dim, c + channels_together), row(s, tile, h));
    }
  };
  each([&](int64_t, int64_t c, int64_t, int64_t row) {
    for (int64_t i = row; i < row + n; i++)
      std::fill_n(&mixed_[i * width + c], std::min(channels_together, width - c), 0.0f);
  });
  const int64_t together = columns_together(n, dim);
  Ahead ahead(s.values, tile.cells, tile.n, first / per_head, (last - 1) / per_head + 1,
              first % per_head * channels_together,
              ((last - 1) % per_head + 1) * channels_together);
  for (int64_t j = 0; j < tile.n; j += together) {
    ahead.expect(j + together, j + 2 * together);
    each([&](int64_t h, int64_t c, int64_t end, int64_t row) {
      mix_(own.seen[h], s.values, &scores_[row * stride + j], stride, j,
           std::min(tile.n, j + together), c, end, &mixed_[row * width], width, own.room.data(),
           ahead);
    });
  }
  each([&](int64_t h, int64_t c, int64_t end, int64_t row) {
    for (int64_t i = 0; i < n; i++) {
      float* to = out + ((tile.token + i / group) * s.heads + h * group + i % group) * dim;
      for (int64_t k = c; k < end; k++) to[k] = mixed_[(row + i) * width + k] * factors_[row + i];
    }
  });
}

}  // namespace aleator
