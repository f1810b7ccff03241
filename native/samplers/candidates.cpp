#include "samplers/candidates.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "rng/fixed.hpp"

namespace aleator {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

const auto scan = ALEATOR_PICK(tile_scan);
const auto mass_of = ALEATOR_PICK(tile_mass);
const auto group_maxima_ = ALEATOR_PICK(group_maxima);
const auto weigh_ = ALEATOR_PICK(weigh);
const auto add_moments_ = ALEATOR_PICK(add_moments);
const auto collect_ = ALEATOR_PICK(collect);
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
  maxima_.resize(n_tiles_);
  state_.assign(n_tiles_, 0);
  copies_.resize(n_tiles_ * tile_size);  // reserved whole: pointers into it stay valid
  const float* source = static_cast<const float*>(data);
  if (dtype != Dtype::f32) {
    widened_.resize(n);
    (dtype == Dtype::f16 ? widen_f16_ : widen_bf16_)(static_cast<const uint16_t*>(data), n,
                                                     widened_.data());
    source = widened_.data();
  }
  for (int64_t t = 0; t < whole; ++t) tiles_[t] = source + t * tile_size;
  if (whole < n_tiles_) {  // the rest, padded with masked tokens to a whole tile
    float* rest = copies_.data() + whole * tile_size;
    std::fill(std::copy(source + whole * tile_size, source + n, rest), rest + tile_size, -infinity);
    tiles_[whole] = rest;
    state_[whole] = 1;
  }
  has_nan_.resize(n_tiles_);
  if (whole) scan(source, whole, maxima_.data(), has_nan_.data());
  if (whole < n_tiles_) scan(tiles_[whole], 1, &maxima_[whole], &has_nan_[whole]);
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
  if (dense_) {
    for (const int32_t tile : edited_) {
      float* x = copies_.data() + int64_t{tile} * tile_size;
      float best = -infinity;
      for (int i = 0; i < tile_size; ++i) {
        x[i] = std::isnan(x[i]) ? -infinity : x[i] + 0.0f;
        best = std::max(best, x[i]);
      }
      maxima_[tile] = best;
      state_[tile] = 1;
    }
    edited_.clear();
    for (const float best : maxima_) top_ = best > top_ ? best : top_;
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
  list(spare_ids_, spare_logits_);
  size_t kept = 0;
  for (size_t i = 0; i < spare_ids_.size(); ++i)
    if (spare_logits_[i] == infinity) spare_ids_[kept++] = spare_ids_[i];
  spare_ids_.resize(kept);
  spare_logits_.assign(kept, 0.0f);
  set_compact(spare_ids_, spare_logits_);
}

void Candidates::set_compact(std::vector<int32_t>& ids, std::vector<float>& logits) {
  ids_.swap(ids);
  logits_.swap(logits);
  dense_ = false;
  top_ = *std::max_element(logits_.begin(), logits_.end());
}

void Candidates::list(std::vector<int32_t>& ids, std::vector<float>& logits) const {
  if (dense_) {
    collect_dense(-infinity, ids, logits);
  } else {
    ids = ids_;
    logits = logits_;
  }
}

void Candidates::collect_dense(float threshold, std::vector<int32_t>& ids,
                               std::vector<float>& logits) const {
  // z - top is -inf - inf = NaN for masked tokens of a row topped by +inf; a finite stand-in serves
  // as well, since collecting everything is all that such a row is asked for.
  const float top = std::isfinite(top_) ? top_ : 0.0f;
  int64_t room = 0;
  for (int64_t t = 0; t < n_tiles_; ++t)
    if (maxima_[t] - top >= threshold && maxima_[t] > -infinity) room += tile_size;
  ids.resize(room);
  logits.resize(room);
  int64_t count = 0;
  for (int64_t t = 0; t < n_tiles_; ++t)
    if (maxima_[t] - top >= threshold && maxima_[t] > -infinity)
      count += collect_(tiles_[t], top, threshold, static_cast<int32_t>(t * tile_size),
                        ids.data() + count, logits.data() + count);
  ids.resize(count);
  logits.resize(count);
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

bool Candidates::keep_masked(std::span<const uint32_t> words) {
  const auto word = [&](int64_t i) { return i < std::ssize(words) ? words[i] : 0u; };
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
void Candidates::filter_from_key(uint64_t key, std::vector<int32_t>& ids,
                                 std::vector<float>& logits) {
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

// A distance from the top within which at least k candidates lie: so many reach the k-th largest
// tile maximum.
float Candidates::tile_bound(int64_t k) {
  if (k <= n_tiles_ / 2) {
    spare_logits_ = maxima_;
  } else if (k <= n_tiles_ * groups_per_tile / 2) {  // the same with maxima of smaller groups
    spare_logits_.resize(n_tiles_ * groups_per_tile);
    for (int64_t t = 0; t < n_tiles_; ++t)
      group_maxima_(tiles_[t], spare_logits_.data() + t * groups_per_tile);
  } else {
    return -infinity;
  }
  std::nth_element(spare_logits_.begin(), spare_logits_.begin() + (k - 1), spare_logits_.end(),
                   std::greater<>());
  return spare_logits_[k - 1] - top_;  // rounding is monotone: nothing at the bound is lost
}

void Candidates::keep_top(int64_t k) {
  if (k >= n_vocab_) return;
  if (dense_) {
    collect_dense(tile_bound(k), spare_ids_, spare_logits_);
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

void Candidates::keep_distance(float threshold, int64_t min_keep) {
  if (dense_) {
    collect_dense(threshold, spare_ids_, spare_logits_);
  } else {
    spare_ids_.clear();
    spare_logits_.clear();
    for (size_t i = 0; i < ids_.size(); ++i)
      if (logits_[i] - top_ >= threshold) {
        spare_ids_.push_back(ids_[i]);
        spare_logits_.push_back(logits_[i]);
      }
  }
  if (static_cast<int64_t>(spare_ids_.size()) < min_keep) return keep_top(min_keep);
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
  uint64_t total = 0;
  const float scale_ = scale();
  if (dense_) {
    weights_.resize(n_tiles_);
    for (int64_t t = 0; t < n_tiles_; ++t) {
      const bool none = (maxima_[t] - top_) * scale_ < zero_weight_bits;
      total += weights_[t] = none ? 0 : mass_of(tiles_[t], top_, scale_);
    }
  } else {
    weights_.resize(ids_.size());
    weigh_(logits_.data(), static_cast<int64_t>(ids_.size()), top_, scale_, weights_.data());
    for (const uint64_t w : weights_) total += w;
  }
  return total;
}

Candidates::Drawn Candidates::draw(uint64_t u) {
  const uint64_t total =
      mass();  // leaves in weights_ one sum per tile, or one weight per candidate
  auto target = static_cast<uint64_t>(static_cast<u128>(u) * total >> 64);
  size_t i = 0;
  while (target >= weights_[i]) target -= weights_[i++];
  if (!dense_) {
    selected = ids_[i];
    return {total, weights_[i]};
  }
  uint64_t w[tile_size];
  weigh_(tiles_[i], tile_size, top_, scale(), w);
  int j = 0;
  while (target >= w[j]) target -= w[j++];
  selected = static_cast<int32_t>(i) * tile_size + j;
  return {total, w[j]};
}

void Candidates::compact() {
  if (!dense_) return;
  collect_dense(-infinity, spare_ids_, spare_logits_);
  set_compact(spare_ids_, spare_logits_);
}

const std::vector<uint64_t>& Candidates::weights() {
  compact();
  mass();
  return weights_;
}

std::vector<float>& Candidates::edit_all() {
  compact();
  materialise();
  full_mass_ = 0;
  return logits_;
}

const Candidates::Part& Candidates::near_top(double bits) {
  // A hundredth of a bit covers the rounding of weights and of the threshold.
  const float threshold = bits >= everything
                              ? -infinity
                              : static_cast<float>(-(bits + 0.01) / static_cast<double>(scale()));
  if (dense_) {
    collect_dense(threshold, part_.ids, part_.logits);
  } else {
    part_.ids = ids_;
    part_.logits = logits_;
  }
  part_.weights.resize(part_.ids.size());
  weigh_(part_.logits.data(), static_cast<int64_t>(part_.ids.size()), top_, scale(),
         part_.weights.data());
  return part_;
}

const Candidates::Run& Candidates::run(uint64_t bound) {
  const Part& part = near_top(bound == 0 ? everything : 40 - log2_q32(bound) / 4294967296.0);
  uint64_t first_below = 0;  // the largest key among lighter candidates
  for (size_t i = 0; i < part.ids.size(); ++i)
    if (part.weights[i] < bound) first_below = std::max(first_below, part.key(i));
  uint64_t last = ~uint64_t{0};
  run_.ids.clear();
  run_.last = -1;
  for (size_t i = 0; i < part.ids.size(); ++i) {
    const uint64_t key = part.key(i);
    if (key <= first_below) continue;
    run_.ids.push_back(part.ids[i]);
    if (key < last) {
      last = key;
      run_.last = part.ids[i];
    }
  }
  return run_;
}

int64_t Candidates::keep_run(uint64_t bound) {
  const Run& kept = run(bound);
  if (kept.ids.empty()) return 0;
  spare_ids_ = kept.ids;
  spare_logits_.resize(kept.ids.size());
  size_t at = 0;
  for (size_t i = 0; i < kept.ids.size(); ++i) {
    while (part_.ids[at] != kept.ids[i]) ++at;
    spare_logits_[i] = part_.logits[at];
  }
  set_compact(spare_ids_, spare_logits_);
  return static_cast<int64_t>(kept.ids.size());
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
  float bound = -infinity;
  if (dense_) {
    bound = tile_bound(m);
    collect_dense(bound, part_.ids, part_.logits);
    part_.weights.resize(part_.ids.size());
    weigh_(part_.logits.data(), static_cast<int64_t>(part_.ids.size()), top_, scale(),
           part_.weights.data());
  } else {
    near_top(everything);
  }
  pairs_.resize(part_.ids.size());
  for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] = {part_.key(i), part_.weights[i]};
  m = std::min<int64_t>(m, static_cast<int64_t>(pairs_.size()));
  std::partial_sort(pairs_.begin(), pairs_.begin() + m, pairs_.end(), std::greater<>());
  pairs_.resize(m);
  return pairs_;
}

void Candidates::keep_from(uint64_t key) {
  compact();
  keep_if([&](size_t i) { return key_of(i) >= key; });
}

void Candidates::keep_scored(const std::vector<int64_t>& scores, uint64_t wanted,
                             int64_t min_keep) {
  const auto& w = part_.weights;
  ranking_.resize(w.size());
  for (size_t i = 0; i < w.size(); ++i) ranking_[i] = {scores[i], ~part_.key(i), w[i]};
  const auto before = [](const Ranked& a, const Ranked& b) {
    return a.score != b.score ? a.score < b.score : a.key < b.key;
  };
  // Quickselect by mass: halves that surely stay or surely go, until few are left to sort.
  auto begin = ranking_.begin(), end = ranking_.end();
  uint64_t sum = 0;
  while (end - begin > 64) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    uint64_t half = 0;
    for (auto r = begin; r < middle; ++r) half += r->weight;
    if (sum + half >= wanted) {
      end = middle;
    } else {
      sum += half;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  while (begin + 1 < end && sum + begin->weight < wanted) sum += (begin++)->weight;
  int64_t kept = begin - ranking_.begin() + 1;
  if (kept < min_keep) {
    kept = std::min<int64_t>(min_keep, static_cast<int64_t>(ranking_.size()));
    std::nth_element(ranking_.begin(), ranking_.begin() + (kept - 1), ranking_.end(), before);
  }
  const Ranked last = ranking_[kept - 1];
  size_t count = 0;
  for (size_t i = 0; i < w.size(); ++i)
    if (!before(last, Ranked{scores[i], ~part_.key(i), 0})) {
      part_.ids[count] = part_.ids[i];
      part_.logits[count++] = part_.logits[i];
    }
  part_.ids.resize(count);
  part_.logits.resize(count);
  set_compact(part_.ids, part_.logits);
}

// The shortest prefix of the order whose mass reaches `wanted`.
void Candidates::keep_mass(uint64_t wanted, int64_t min_keep) {
  if (dense_) {
    // Most of the mass is near the top, so collect from there, further down each time it does not
    // suffice.
    const float scale_ = scale();
    for (float bits = 4;; bits *= 2) {
      collect_dense(bits > 64 ? -infinity : -bits / scale_, spare_ids_, spare_logits_);
      weights_.resize(spare_ids_.size());
      weigh_(spare_logits_.data(), static_cast<int64_t>(spare_ids_.size()), top_, scale_,
             weights_.data());
      uint64_t collected = 0;
      for (const uint64_t w : weights_) collected += w;
      if (collected >= wanted || bits > 64) break;
    }
  } else {
    mass();
    spare_ids_ = ids_;
    spare_logits_ = logits_;
  }
  // Find the key at which the prefix ends: 16 bits of the key at a time, by the mass above each
  // value.
  const size_t n = spare_ids_.size();
  keys_.resize(n);
  for (size_t i = 0; i < n; ++i) keys_[i] = order_key(spare_logits_[i], spare_ids_[i]);
  uint64_t last_key = 0;
  if (n <= 512) {
    pairs_.resize(n);
    for (size_t i = 0; i < n; ++i) pairs_[i] = {keys_[i], weights_[i]};
    std::sort(pairs_.begin(), pairs_.end(), std::greater<>());
    uint64_t sum = 0;
    for (const auto& [key, w] : pairs_) {
      last_key = key;
      if ((sum += w) >= wanted) break;
    }
  } else {
    last_key = key_at_mass(wanted);
  }
  int64_t kept = 0;
  for (const uint64_t key : keys_) kept += key >= last_key;
  if (kept < min_keep) return keep_top(min_keep);
  filter_from_key(last_key, spare_ids_, spare_logits_);
}

// Among the spare list with keys_ and weights_: the key at which the shortest prefix of at least
// `wanted` ends.
uint64_t Candidates::key_at_mass(uint64_t wanted) {
  // Bins of a sixteenth of a bit of weight, by a function that never decreases along the order;
  // then only the bin in which the sum is reached has to be sorted.
  constexpr int n_bins = 2048;
  bins_.assign(n_bins, 0);
  const float fine = -16.0f * scale();
  const auto bin_of = [&](float z) {
    const float b = (z - top_) * fine;
    return b < n_bins - 1 ? static_cast<int>(b) : n_bins - 1;
  };
  for (size_t i = 0; i < keys_.size(); ++i) bins_[bin_of(spare_logits_[i])] += weights_[i];
  uint64_t above = 0;
  int bin = 0;
  while (bin < n_bins - 1 && above + bins_[bin] < wanted) above += bins_[bin++];
  pairs_.clear();
  for (size_t i = 0; i < keys_.size(); ++i)
    if (bin_of(spare_logits_[i]) == bin) pairs_.emplace_back(keys_[i], weights_[i]);
  std::sort(pairs_.begin(), pairs_.end(), std::greater<>());
  uint64_t last = 0;
  for (const auto& [key, w] : pairs_) {
    last = key;
    if ((above += w) >= wanted) break;
  }
  return last;
}

}  // namespace aleator
