#include "layers/attention_step.hpp"

#include <algorithm>
#include <cmath>

#include "layers/gates.hpp"

namespace aleator {

// Queries of a key-value head that go together: as many as keep their scores within four megabytes.
static int64_t queries_together(int64_t columns) {
  return std::clamp<int64_t>((int64_t(1) << 20) / (columns + 1), 32, 96);
}
// For fewer tiles, writing them to memory and reading them again takes longer than transposing.
constexpr size_t tiles_to_keep = 3;
// From so many columns on a tile is worth sharing out among threads.
constexpr int64_t columns_to_share = 512;
namespace {
struct Cut {
  int64_t tiles;
  bool even;  // each thread gets as many of the tiles' heads, or nearly
};
}  // namespace

// Tokens of one list as tiles: as few as hold at most `most` each, or some more that come out even.
static Cut cut(int64_t tokens, int64_t most, int64_t group, int64_t kv_heads, int threads) {
  const int64_t fewest = (tokens + most - 1) / most;
  for (int64_t n = fewest; n * many_scores <= tokens * group; n++)
    if (n * kv_heads % threads == 0 || n * kv_heads >= 4 * threads) return {n, true};
  return {fewest, false};
}

bool AttentionStep::sunk(int64_t t) const {
  return seen_.seen_sinks && seen_.seen_sinks[t] > 0 && seen_.seen_first &&
         seen_.seen_first[t] > seen_.seen_sinks[t];
}
int64_t AttentionStep::first(int64_t t) const {
  if (!seen_.seen_first || (seen_.seen_sinks && seen_.seen_sinks[t] >= seen_.seen_first[t]))
    return 0;
  return seen_.seen_first[t];
}

void AttentionStep::prepare(const Seen& seen, int64_t tokens, const Rotation& rotation, bool raw,
                            int threads, int64_t kv_heads, int64_t group) {
  seen_ = seen, rotation_ = rotation, raw_ = raw;
  tiles_.clear(), joined_.clear(), parts_.clear(), key_rows_.clear();
  listed_ = -1;
  if (raw) key_angles_.begin(rotation);
  deltas_.assign(1, 0);
  scratch_.resize(threads);
  const int64_t even = (tokens * kv_heads + 4 * threads - 1) / (4 * threads);
  for (int64_t t = 0; t < tokens;) {
    const int64_t list = seen.seen_list[t], start = seen.list_start[list];
    const int32_t* cells = seen.seen + start;
    const int32_t* positions = seen.seen_positions ? seen.seen_positions + start : nullptr;
    const int32_t* deltas = raw                ? rows_of(list)
                            : seen.seen_deltas ? seen.seen_deltas + start
                                               : nullptr;
    if (sunk(t)) {
      add_joined(t++, cells, deltas, positions);
      continue;
    }
    int64_t stop = t + 1;
    while (stop < tokens && seen.seen_list[stop] == list && !sunk(stop)) stop++;
    const bool sharing = threads > 1 && seen.seen_count[t] - first(t) >= columns_to_share;
    int64_t together = queries_together(seen.seen_count[stop - 1]) / group;
    if (threads > 1 && !sharing) together = std::min(together, even);
    const Cut cuts = cut(stop - t, std::max<int64_t>(1, together), group, kv_heads, threads);
    const size_t before = tiles_.size();
    for (int64_t left = cuts.tiles; left > 0; left--) {
      const int64_t end = t + (stop - t + left - 1) / left;
      int64_t low = INT64_MAX, high = 0;
      for (int64_t i = t; i < end; i++) {
        if (first(i) >= seen.seen_count[i]) continue;
        low = std::min(low, first(i)), high = std::max(high, seen.seen_count[i]);
      }
      low = std::min(low, high);
      add_tile({t, end - t, cells + low, deltas ? deltas + low : nullptr, high - low, low, 0,
                positions ? positions + low : nullptr, 0, cuts.even, false});
      t = end;
    }
    mark_alike(before);
  }
  share(threads, kv_heads);
  angles_.resize(deltas_.size() * size_t(rotation.pairs) * 2);
  rotary_angles(rotation, deltas_.data(), int64_t(deltas_.size()), -1, 1, angles_.data());
}

// The rows of key_angles_ by which a list's keys are rotated.
const int32_t* AttentionStep::rows_of(int64_t list) {
  if (list != listed_) {
    const int64_t start = seen_.list_start[list], n = seen_.list_start[list + 1] - start;
    auto& rows = key_rows_.emplace_back(size_t(n));
    for (int64_t j = 0; j < n; j++)
      rows[j] = key_angles_.row(seen_.seen_deltas ? seen_.seen_deltas[start + j] : 0);
    listed_ = list;
  }
  return key_rows_.back().data();
}

// A token that sees first cells apart from the others: a tile whose columns are those cells, then
// these.
void AttentionStep::add_joined(int64_t t, const int32_t* cells, const int32_t* deltas,
                               const int32_t* positions) {
  const int64_t sinks = seen_.seen_sinks[t];
  const int64_t low = seen_.seen_first[t], high = std::max(low, seen_.seen_count[t]);
  const auto join = [&](const int32_t* from) -> const int32_t* {
    if (!from) return nullptr;
    joined_.emplace_back(from, from + sinks);
    joined_.back().insert(joined_.back().end(), from + low, from + high);
    return joined_.back().data();
  };
  add_tile({t, 1, join(cells), join(deltas), sinks + high - low, 0, 0, join(positions), 0, false,
            false});
}

void AttentionStep::add_tile(Tile tile) {
  tile.part = int64_t(parts_.size());
  if (raw_ || !tile.deltas) {
    parts_.push_back({tile.n, 0});
  } else {
    for (int64_t j = 0; j < tile.n;) {
      int64_t end = j + 1;
      while (end < tile.n && tile.deltas[end] == tile.deltas[j]) end++;
      const auto known = std::find(deltas_.begin(), deltas_.end(), tile.deltas[j]);
      parts_.push_back({end, known - deltas_.begin()});
      if (known == deltas_.end()) deltas_.push_back(tile.deltas[j]);
      j = end;
    }
  }
  tiles_.push_back(tile);
}

// The tiles of one list, from the i-th on: keys are kept if they begin with the same column.
void AttentionStep::mark_alike(size_t i) {
  const bool alike = tiles_.size() - i >= tiles_to_keep && tiles_[i].cells == tiles_.back().cells;
  for (; i < tiles_.size(); i++) tiles_[i].keeps = alike;
}

void AttentionStep::share(int threads, int64_t kv_heads) {
  whole_.clear(), shared_.clear();
  longest_ = widest_ = shared_tokens_ = 0;
  int64_t cost = 0;
  for (const Tile& tile : tiles_) cost += tile.cost();
  for (Tile& tile : tiles_) {
    if (threads > 1 && !tile.even && tile.n >= columns_to_share &&
        4 * threads * tile.cost() > kv_heads * cost) {
      tile.shared = shared_tokens_;
      longest_ = std::max(longest_, tile.n), shared_tokens_ += tile.tokens;
      shared_.push_back(&tile);
    } else {
      widest_ = std::max(widest_, tile.tokens);
      whole_.push_back(&tile);
    }
  }
}

void AttentionStep::reserve(const AttentionShape& s) {
  const auto grow = [](Lines<float>& v, int64_t n) {
    if (int64_t(v.size()) < n) v.resize(n);
  };
  for (Scratch& own : scratch_) grow(own.room, attention_room(std::max(s.keys.dim, s.values.dim)));
  const int64_t rows = shared_tokens_ * s.heads;
  grow(scores_, rows * (padded(longest_) + attention_slack));
  grow(mixed_, rows * padded(s.values.dim));
  grow(factors_, rows);
}

// The forms of a tile's queries, for key-value heads [h0, h1).
void AttentionStep::form(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h0,
                         int64_t h1, const float* q) const {
  const int64_t dim = s.keys.dim, width = padded(dim), group = s.group();
  const int64_t n = tile.tokens * group, variants = int64_t(deltas_.size());
  const bool raw = raw_ && s.rotated;  // keys are rotated as they are read
  own.queries.assign((h1 - h0) * n * variants * width, 0.0f);
  own.first.resize(n), own.end.resize(n), own.seen.clear();
  for (int64_t i = 0; i < n; i++) {
    const int64_t t = tile.token + i / group;
    const bool joined = sunk(t);
    own.first[i] = joined ? 0 : first(t) - tile.base;
    own.end[i] = joined ? tile.n : seen_.seen_count[t] - tile.base;
    if (own.first[i] >= own.end[i]) own.first[i] = own.end[i] = 0;
  }
  for (int64_t h = h0; h < h1; h++) {
    float* forms = &own.queries[(h - h0) * n * variants * width];
    for (int64_t i = 0; i < n; i++) {
      const float* from = q + ((tile.token + i / group) * s.heads + h * group + i % group) * dim;
      for (int64_t v = 0; v < variants; v++) {
        float* to = forms + (i * variants + v) * width;
        std::copy_n(from, dim, to);
        const Rotation& r = rotation_;
        if (v && s.rotated)
          rotate_(to + r.offset, &angles_[v * r.pairs * 2], r.pairs, r.interleaved);
        if (s.keys.rotation && !raw) hadamard_(to, dim, s.keys.rotation);
      }
    }
    own.seen.push_back({.cells = tile.cells,
                        .n = tile.n,
                        .parts = parts_.data() + tile.part,
                        .q = forms,
                        .variants = variants,
                        .n_queries = n,
                        .first = own.first.data(),
                        .end = own.end.data(),
                        .head = h,
                        .key_angles = raw ? key_angles_.data() : nullptr,
                        .key_rows = tile.deltas,
                        .pairs = rotation_.pairs,
                        .interleaved = rotation_.interleaved,
                        .offset = rotation_.offset});
  }
}

void AttentionStep::run(int thread, Pool& pool, const AttentionShape& s, const float* q,
                        float* out) {
  Scratch& own = scratch_[thread];
  own.transposed = 0;  // the last layer's keys
  const int64_t n_whole = int64_t(whole_.size()), heads = s.keys.heads;
  const bool many = widest_ * s.group() >= many_mixed;
  int64_t together = many ? 1 : heads;  // heads of a tile that one thread takes
  while (heads % together || (pool.size() > 1 && together > 1 &&
                              heads / together * int64_t(tiles_.size()) < 4 * pool.size()))
    together--;
  const int64_t n = heads / together;
  // Threads share out the cells of shared tiles for the scores, the rows for the weights, and the
  // channels for the values, whose sums go over all cells.
  const int64_t n_shared = int64_t(shared_.size());
  const int64_t chunk = std::max<int64_t>(64, padded(longest_ / (4 * pool.size())));
  const int64_t parts = (longest_ + chunk - 1) / chunk * n_shared;
  pool.split(thread, parts + n * n_whole, [&](int64_t unit) {
    if (unit < parts) {
      const Tile& tile = *shared_[unit % n_shared];
      const int64_t begin = unit / n_shared * chunk;
      return score_part(own, s, tile, begin, std::min(tile.n, begin + chunk), q);
    }
    unit -= parts;
    const int64_t i = many ? unit % n_whole : unit / n, h = many ? unit / n_whole : unit % n;
    run_heads(own, s, *whole_[i], h * together, (h + 1) * together, q, out);
  });
  if (n_shared) finish_shared(thread, pool, s, q, out);
}

// What is done to scores of columns [first, end) of a tile before they become weights.
void AttentionStep::adjust(const AttentionShape& s, const Tile& tile, int64_t token, int64_t head,
                           float* scores, int64_t first, int64_t end) const {
  if (s.softcap != 0) soften_(scores, end - first, s.softcap);
  if (s.slopes)
    lean_(scores, end - first, s.slopes[head], tile.positions + first, seen_.positions[token]);
}

// Scores of columns [first, end) of a tile become weights; returns 1 / their sum.
float AttentionStep::weigh(const AttentionShape& s, const Tile& tile, int64_t token, int64_t head,
                           float* scores, int64_t first, int64_t end) const {
  adjust(s, tile, token, head, scores + first, first, end);
  return weigh_keys_(scores + first, end - first, s.sinks ? s.sinks[head] : -INFINITY);
}

void AttentionStep::run_heads(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h0,
                              int64_t h1, const float* q, float* out) const {
  const int64_t group = s.group(), n = tile.tokens * group, dim = s.values.dim;
  const int64_t stride = padded(tile.n) + attention_slack, width = padded(dim);
  form(own, s, tile, h0, h1, q);
  if (n >= many_scores) return run_many(own, s, tile, h0, out);
  const size_t rows = size_t((h1 - h0) * n);
  if (own.scores.size() < rows * size_t(stride)) own.scores.resize(rows * size_t(stride) * 5 / 4);
  own.mixed.assign(rows * size_t(width), 0.0f);
  own.factors.assign(rows, 0.0f);
  const auto blocks = [&](auto&& f) {
    for (int64_t j = 0; j < tile.n; j += few_rows)
      for (int64_t h = 0; h < h1 - h0; h++)
        f(j, std::min(tile.n, j + few_rows), own.seen[h], h * n);
  };
  Ahead keys(s.keys, tile.cells, tile.n, h0, h1), values(s.values, tile.cells, tile.n, h0, h1);
  blocks([&](int64_t begin, int64_t end, const Attended& seen, int64_t row) {
    keys.expect(end, end + few_rows);
    score_keys_(seen, s.keys, s.scale, begin, end, &own.scores[row * stride + begin], stride,
                own.room.data(), keys);
  });
  for (int64_t row = 0; row < int64_t(rows); row++) {
    const int64_t first = own.first[row % n], end = own.end[row % n];
    if (first < end)
      own.factors[row] =
          weigh(s, tile, tile.token + row % n / group, (h0 + row / n) * group + row % n % group,
                &own.scores[row * stride], first, end);
  }
  blocks([&](int64_t begin, int64_t end, const Attended& seen, int64_t row) {
    values.expect(end, end + few_rows);
    mix_(seen, s.values, &own.scores[row * stride + begin], stride, begin, end, 0, dim,
         &own.mixed[row * width], width, own.room.data(), values);
  });
  for (int64_t h = h0; h < h1; h++) finish(own, s, tile, h, (h - h0) * n, out);
}

// What comes out for head h, whose sums and factors begin with the row `from`.
void AttentionStep::finish(const Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h,
                           int64_t from, float* out) const {
  const int64_t group = s.group(), dim = s.values.dim, width = padded(dim);
  for (int64_t i = 0; i < tile.tokens * group; i++) {
    float* to = out + ((tile.token + i / group) * s.heads + h * group + i % group) * dim;
    const float factor = own.factors[from + i], *mixed = &own.mixed[(from + i) * width];
    for (int64_t c = 0; c < dim; c++) to[c] = mixed[c] * factor;
    if (s.values.rotation) hadamard_(to, dim, s.values.rotation);
  }
}

}  // namespace aleator
