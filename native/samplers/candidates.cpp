#include "samplers/candidates.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "rng/fixed.hpp"

namespace aleator {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

const auto scan = ALEATOR_PICK(tile_scan);
const auto mass_of = ALEATOR_PICK(tile_mass);
const auto group_maxima_ = ALEATOR_PICK(group_maxima);
const auto maximum_ = ALEATOR_PICK(maximum);
const auto count_at_least_ = ALEATOR_PICK(count_at_least);
const auto find_tiles_ = ALEATOR_PICK(find_tiles);
const auto add_mean_ = ALEATOR_PICK(add_mean);
const auto light_mass_of = ALEATOR_PICK(light_tile_mass);
const auto add_bins_ = ALEATOR_PICK(add_bins);
const auto weigh_ = ALEATOR_PICK(weigh);
const auto score_ = ALEATOR_PICK(score);
const auto add_moments_ = ALEATOR_PICK(add_moments);
const auto collect_ = ALEATOR_PICK(collect);
const auto collect_scored_ = ALEATOR_PICK(collect_scored);
const auto widen_f16_ = ALEATOR_PICK(widen_f16);
const auto widen_bf16_ = ALEATOR_PICK(widen_bf16);

}  // namespace

void Candidates::load(const void* data, int64_t n, Dtype dtype) {
  check_length(n);
  n_vocab_ = n;
  n_tiles_ = (n + tile_size - 1) / tile_size;
  const int64_t whole = n / tile_size;
  dense_ = true;
  temperature_ = 1;
  full_mass_ = 0;
  selected = -1;
  edited_.clear();
  tiles_.resize(n_tiles_);
  maxima_.assign((n_tiles_ + 15) / 16 * 16, -infinity);
  state_.assign(n_tiles_, 0);
  copies_.resize(n_tiles_ * tile_size);  // reserved whole: pointers into it stay valid
  has_nan_.resize(n_tiles_);
  const float* source = static_cast<const float*>(data);
  if (dtype == Dtype::f32) {
    if (whole) scan(source, whole, maxima_.data(), has_nan_.data());
  } else {
    const auto widen = dtype == Dtype::f16 ? widen_f16_ : widen_bf16_;
    widened_.resize(n);
    source = widened_.data();
    // In pieces, so that the scan finds them in the cache.
    for (int64_t t = 0; t < n_tiles_; t += 32) {
      const int64_t from = t * tile_size, to = std::min(n, (t + 32) * tile_size);
      widen(static_cast<const uint16_t*>(data) + from, to - from, widened_.data() + from);
      if (const int64_t tiles = (to - from) / tile_size)
        scan(source + from, tiles, &maxima_[t], &has_nan_[t]);
    }
  }
  for (int64_t t = 0; t < whole; ++t) tiles_[t] = source + t * tile_size;
  if (whole < n_tiles_) {  // the rest, padded with masked tokens to a whole tile
    float* rest = copies_.data() + whole * tile_size;
    std::fill(std::copy(source + whole * tile_size, source + n, rest), rest + tile_size, -infinity);
    tiles_[whole] = rest;
    state_[whole] = 1;
  }
  if (whole < n_tiles_) scan(tiles_[whole], 1, &maxima_[whole], &has_nan_[whole]);
  if (std::memchr(has_nan_.data(), 1, n_tiles_))
    for (int64_t t = 0; t < n_tiles_; ++t)
      if (has_nan_[t]) {
        own_tile(t);
        state_[t] = 2;
        edited_.push_back(static_cast<int32_t>(t));
      }
  settle();
}

float* Candidates::own_tile(int64_t tile) {
  float* copy = copies_.data() + tile * tile_size;
  if (!state_[tile]) {
    std::memcpy(copy, tiles_[tile], tile_size * sizeof(float));
    tiles_[tile] = copy;
    state_[tile] = 1;
  }
  return copy;
}

// The logit of a token in a dense list, to be written: its tile is copied and marked.
float* Candidates::own(int32_t id) {
  const int64_t tile = id / tile_size;
  float* z = own_tile(tile) + id % tile_size;
  if (state_[tile] != 2) {
    state_[tile] = 2;
    edited_.push_back(static_cast<int32_t>(tile));
  }
  return z;
}

float* Candidates::edit(int32_t id) {
  if (temperature_ != 1) materialise();
  full_mass_ = 0;
  if (!dense_) {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
    return at != ids_.end() && *at == id ? &logits_[at - ids_.begin()] : nullptr;
  }
  if (id < 0 || id >= n_vocab_ || tiles_[id / tile_size][id % tile_size] == -infinity)
    return nullptr;
  float* z = own(id);
  *z += 0.0f;  // -0 as loaded becomes the canonical +0 before anyone reads it
  return z;
}

// Restores the canonical form after logits were written: NaN becomes -inf, masked tokens leave a
// compact list, and with a +inf present only those tokens remain.
void Candidates::settle() {
  top_ = -infinity;
  mass_ = 0;
  if (dense_) {
    for (const int32_t tile : edited_) {
      float* x = copies_.data() + int64_t{tile} * tile_size;
      for (int i = 0; i < tile_size; ++i) x[i] = std::isnan(x[i]) ? -infinity : x[i] + 0.0f;
      maxima_[tile] = maximum_(x, tile_size);
      state_[tile] = 1;
    }
    edited_.clear();
    top_ = maximum_(maxima_.data(), static_cast<int64_t>(maxima_.size()));
  } else {
    size_t kept = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      const float z = logits_[i] + 0.0f;
      if (!(z > -infinity)) continue;
      ids_[kept] = ids_[i];
      logits_[kept++] = z;
      top_ = std::max(top_, z);
    }
    ids_.resize(kept);
    logits_.resize(kept);
  }
  if (top_ == -infinity) nothing_finite();
  if (top_ == infinity) keep_infinite();
}

// +inf tokens are equally likely, so any equal finite logit says the same; 0 keeps the arithmetic
// finite.
void Candidates::keep_infinite() {
  collect_near(-infinity, spare_ids_, spare_logits_);
  size_t kept = 0;
  for (size_t i = 0; i < spare_ids_.size(); ++i)
    if (spare_logits_[i] == infinity) spare_ids_[kept++] = spare_ids_[i];
  spare_ids_.resize(kept);
  spare_logits_.assign(kept, 0.0f);
  set_compact(spare_ids_, spare_logits_);
}

void Candidates::set_compact(Buffer<int32_t>& ids, Buffer<float>& logits) {
  set_compact(ids, logits, maximum_(logits.data(), static_cast<int64_t>(logits.size())));
}

void Candidates::set_compact(Buffer<int32_t>& ids, Buffer<float>& logits, float top) {
  ids_.swap(ids);
  logits_.swap(logits);
  dense_ = false;
  mass_ = 0;
  top_ = top;
}

void Candidates::list(std::vector<int32_t>& ids, std::vector<float>& logits) const {
  Buffer<int32_t> all_ids = ids_;
  Buffer<float> all_logits = logits_;
  if (dense_) collect_near(-infinity, all_ids, all_logits);
  ids.assign(all_ids.begin(), all_ids.end());
  logits.assign(all_logits.begin(), all_logits.end());
}

const float* Candidates::tile(int64_t t) const {
  if (dense_) return tiles_[t];
  const int64_t first = t * tile_size, rest = static_cast<int64_t>(ids_.size()) - first;
  if (rest >= tile_size) return logits_.data() + first;
  std::fill(std::copy(&logits_[first], &logits_[first] + rest, last_logits_),
            last_logits_ + tile_size, -infinity);
  return last_logits_;
}

const int32_t* Candidates::tile_ids(int64_t t) const {
  if (dense_) return nullptr;
  const int64_t first = t * tile_size, rest = static_cast<int64_t>(ids_.size()) - first;
  if (rest >= tile_size) return ids_.data() + first;
  std::copy(&ids_[first], &ids_[first] + rest, last_ids_);
  return last_ids_;
}

void Candidates::find_tiles(float threshold) const {
  found_.resize(n_tiles());
  if (dense_) {
    // z - top is -inf - inf = NaN for masked tokens of a row topped by +inf; a finite stand-in
    // serves as well, since collecting everything is all that such a row is asked for.
    const float top = std::isfinite(top_) ? top_ : 0.0f;
    n_found_ = find_tiles_(maxima_.data(), static_cast<int64_t>(maxima_.size()), top, threshold,
                           found_.data());
  } else {
    n_found_ = n_tiles();
    std::iota(found_.begin(), found_.end(), 0);
  }
}

// What from_tile(logits of a tile, their ids, the first id, ids, logits) appends, over the tiles in
// found_.
template <typename Collect>
void Candidates::collect(Collect from_tile, Buffer<int32_t>& ids, Buffer<float>& logits) const {
  ids.resize(n_found_ * tile_size);
  logits.resize(n_found_ * tile_size);
  int64_t count = 0;
  for (int64_t i = 0; i < n_found_; ++i) {
    const int32_t t = found_[i];
    count +=
        from_tile(tile(t), tile_ids(t), t * tile_size, ids.data() + count, logits.data() + count);
  }
  ids.resize(count);
  logits.resize(count);
}

void Candidates::collect_near(float threshold, Buffer<int32_t>& ids, Buffer<float>& logits) const {
  const float top = std::isfinite(top_) ? top_ : 0.0f;
  find_tiles(threshold);
  const auto from_tile = [=](const float* x, const int32_t* listed, int32_t first, int32_t* to_ids,
                             float* to_logits) {
    return collect_(x, listed, first, top, threshold, to_ids, to_logits);
  };
  collect(from_tile, ids, logits);
}

void Candidates::collect_scored(int32_t mean, int32_t from, int32_t to, Buffer<int32_t>& ids,
                                Buffer<float>& logits) const {
  const float top = top_, scale_ = scale();
  find_tiles(depth_threshold(int64_t{mean} + to));
  const auto from_tile = [=](const float* x, const int32_t* listed, int32_t first, int32_t* to_ids,
                             float* to_logits) {
    return collect_scored_(x, listed, first, top, scale_, mean, from, to, to_ids, to_logits);
  };
  collect(from_tile, ids, logits);
}

// A distance from the top within which every candidate of at most this depth lies.
float Candidates::depth_threshold(int64_t depth) const {
  if (depth >= max_score) return -infinity;  // depths end there
  // A hundredth of a bit covers the roundings.
  return static_cast<float>(-(static_cast<double>(depth) / 65536 + 0.01) /
                            static_cast<double>(scale()));
}

int64_t Candidates::count() const {
  if (!dense_) return static_cast<int64_t>(ids_.size());
  int64_t count = 0;
  for (int64_t t = 0; t < n_tiles_; ++t)
    for (int i = 0; i < tile_size; ++i) count += tiles_[t][i] > -infinity;
  return count;
}

int32_t Candidates::argmax() const {
  if (!dense_) return ids_[std::find(logits_.begin(), logits_.end(), top_) - logits_.begin()];
  const int64_t tile = std::find(maxima_.begin(), maxima_.end(), top_) - maxima_.begin();
  const float* x = tiles_[tile];
  return static_cast<int32_t>(tile * tile_size + (std::find(x, x + tile_size, top_) - x));
}

void Candidates::multiply_temperature(double factor) {
  if (factor == 1) return;
  const double product = temperature_ * factor;
  full_mass_ = 0;
  if (!std::isfinite(product))
    throw ParameterError("temperature", "the product of the chain's temperatures is not finite");
  if (product <= 1e-5) {
    keep_only(argmax());
    temperature_ = 1;
  } else {
    temperature_ = product;
    mass_ = 0;
  }
}

void Candidates::materialise() {
  if (temperature_ == 1) return;
  const float divisor = static_cast<float>(temperature_);
  temperature_ = 1;
  if (dense_) {
    for (int64_t t = 0; t < n_tiles_; ++t) {
      float* x = own_tile(t);
      for (int i = 0; i < tile_size; ++i) x[i] /= divisor;
      state_[t] = 2;
      edited_.push_back(static_cast<int32_t>(t));
    }
  } else {
    for (float& z : logits_) z /= divisor;
  }
  settle();
}

void Candidates::keep_only(int32_t id) {
  const float z = dense_ ? tiles_[id / tile_size][id % tile_size] + 0.0f
                         : logits_[std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin()];
  spare_ids_.assign(1, id);
  spare_logits_.assign(1, z);
  set_compact(spare_ids_, spare_logits_);
}

void Candidates::become(int32_t id) {
  spare_ids_.assign(1, id);
  spare_logits_.assign(1, 1.0f);
  set_compact(spare_ids_, spare_logits_);
}

bool Candidates::keep_allowed(std::span<const uint32_t> words) {
  const auto word = [&](int64_t i) { return i < std::ssize(words) ? words[i] : 0u; };
  mass_ = 0;
  if (!dense_) {
    size_t kept = 0;
    for (size_t i = 0; i < ids_.size(); ++i)
      if (word(ids_[i] / 32) >> (ids_[i] % 32) & 1) {
        ids_[kept] = ids_[i];
        logits_[kept++] = logits_[i];
      }
    ids_.resize(kept);
    logits_.resize(kept);
    top_ = -infinity;
    for (const float z : logits_) top_ = std::max(top_, z);
    return kept > 0;
  }
  constexpr int words_per_tile = tile_size / 32;
  int64_t allowed = 0;
  for (const uint32_t w : words) allowed += std::popcount(w);
  top_ = -infinity;
  if (allowed < n_vocab_ / 8) {  // few: straight into a compact list
    spare_ids_.clear();
    spare_logits_.clear();
    for (int64_t i = 0; i < std::min<int64_t>(std::ssize(words), n_tiles_ * words_per_tile); ++i)
      for (uint32_t w = words[i]; w; w &= w - 1) {
        const int64_t id = i * 32 + std::countr_zero(w);
        const float z = tiles_[id / tile_size][id % tile_size] + 0.0f;
        if (z == -infinity) continue;
        spare_ids_.push_back(static_cast<int32_t>(id));
        spare_logits_.push_back(z);
      }
    if (spare_ids_.empty()) return false;
    set_compact(spare_ids_, spare_logits_);
    return true;
  }
  for (int64_t t = 0; t < n_tiles_; ++t) {  // many: only tiles that lose a token are copied
    for (int k = 0; k < words_per_tile; ++k) {
      uint32_t gone = ~word(t * words_per_tile + k);
      if (!gone) continue;
      float* x = own_tile(t) + k * 32;
      for (; gone; gone &= gone - 1) x[std::countr_zero(gone)] = -infinity;
      maxima_[t] = infinity;  // to be found again
    }
    if (maxima_[t] == infinity) scan(tiles_[t], 1, &maxima_[t], &has_nan_[t]);
    top_ = std::max(top_, maxima_[t]);
  }
  return top_ > -infinity;
}

// Keeps what stands at `key` or before it in the order.
void Candidates::filter_from_key(uint64_t key, Buffer<int32_t>& ids, Buffer<float>& logits) {
  size_t kept = 0;
  for (size_t i = 0; i < ids.size(); ++i)
    if (order_key(logits[i], ids[i]) >= key) {
      ids[kept] = ids[i];
      logits[kept++] = logits[i];
    }
  ids.resize(kept);
  logits.resize(kept);
  set_compact(ids, logits);
}

// A distance from the top within which at least k candidates lie, and not many more: so many tiles,
// or smaller groups, have a maximum that reaches it.
float Candidates::tile_bound(int64_t k) {
  const float* maxima = maxima_.data();
  int64_t n = n_tiles_;
  if (k > n / 2) {
    n = n_tiles_ * groups_per_tile;
    if (k > n / 2) return -infinity;
    groups_.resize(n);
    for (int64_t t = 0; t < n_tiles_; ++t)
      group_maxima_(tiles_[t], groups_.data() + t * groups_per_tile);
    maxima = groups_.data();
  }
  uint32_t low = ordered(-infinity), high = ordered(top_) + 1;  // k reach low, and not high
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t reach = count_at_least_(maxima, n, from_ordered(middle));
    (reach >= k ? low : high) = middle;
    if (reach >= k && reach <= k + k / 8) break;
  }
  return from_ordered(low) - top_;  // rounding is monotone: nothing at the bound is lost
}

void Candidates::keep_first(int64_t k) {
  if (k >= n_vocab_) return;
  if (dense_) {
    collect_near(tile_bound(k), spare_ids_, spare_logits_);
  } else {
    if (k >= static_cast<int64_t>(ids_.size())) return;
    spare_ids_ = ids_;
    spare_logits_ = logits_;
  }
  if (k >= static_cast<int64_t>(spare_ids_.size())) return set_compact(spare_ids_, spare_logits_);
  keys_.resize(spare_ids_.size());
  for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = order_key(spare_logits_[i], spare_ids_[i]);
  std::nth_element(keys_.begin(), keys_.begin() + (k - 1), keys_.end(), std::greater<>());
  filter_from_key(keys_[k - 1], spare_ids_, spare_logits_);
}

void Candidates::keep_near(float threshold, int64_t min_keep) {
  collect_near(threshold, spare_ids_, spare_logits_);
  if (static_cast<int64_t>(spare_ids_.size()) < min_keep) return keep_first(min_keep);
  set_compact(spare_ids_, spare_logits_);
}

Moments Candidates::moments() const {
  Moments m;
  if (dense_) {
    for (int64_t t = 0; t < n_tiles_; ++t) add_moments_(tiles_[t], tile_size, top_, &m);
  } else {
    add_moments_(logits_.data(), static_cast<int64_t>(logits_.size()), top_, &m);
  }
  return m;
}

uint64_t Candidates::mass() {
  if (mass_) return mass_;
  const float scale_ = scale();
  const int64_t n = n_tiles();
  tile_masses_.resize(n);
  for (int64_t t = 0; t < n; ++t) {
    const float bits = dense_ ? (maxima_[t] - top_) * scale_ : 0;
    const auto kernel = bits <= light_bits ? light_mass_of : mass_of;
    mass_ += tile_masses_[t] = bits < zero_weight_bits ? 0 : kernel(tile(t), top_, scale_);
  }
  return mass_;
}

int32_t Candidates::mean_depth() {
  Mean mean;
  const float scale_ = scale();
  const int64_t n = n_tiles();
  tile_masses_.resize(n);
  mass_ = 0;
  for (int64_t t = 0; t < n; ++t) {
    const float bits = dense_ ? (maxima_[t] - top_) * scale_ : 0;
    mass_ += tile_masses_[t] = bits < zero_weight_bits   ? 0
                               : bits < mean_weight_bits ? light_mass_of(tile(t), top_, scale_)
                                                         : add_mean_(tile(t), top_, scale_, &mean);
  }
  return mean.depth();
}

Candidates::Drawn Candidates::draw(uint64_t u) {
  const uint64_t total = mass();
  auto target = static_cast<uint64_t>(static_cast<u128>(u) * total >> 64);
  int64_t t = 0;
  while (target >= tile_masses_[t]) target -= tile_masses_[t++];
  uint64_t w[tile_size];
  weigh_(tile(t), tile_size, top_, scale(), w);
  int j = 0;
  while (target >= w[j]) target -= w[j++];
  selected = id_at(t * tile_size + j);
  return {total, w[j]};
}

void Candidates::compact() {
  if (!dense_) return;
  collect_near(-infinity, spare_ids_, spare_logits_);
  set_compact(spare_ids_, spare_logits_);
}

const Buffer<uint64_t>& Candidates::weights() {
  compact();
  weights_.resize(ids_.size());
  weigh_(logits_.data(), static_cast<int64_t>(ids_.size()), top_, scale(), weights_.data());
  return weights_;
}

Buffer<float>& Candidates::edit_all() {
  compact();
  materialise();
  full_mass_ = 0;
  return logits_;
}

void Candidates::weigh_part() {
  part_.weights.resize(part_.ids.size());
  weigh_(part_.logits.data(), static_cast<int64_t>(part_.ids.size()), top_, scale(),
         part_.weights.data());
}

// All candidates of at least 2^(40 - bits) weight, and perhaps others.  Most of a row weighs
// nothing, and tiles that do not reach this far are not read.
const Candidates::Part& Candidates::near_top(double bits) {
  collect_near(depth_threshold(static_cast<int64_t>(std::ceil(bits * 65536))), part_.ids,
               part_.logits);
  weigh_part();
  return part_;
}

// The key of the first candidate in the order that weighs less than `bound`; in part_ those before
// it, and perhaps others.
uint64_t Candidates::first_below(uint64_t bound) {
  near_top(bound == 0 ? 100.0 : 40 - log2_q32(bound) / 4294967296.0);
  uint64_t first = 0;
  for (size_t i = 0; i < part_.ids.size(); ++i)
    if (part_.weights[i] < bound) first = std::max(first, part_.key(i));
  return first;
}

const Candidates::Run& Candidates::run(uint64_t bound) {
  const uint64_t end = first_below(bound);
  uint64_t last = ~uint64_t{0};
  run_.ids.clear();
  run_.last = -1;
  for (size_t i = 0; i < part_.ids.size(); ++i) {
    const uint64_t key = part_.key(i);
    if (key <= end) continue;
    run_.ids.push_back(part_.ids[i]);
    if (key < last) {
      last = key;
      run_.last = part_.ids[i];
    }
  }
  return run_;
}

bool Candidates::keep_run(uint64_t bound) {
  const uint64_t end = first_below(bound);
  if (order_key(top_, argmax()) <= end) return false;
  filter_from_key(end + 1, part_.ids, part_.logits);
  return true;
}

void Candidates::remove(const std::vector<int32_t>& ids) {
  if (dense_) {
    for (const int32_t id : ids) *own(id) = -infinity;
    return settle();
  }
  size_t next = 0;
  keep_if([&](size_t i) {
    if (next < ids.size() && ids[next] == ids_[i]) return ++next, false;
    return true;
  });
}

const std::vector<std::pair<uint64_t, uint64_t>>& Candidates::first(int64_t m) {
  collect_near(dense_ ? tile_bound(m) : -infinity, part_.ids, part_.logits);
  weigh_part();
  pairs_.resize(part_.ids.size());
  for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] = {part_.key(i), part_.weights[i]};
  m = std::min<int64_t>(m, static_cast<int64_t>(pairs_.size()));
  std::partial_sort(pairs_.begin(), pairs_.begin() + m, pairs_.end(), std::greater<>());
  pairs_.resize(m);
  return pairs_;
}

void Candidates::keep_through(uint64_t key) {
  compact();
  keep_if([&](size_t i) { return key_of(i) >= key; });
}

// The ranking is cut in three steps: masses by bins of score show the bin in which the prefix ends,
// only that bin is ranked, and what stands before its cut is collected.
constexpr int64_t few = 512;  // a list that is ranked whole

void Candidates::keep_mass(uint64_t wanted, int64_t min_keep, int32_t mean) {
  const bool dense = dense_;
  collect_prefix(mean, end_of_prefix(mean, std::max<uint64_t>(wanted, 1), Measure::mass));
  if (static_cast<int64_t>(spare_ids_.size()) < min_keep) {
    dense_ = dense;  // all of the row, should a part have been enough for the mass
    collect_prefix(mean, end_of_prefix(mean, static_cast<uint64_t>(min_keep), Measure::count));
  }
  set_compact(spare_ids_, spare_logits_);
}

// Collects the bin's measure above, and returns the first bin with which it reaches `wanted`;
// n_bins if it is not reached within `limit`.
int Candidates::find_bin(int32_t mean, int32_t limit, Measure measure, uint64_t wanted,
                         uint64_t* above) {
  const float scale_ = scale();
  int32_t scores[tile_size];
  bins_.assign(n_bins, 0);
  for (int64_t i = 0; i < n_found_; ++i) {
    const float* x = tile(found_[i]);
    if (measure == Measure::mass) {
      add_bins_(x, top_, scale_, mean, bins_.data());
    } else {
      score_(x, tile_size, top_, scale_, mean, scores);
      for (int j = 0; j < tile_size; ++j) bins_[scores[j] >> bin_shift] += x[j] > -infinity;
    }
  }
  const int end = limit == max_score ? n_bins : limit >> bin_shift;  // later ones are incomplete
  *above = 0;
  for (int bin = 0; bin < end; *above += bins_[bin++])
    if (*above + bins_[bin] >= wanted) return bin;
  return n_bins;
}

// The last of the shortest prefix of the ranking whose measure reaches `wanted`; ranking_ holds it
// and its neighbours.
Candidates::Ranked Candidates::end_of_prefix(int32_t mean, uint64_t wanted, Measure measure) {
  if (!dense_ && static_cast<int64_t>(ids_.size()) <= few) {
    part_.ids = ids_;
    part_.logits = logits_;
    uint64_t above = 0;
    rank_part(mean, measure, false, wanted, &above);
    return select_ranked(above, wanted);
  }
  // Most of the mass is near the mean.  Bins within this limit are complete without the tiles that
  // do not reach so far; where most tiles do, nothing is gained.
  constexpr int32_t limit = 8 << 16;
  find_tiles(depth_threshold(int64_t{mean} + limit));
  uint64_t above = 0;
  int bin = n_bins;
  if (n_found_ <= n_tiles() / 2) bin = find_bin(mean, limit, measure, wanted, &above);
  if (bin == n_bins && dense_ && measure == Measure::mass)
    bin = find_bin_in_part_of_row(mean, wanted, &above);
  if (bin == n_bins) {
    find_tiles(-infinity);
    bin = find_bin(mean, max_score, measure, wanted, &above);
  }
  ranking_.clear();
  if (bin == n_bins) return {max_score, 0, 0, 0};  // there is not as much: all of them
  collect_scored(mean, bin << bin_shift, ((bin + 1) << bin_shift) - 1, part_.ids, part_.logits);
  rank_part(mean, measure, true, wanted, &above);
  return select_ranked(above, wanted);
}

// Of a flat row tens of thousands of candidates remain, and every step is dear.  A sample of its
// tiles tells down to which depth the prefix can reach; what lies deeper is left out of the list
// for good.
int Candidates::find_bin_in_part_of_row(int32_t mean, uint64_t wanted, uint64_t* above) {
  constexpr int64_t step = 16;
  if (n_tiles_ < 8 * step || wanted >= mass()) return n_bins;
  bins_.assign(n_bins, 0);
  const float scale_ = scale();
  for (int64_t t = 0; t < n_tiles_; t += step) add_bins_(tiles_[t], top_, scale_, 0, bins_.data());
  // Of the mass that is to go most lies below the prefix, or, where the ranking is by distance from
  // a mean, about half.  If it was less after all, the prefix does not end in the part.
  const double below = static_cast<double>(mass() - wanted) * (mean ? 0.4 : 0.9) / step;
  double sum = 0;
  int end = n_bins;
  while (end > 0 && sum + static_cast<double>(bins_[end - 1]) < below)
    sum += static_cast<double>(bins_[--end]);
  const int32_t depth = end << bin_shift;
  if (depth <= mean) return n_bins;
  collect_near(depth_threshold(depth), spare_ids_, spare_logits_);
  const uint64_t whole = mass_;
  set_compact(spare_ids_, spare_logits_, top_);
  find_tiles(-infinity);
  const int bin = find_bin(mean, depth - mean, Measure::mass, wanted, above);
  if (bin == n_bins) {  // the row is as it was
    dense_ = true;
    mass_ = whole;
  }
  return bin;
}

// Ranks part_.  If all of it is in one bin, finer bins show which few have to be ranked.
void Candidates::rank_part(int32_t mean, Measure measure, bool one_bin, uint64_t wanted,
                           uint64_t* above) {
  const size_t n = part_.ids.size();
  scores_.resize(n);
  score_(part_.logits.data(), static_cast<int64_t>(n), top_, scale(), mean, scores_.data());
  if (measure == Measure::mass) {
    weigh_part();
  } else {
    part_.weights.assign(n, 1);
  }
  constexpr int fine_shift = 4, n_fine = 1 << (bin_shift - fine_shift);
  const auto fine_bin = [&](size_t i) { return scores_[i] >> fine_shift & (n_fine - 1); };
  int bin = 0;
  one_bin = one_bin && n > 64;
  if (one_bin) {
    uint64_t fine[n_fine] = {};
    for (size_t i = 0; i < n; ++i) fine[fine_bin(i)] += part_.weights[i];
    while (*above + fine[bin] < wanted) *above += fine[bin++];
  }
  ranking_.clear();
  for (size_t i = 0; i < n; ++i)
    if (!one_bin || fine_bin(i) == bin)
      ranking_.push_back({scores_[i], part_.ids[i], part_.key(i), part_.weights[i]});
}

// Quickselect by measure: halves that surely stay or surely go, until few are left to sort.
Candidates::Ranked Candidates::select_ranked(uint64_t above, uint64_t wanted) {
  const auto before = [](const Ranked& a, const Ranked& b) { return a.before(b); };
  auto begin = ranking_.begin(), end = ranking_.end();
  while (end - begin > 64) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    uint64_t half = 0;
    for (auto r = begin; r < middle; ++r) half += r->measure;
    if (above + half >= wanted) {
      end = middle;
    } else {
      above += half;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  while (begin + 1 < end && above + begin->measure < wanted) above += (begin++)->measure;
  return *begin;
}

// The prefix that ends at `last`, in the spare list.
void Candidates::collect_prefix(int32_t mean, const Ranked& last) {
  collect_scored(mean, 0, last.score, spare_ids_, spare_logits_);
  // Those with last's score that stand after it in the order do not belong to it.
  excluded_.clear();
  for (const Ranked& r : ranking_)
    if (r.score == last.score && last.before(r)) excluded_.push_back(r.id);
  if (excluded_.empty()) return;
  std::sort(excluded_.begin(), excluded_.end());
  size_t from = 0, to = 0;
  const auto move_until = [&](size_t end) {
    std::memmove(spare_ids_.data() + to, spare_ids_.data() + from, (end - from) * sizeof(int32_t));
    std::memmove(spare_logits_.data() + to, spare_logits_.data() + from,
                 (end - from) * sizeof(float));
    to += end - from;
    from = end + 1;
  };
  for (const int32_t id : excluded_)
    move_until(std::lower_bound(spare_ids_.begin() + from, spare_ids_.end(), id) -
               spare_ids_.begin());
  move_until(spare_ids_.size());
  spare_ids_.resize(to);
  spare_logits_.resize(to);
}

}  // namespace aleator
