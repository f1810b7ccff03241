#include "llama/row.hpp"

#include <algorithm>
#include <array>

namespace aleator::llama {

namespace {

constexpr int64_t max_heap = 128;  // up to so many are selected by a heap, more by buckets

// The bucket of a logit: 128 of them over [-10, 10].  llama.cpp converts first and clamps
// afterwards, which sends +inf and everything above 3.4e8 to the lowest bucket; they belong into
// the highest.
inline uint8_t bucket_of(float logit) {
  const float scaled = 6.4f * logit + 64.0f;
  return scaled >= 127.0f ? 127 : scaled > 0.0f ? uint8_t(scaled) : 0;
}

// Without a destructor: threads may still read it when the program ends.
constexpr auto masked_tile = [] {
  std::array<float, tile_size> x;
  x.fill(-infinity);
  return x;
}();

}  // namespace

void Row::load(const void* data, int64_t n, Dtype dtype) {
  check_length(n);
  size_ = n;
  dense_ = true;
  sorted = p_current = false;
  selected = -1;
  RowTiles::load(data, n, dtype, tile_scan_);
  each_irregular([&](int64_t t) {
    float* x = own_tile(t);
    for (int i = 0; i < tile_size; ++i)
      if (x[i] != x[i]) x[i] = -infinity;
    rescan(t);
  });
  if (top() == -infinity) nothing_finite();
}

bool Row::mask(std::span<const uint32_t> words) {
  p_current = false;
  if (dense_) {
    mask_tiles(words);
  } else {
    const auto word = [&](int64_t i) { return i < std::ssize(words) ? words[i] : 0u; };
    for (int64_t i = 0; i < size_; ++i)
      if (!(word(data_[i].id / 32) >> (data_[i].id % 32) & 1)) data_[i].logit = -infinity;
  }
  return top() > -infinity;
}

void Row::rescan(int64_t tile) {
  tile_scan_(tiles_[tile], 1, &tiles_[tile], &maxima_[tile], &irregular_[tile]);
}

Candidate* Row::list() {
  if (!dense_) return data_;
  entries_.resize(std::max<size_t>(entries_.size(), size_));
  data_ = entries_.data();
  for (int64_t t = 0; t < n_tiles_; ++t) {
    const int64_t first = t * tile_size;
    for (int i = 0; i < width(t); ++i) data_[first + i] = {int32_t(first + i), tiles_[t][i], 0.0f};
  }
  dense_ = false;
  return data_;
}

void Row::become(std::vector<Candidate>& entries, int64_t n) {
  entries_.swap(entries);
  data_ = entries_.data();
  size_ = n;
  dense_ = false;
  p_current = false;
}

float Row::top() {
  float best = -infinity;
  if (dense_)
    for (const float m : maxima_) best = m > best ? m : best;
  else
    for (int64_t i = 0; i < size_; ++i) best = data_[i].logit > best ? data_[i].logit : best;
  return best;
}

int64_t Row::argmax() {
  if (dense_) {
    const float best = top();
    const int64_t tile = std::find(maxima_.begin(), maxima_.end(), best) - maxima_.begin();
    const float* x = tiles_[tile];
    return tile * tile_size + (std::find(x, x + tile_size, best) - x);
  }
  int64_t best = 0;
  for (int64_t i = 1; i < size_; ++i)
    if (data_[i].logit > data_[best].logit) best = i;
  return best;
}

Candidate Row::entry(int64_t id) const {
  return {int32_t(id), tiles_[id / tile_size][id % tile_size], 0.0f};
}

// Puts into spare_ what is at least `bound` of a dense row, tile by tile until there are more than
// `most`; returns how many.
int64_t Row::collect_at_least(float bound, int64_t most) {
  int64_t found = 0;
  for (int64_t t = 0; t < n_tiles_; ++t) {
    if (!(maxima_[t] >= bound)) continue;
    spare_.resize(std::max<size_t>(spare_.size(), found + tile_size));
    const float* x = tiles_[t];
    int32_t ids[tile_size];
    const int count = find_at_least_(x, bound, int32_t(t * tile_size), ids);
    Candidate* next = spare_.data() + found;
    for (int i = 0; i < count; ++i) next[i] = {ids[i], x[ids[i] % tile_size], 0.0f};
    if ((found += count) > most) break;
  }
  return found;
}

// The n highest of a dense row where no two of them are equal, nor equal to the next: then every
// sort agrees.  At least n logits reach the n-th largest tile maximum, so what lies below it cannot
// be among them.
bool Row::select_distinct(int64_t n) {
  if (n >= n_tiles_) return false;
  bounds_ = maxima_;
  std::nth_element(bounds_.begin(), bounds_.begin() + (n - 1), bounds_.end(), std::greater<>());
  const float bound = bounds_[n - 1];
  const int64_t most = 4 * n + 2 * tile_size;  // more than this is no gain over the heap
  const int64_t found = collect_at_least(bound, most);
  if (found > most) return false;
  Candidate* first = spare_.data();
  const int64_t checked = std::min(n + 1, found);
  std::partial_sort(first, first + checked, first + found, higher);
  for (int64_t i = 1; i < checked; ++i)
    if (!(first[i - 1].logit > first[i].logit)) return false;
  become(spare_, n);
  return true;
}

// std::partial_sort over a dense row, without its entries: make_heap on the first n, every later
// entry that beats the heap's lowest takes its place, sort_heap.  pop_heap on n + 1 entries is
// exactly that replacement, so ties fall as they would in the array; tiles that cannot hold such an
// entry are skipped.
void Row::select_first(int64_t n) {
  spare_.resize(std::max<size_t>(spare_.size(), n + 1));
  Candidate* heap = spare_.data();
  for (int64_t i = 0; i < n; ++i) heap[i] = entry(i);
  std::make_heap(heap, heap + n, higher);
  for (int64_t t = n / tile_size; t < n_tiles_; ++t) {
    if (!(maxima_[t] > heap[0].logit)) continue;
    int32_t ids[tile_size];
    const int count = find_at_least_(tiles_[t], heap[0].logit, int32_t(t * tile_size), ids);
    for (int j = 0; j < count; ++j) {
      const float logit = tiles_[t][ids[j] % tile_size];
      if (ids[j] < n || !(logit > heap[0].logit)) continue;
      heap[n] = {ids[j], logit, 0.0f};
      std::pop_heap(heap, heap + n + 1, higher);
    }
  }
  std::sort_heap(heap, heap + n, higher);
  become(spare_, n);
}

// Puts candidates into buckets, each in the array's order, the highest bucket first: all buckets
// down to the one in which the n-th highest lies.  Returns that bucket.
int Row::scatter(int64_t n, std::vector<Candidate>& out, Counts& counts) {
  buckets_.resize(size_);
  counts.fill(0);
  int64_t place = 0;
  each([&](float logit) { ++counts[buckets_[place++] = bucket_of(logit)]; });
  int last = n_buckets - 1;
  int64_t reached = counts[last];
  while (reached < n) reached += counts[--last];
  out.resize(std::max<size_t>(out.size(), reached));
  Candidate* ends[n_buckets];
  Candidate* end = out.data();
  for (int b = n_buckets - 1; b >= last; --b) ends[b] = end, end += counts[b];
  for (int64_t i = 0; i < size_; ++i)
    if (buckets_[i] >= last) *ends[buckets_[i]]++ = dense_ ? entry(i) : data_[i];
  return last;
}

// The n highest, in order: the buckets above the one in which the n-th lies are sorted whole, that
// one partially.
void Row::bucket_sort(int64_t n, std::vector<Candidate>& out) {
  Counts counts;
  const int last = scatter(n, out, counts);
  Candidate* first = out.data();
  for (int b = n_buckets - 1; b > last; --b) {
    std::sort(first, first + counts[b], higher);
    first += counts[b];
  }
  std::partial_sort(first, out.data() + n, first + counts[last], higher);
}

void Row::sort(int64_t n) {
  sorted = true;
  if (dense_ && select_distinct(n)) return;
  if (n > max_heap) {
    bucket_sort(n, spare_);
    become(spare_, n);
  } else if (dense_) {
    select_first(n);
  } else {
    std::partial_sort(data_, data_ + n, data_ + size_, higher);
    truncate(n);
  }
}

void Row::softmax(bool sort_first) {
  if (sort_first && !sorted) sort(size_);
  const float sum = exponentials<float>([](float z, float shift) { return std::exp(z - shift); });
  for (int64_t i = 0; i < size_; ++i) data_[i].p /= sum;
  p_current = true;
}

// The first place at which the running float64 sum of float32 weights reaches u times the total.  A
// weight of zero is never chosen, not even by u = 0.
int64_t Row::draw(double u) {
  const auto weight = [](float z, float shift) { return std::exp(z - shift); };
  if (dense_ && !wants_p) {
    const float shift = top();
    if (std::abs(shift) < infinity) {
      weights_.resize(size_);
      double total = 0;
      for (int64_t t = 0; t < n_tiles_; ++t) {
        float* w = weights_.data() + t * tile_size;
        const float* x = tiles_[t];
        if (maxima_[t] - shift < -105.0f) {  // every exponential underflows to zero
          std::fill(w, w + width(t), 0.0f);
          continue;
        }
        for (int i = 0; i < width(t); ++i) total += w[i] = weight(x[i], shift);
      }
      const double target = total * u;
      double running = 0;
      for (int64_t i = 0;; ++i)
        if ((running += weights_[i]) >= target && weights_[i] > 0) return i;
    }
  }
  const double total = exponentials<double>(weight);
  const double target = total * u;
  double running = 0;
  int64_t chosen = -1;
  for (int64_t i = 0; i < size_; ++i) {
    float& p = data_[i].p;
    if ((running += p) >= target && p > 0 && chosen < 0) chosen = i;
    p = float(p / total);
  }
  p_current = true;
  return chosen;
}

void Row::divide(float temperature) {
  p_current = false;
  if (temperature > 0) {
    if (dense_) {
      for (int64_t t = 0; t < n_tiles_; ++t) {
        float* x = own_tile(t);
        for (int i = 0; i < tile_size; ++i) x[i] /= temperature;
        maxima_[t] /= temperature;
      }
    } else {
      for (int64_t i = 0; i < size_; ++i) data_[i].logit /= temperature;
    }
    return;
  }
  const int64_t best = argmax();
  if (dense_) {
    const float top_logit = entry(best).logit;
    std::fill(tiles_.begin(), tiles_.end(), masked_tile.data());
    std::fill(state_.begin(), state_.end(), 0);
    std::fill(maxima_.begin(), maxima_.end(), -infinity);
    own_tile(best / tile_size)[best % tile_size] = top_logit;
    maxima_[best / tile_size] = top_logit;
  } else {
    for (int64_t i = 0; i < size_; ++i)
      if (i != best) data_[i].logit = -infinity;
  }
}

int64_t Row::keep_at_least(float threshold, int64_t min_keep) {
  int64_t kept = 0;
  if (dense_) {
    kept = collect_at_least(threshold, size_);
  } else {
    spare_.resize(std::max<size_t>(spare_.size(), size_));
    for (int64_t i = 0; i < size_; ++i) {
      spare_[kept] = data_[i];
      kept += data_[i].logit >= threshold;
    }
  }
  if (kept == 0 || kept < min_keep) return 0;
  become(spare_, kept);
  return kept;
}

// A float32 sum of p in descending order of logits, up to the first that reaches `mass`.  A long
// unsorted row is sorted only as far as its first 256, and whole if they do not suffice; the sum
// goes on where it was.  Buckets are sorted one by one, so "whole" ends where the sum does.
void Row::keep_mass(float mass, int64_t min_keep) {
  constexpr int64_t long_row = 1024, window = 256;
  const bool stepwise = !sorted && size_ > long_row;
  if (!sorted && !stepwise) sort(size_);
  int64_t known = stepwise ? window : size_;
  if (stepwise) bucket_sort(known, spare_);
  const Candidate* c = stepwise ? spare_.data() : data_;
  Counts counts;
  int bucket = n_buckets, last = -1;
  float sum = 0;
  int64_t kept = 0;
  while (kept < size_) {
    if (kept == known) {
      if (last < 0) {
        last = scatter(size_, spare_, counts);
        c = spare_.data();
        known = 0;
      }
      while (known <= kept) {
        Candidate* first = spare_.data() + known;
        Candidate* end = first + counts[--bucket];
        bucket > last ? std::sort(first, end, higher) : std::partial_sort(first, end, end, higher);
        known += counts[bucket];
      }
    }
    sum += c[kept++].p;
    if (sum >= mass && kept >= min_keep) break;
  }
  if (stepwise)
    become(spare_, kept);
  else
    truncate(kept);
  sorted = true;
}

void Row::mask_below(float threshold) {
  p_current = false;
  if (dense_) {
    for (int64_t t = 0; t < n_tiles_; ++t) {
      if (maxima_[t] < threshold) {
        tiles_[t] = masked_tile.data();
        state_[t] = 0;
        maxima_[t] = -infinity;
        continue;
      }
      float* x = own_tile(t);
      for (int i = 0; i < tile_size; ++i) x[i] = x[i] < threshold ? -infinity : x[i];
    }
  } else {
    for (int64_t i = 0; i < size_; ++i)
      if (data_[i].logit < threshold) data_[i].logit = -infinity;
  }
}

}  // namespace aleator::llama
