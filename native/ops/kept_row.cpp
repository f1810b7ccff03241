#include "ops/kept_row.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/probability.hpp"
#include "rng/fixed.hpp"

namespace aleator {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr uint64_t one = uint64_t{1} << 40;  // a probability of 1
// Up to here a list is sorted by comparisons; longer ones by digits.
constexpr size_t short_list = 1024;

const auto scan = ALEATOR_PICK(tile_scan);
const auto unit_scan_ = ALEATOR_PICK(unit_scan);
const auto mass_of = ALEATOR_PICK(tile_mass);
const auto unit_mass_ = ALEATOR_PICK(unit_mass);
const auto weigh_ = ALEATOR_PICK(weigh);
const auto unit_weigh_ = ALEATOR_PICK(unit_weigh);
const auto group_maxima_ = ALEATOR_PICK(group_maxima);
const auto collect_ = ALEATOR_PICK(collect);
const auto widen_f16_ = ALEATOR_PICK(widen_f16);
const auto widen_bf16_ = ALEATOR_PICK(widen_bf16);
const auto to_probabilities_ = ALEATOR_PICK(to_probabilities);
const auto race_scores_ = ALEATOR_PICK(race_scores);
const auto least_noise_ = ALEATOR_PICK(least_noise);

const float scale = weight_scale(1);

float value_of(uint64_t key) {
  const auto u = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(u & 0x80000000u ? u ^ 0x80000000u : ~u);
}

int32_t id_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

}  // namespace

float KeptRow::masked() const { return logits_ ? -infinity : 0.0f; }

void KeptRow::load(const void* data, int64_t n, Dtype dtype, bool logits) {
  logits_ = logits;
  infinite_ = all_ = certain_ = false;
  n_vocab_ = n;
  n_tiles_ = (n + tile_size - 1) / tile_size;
  const int64_t whole = n / tile_size;
  ids_.clear();
  values_.clear();
  tiles_.resize(n_tiles_);
  maxima_.resize(n_tiles_);
  flags_.resize(n_tiles_);
  copies_.resize(n_tiles_ * tile_size);  // reserved whole: pointers into it stay valid
  const float* source = static_cast<const float*>(data);
  if (dtype != Dtype::f32) {
    widened_.resize(n);
    (dtype == Dtype::f16 ? widen_f16_ : widen_bf16_)(static_cast<const uint16_t*>(data), n,
                                                     widened_.data());
    source = widened_.data();
  }
  for (int64_t t = 0; t < whole; ++t) tiles_[t] = source + t * tile_size;
  const auto look = [&](const float* x, int64_t n_tiles, int64_t at) {
    (logits_ ? scan : unit_scan_)(x, n_tiles, &maxima_[at], &flags_[at]);
  };
  if (whole) look(source, whole, 0);
  if (whole < n_tiles_) {  // the rest, padded to a whole tile
    float* rest = copies_.data() + whole * tile_size;
    std::fill(std::copy(source + whole * tile_size, source + n, rest), rest + tile_size, masked());
    tiles_[whole] = rest;
    look(rest, 1, whole);
    std::fill(rest + (n - whole * tile_size), rest + tile_size, -infinity);  // never collected
  }
  top_ = -infinity;
  for (int64_t t = 0; t < n_tiles_; ++t) {
    if (!logits_ && flags_[t] & tile_outside)
      for (int64_t id = t * tile_size; id < n; ++id)
        if (const float v = tiles_[id / tile_size][id % tile_size]; v < 0 || v > 1)
          throw LogitsError("logits[" + std::to_string(id) + "]=" + std::to_string(v) +
                            " is no probability: with input_is_logits=False values must lie in "
                            "[0, 1]; pass input_is_logits=True for logits");
    if (flags_[t] & 1) own_tile(t);
    top_ = std::max(top_, maxima_[t]);
  }
  if (top_ == -infinity) nothing_finite();
  if (!logits_ && top_ == 0)
    throw LogitsError("every probability is 0 or NaN: check the model's output and masks");
  if (top_ == infinity) become_infinite();
  const int64_t tile = std::find(maxima_.begin(), maxima_.end(), top_) - maxima_.begin();
  const float* x = tiles_[tile];
  argmax_ = static_cast<int32_t>(tile * tile_size + (std::find(x, x + tile_size, top_) - x));
}

// Copies a tile and masks its NaNs.
void KeptRow::own_tile(int64_t tile) {
  float* copy = copies_.data() + tile * tile_size;
  if (tiles_[tile] != copy) std::memcpy(copy, tiles_[tile], tile_size * sizeof(float));
  tiles_[tile] = copy;
  float best = -infinity;
  for (int i = 0; i < tile_size; ++i) {
    copy[i] = std::isnan(copy[i]) ? masked() : copy[i] + 0.0f;
    best = std::max(best, copy[i]);
  }
  maxima_[tile] = best;
}

// With a +inf present only those tokens are not masked; as they are alone, 0 says the same.
void KeptRow::become_infinite() {
  infinite_ = true;
  top_ = 0;
  for (int64_t t = 0; t < n_tiles_; ++t) {
    float* copy = copies_.data() + t * tile_size;
    for (int i = 0; i < tile_size; ++i) copy[i] = tiles_[t][i] == infinity ? 0.0f : -infinity;
    tiles_[t] = copy;
    maxima_[t] = *std::max_element(copy, copy + tile_size);
  }
}

Path KeptRow::filter(const Filters& f) {
  const bool top_k = f.k >= 1 && f.k <= std::min(n_vocab_, f.limit);
  const bool top_p = f.p > 0 && f.p < 1;
  if (!f.in_order && (!f.any_list || f.p <= 0 || f.m >= 1)) {
    keep_only_first();
    return Path::argmax;
  }
  Path path = Path::all;
  total_ = logits_ ? 0 : one;
  bool listed = true;
  if (top_k) {
    keep_top(f.k);
    if (logits_ && (f.in_order || top_p)) total_ = weigh();
    if (top_p) {
      if (!logits_) weigh();
      keep_mass(Fraction32(f.p).ceil_of(total_));
    }
    path = Path::top_k;
  } else if (top_p) {
    path = keep_nucleus(f.p, f.guess) ? Path::guess : Path::nucleus;
  } else {
    listed = false;
    if (logits_ && f.in_order && f.p > 0) total_ = mass();
  }
  if (f.p <= 0) {
    certain_ = logits_;
    path = Path::argmax;
  }
  if (f.p <= 0 || f.m >= 1) {
    keep_only_first();
    return path;
  }
  if (f.m > 0) {
    const float bound =
        logits_ ? static_cast<float>(std::log(static_cast<double>(f.m))) : 0.0f;  // nearest float
    const double least = static_cast<double>(f.m) * static_cast<double>(top_);    // exact
    if (!listed) {  // rounded down: a superset
      collect(logits_ ? bound : std::nextafter(static_cast<float>(least), 0.0f));
      path = Path::min_p;
    }
    size_t kept = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      const bool in =
          logits_ ? values_[i] - top_ >= bound : static_cast<double>(values_[i]) >= least;
      ids_[kept] = ids_[i];
      values_[kept] = values_[i];
      kept += in;
    }
    ids_.resize(kept);
    values_.resize(kept);
  } else if (!listed) {
    all_ = true;
  }
  if (f.in_order && (top_k || top_p)) sort();
  return path;
}

void KeptRow::keep_only_first() {
  ids_.assign(1, argmax_);
  values_.assign(1, top_);
}

// Where at least k values lie: so many reach the k-th largest maximum of tiles or smaller groups.
float KeptRow::bound_of(int64_t k) {
  if (k <= n_tiles_ / 2) {
    spare_ = maxima_;
  } else if (k <= n_tiles_ * groups_per_tile / 2) {
    spare_.resize(n_tiles_ * groups_per_tile);
    for (int64_t t = 0; t < n_tiles_; ++t)
      group_maxima_(tiles_[t], spare_.data() + t * groups_per_tile);
  } else {
    return -infinity;
  }
  std::nth_element(spare_.begin(), spare_.begin() + (k - 1), spare_.end(), std::greater<>());
  return logits_ ? spare_[k - 1] - top_ : spare_[k - 1];  // rounding is monotone: nothing is lost
}

float KeptRow::bound_of_bits(float bits) const {
  if (bits > 64) return -infinity;
  return logits_ ? -bits / scale : std::ldexp(top_, -static_cast<int>(bits));
}

// The list becomes all values of at least `bound`, as a distance from the top or a probability;
// masked tokens are left out.
void KeptRow::collect(float bound) {
  const float top = logits_ ? top_ : 0.0f;
  const auto reaches = [&](int64_t t) {
    return maxima_[t] - top >= bound && maxima_[t] > -infinity;
  };
  int64_t room = 0;
  for (int64_t t = 0; t < n_tiles_; ++t) room += reaches(t) ? tile_size : 0;
  ids_.resize(room);
  values_.resize(room);
  int64_t count = 0;
  for (int64_t t = 0; t < n_tiles_; ++t)
    if (reaches(t))
      count += collect_(tiles_[t], nullptr, static_cast<int32_t>(t * tile_size), top, bound,
                        ids_.data() + count, values_.data() + count);
  ids_.resize(count);
  values_.resize(count);
}

void KeptRow::keep_top(int64_t k) {
  collect(bound_of(k));
  const auto n = static_cast<int64_t>(ids_.size());
  if (n > k) {
    keys_.resize(n);
    for (int64_t i = 0; i < n; ++i) keys_[i] = order_key(values_[i], ids_[i]);
    std::nth_element(keys_.begin(), keys_.begin() + (k - 1), keys_.end(), std::greater<>());
    keep_from(keys_[k - 1]);
  } else if (n < k) {  // exactly k: masked tokens fill up, the lowest ids first
    for (int64_t id = 0; id < n_vocab_ && static_cast<int64_t>(ids_.size()) < k; ++id)
      if (tiles_[id / tile_size][id % tile_size] == -infinity) {
        ids_.push_back(static_cast<int32_t>(id));
        values_.push_back(-infinity);
      }
  }
}

void KeptRow::keep_from(uint64_t key) {
  size_t kept = 0;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const bool in = order_key(values_[i], ids_[i]) >= key;
    ids_[kept] = ids_[i];
    values_[kept] = values_[i];
    kept += in;
  }
  ids_.resize(kept);
  values_.resize(kept);
}

// The shortest prefix of the whole row's order with mass >= ceil(p * total).
bool KeptRow::keep_nucleus(float p, int64_t guess) {
  const uint64_t row = mass();
  if (logits_) total_ = row;
  const uint64_t wanted = Fraction32(p).ceil_of(total_);
  if (row < wanted) {  // probabilities that do not add up to p
    collect(-infinity);
    return false;
  }
  guess = std::min(guess, n_tiles_ * groups_per_tile / 2);
  if (guess > 0) {
    collect(bound_of(guess));
    if (weigh() >= wanted) return keep_mass(wanted), true;
  }
  // Most of the mass is near the top, so further down each time it does not suffice.
  for (float bits = 4;; bits *= 2) {
    collect(bound_of_bits(bits));
    if (weigh() >= wanted || bits > 64) break;
  }
  keep_mass(wanted);
  return false;
}

// Of the list, which has been weighed: the shortest prefix of the order that reaches `wanted`.
void KeptRow::keep_mass(uint64_t wanted) {
  const size_t n = ids_.size();
  pairs_.clear();
  uint64_t above = 0;
  if (n <= short_list) {
    for (size_t i = 0; i < n; ++i) pairs_.emplace_back(order_key(values_[i], ids_[i]), weights_[i]);
  } else {
    // Bins of a sixteenth of an octave of weight, by a function that never decreases along the
    // order; then only the bin in which the sum is reached has to be sorted.
    constexpr int n_bins = 4096;
    const auto bin_of = [&](float v) {
      const float b = logits_ ? (v - top_) * (-16.0f * scale)
                              : static_cast<float>((ordered(top_) - ordered(v)) >> 19);
      return b < n_bins - 1 ? static_cast<int>(b) : n_bins - 1;
    };
    bins_.assign(n_bins, 0);
    for (size_t i = 0; i < n; ++i) bins_[bin_of(values_[i])] += weights_[i];
    int bin = 0;
    while (bin < n_bins - 1 && above + bins_[bin] < wanted) above += bins_[bin++];
    for (size_t i = 0; i < n; ++i)
      if (bin_of(values_[i]) == bin)
        pairs_.emplace_back(order_key(values_[i], ids_[i]), weights_[i]);
  }
  std::sort(pairs_.begin(), pairs_.end(), std::greater<>());
  for (const auto& [key, w] : pairs_)
    if ((above += w) >= wanted) return keep_from(key);
}

// Puts the list in order.  Its ids ascend, masked tokens aside, which come last anyway; so a stable
// sort by value alone settles ties.
void KeptRow::sort() {
  const size_t n = ids_.size();
  keys_.resize(n);
  for (size_t i = 0; i < n; ++i) keys_[i] = order_key(values_[i], ids_[i]);
  if (n <= short_list) {
    std::sort(keys_.begin(), keys_.end(), std::greater<>());
  } else {
    constexpr int digit = 11, n_bins = 1 << digit;
    weights_.resize(n);
    for (int shift = 32; shift < 64; shift += digit) {
      const auto bin_of = [&](uint64_t key) { return (~key >> shift) & (n_bins - 1); };
      bins_.assign(n_bins, 0);
      for (const uint64_t key : keys_) ++bins_[bin_of(key)];
      uint64_t start = 0;
      for (uint64_t& bin : bins_) start += std::exchange(bin, start);
      for (const uint64_t key : keys_) weights_[bins_[bin_of(key)]++] = key;
      keys_.swap(weights_);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    values_[i] = value_of(keys_[i]);
    ids_[i] = id_of(keys_[i]);
  }
}

uint64_t KeptRow::weigh() {
  const auto n = static_cast<int64_t>(ids_.size());
  weights_.resize(n);
  if (logits_)
    weigh_(values_.data(), n, top_, scale, weights_.data());
  else
    unit_weigh_(values_.data(), n, weights_.data());
  uint64_t sum = 0;
  for (const uint64_t w : weights_) sum += w;
  return sum;
}

bool KeptRow::weightless(int64_t tile) const {
  return logits_ ? (maxima_[tile] - top_) * scale < zero_weight_bits : maxima_[tile] < 0x1p-40f;
}

uint64_t KeptRow::mass() {
  weights_.resize(n_tiles_);
  uint64_t sum = 0;
  for (int64_t t = 0; t < n_tiles_; ++t)
    sum += weights_[t] = weightless(t) ? 0
                         : logits_     ? mass_of(tiles_[t], top_, scale)
                                       : unit_mass_(tiles_[t]);
  return sum;
}

void KeptRow::tile_probabilities(int64_t tile, int n, float* probs) {
  const float* x = tiles_[tile];
  if (!logits_) {
    for (int i = 0; i < n; ++i) probs[i] = x[i] + 0.0f;
  } else if (weightless(tile)) {
    std::fill(probs, probs + n, 0.0f);
  } else {
    uint64_t w[tile_size];
    weigh_(x, n, top_, scale, w);
    to_probabilities_(w, n, total_, probs);
  }
}

void KeptRow::list_probabilities() {
  if (!logits_) {
    probs_ = values_;
  } else if (certain_) {
    probs_.assign(1, 1.0f);
  } else {
    weigh();
    probs_.resize(ids_.size());
    to_probabilities_(weights_.data(), static_cast<int64_t>(ids_.size()), total_, probs_.data());
  }
}

void KeptRow::write_list(int64_t* ids, float* probs) {
  if (all_) {
    for (int64_t id = 0; id < n_vocab_; ++id) ids[id] = id;
    for (int64_t t = 0, at = 0; t < n_tiles_; ++t, at += tile_size)
      tile_probabilities(t, static_cast<int>(std::min<int64_t>(tile_size, n_vocab_ - at)),
                         probs + at);
    return;
  }
  list_probabilities();
  std::fill(std::copy(ids_.begin(), ids_.end(), ids), ids + n_vocab_, int64_t{0});
  std::fill(std::copy(probs_.begin(), probs_.end(), probs), probs + n_vocab_, 0.0f);
}

int32_t KeptRow::race(const float* q, float eps) {
  float best = -1, scores[tile_size], probs[tile_size];
  int64_t winner = -1;
  bool nan = false;
  const auto heat = [&](const float* p, int64_t at, int64_t n) {
    const float top = race_scores_(p, q + at, n, eps, scores);
    nan |= std::isnan(top);
    if (!(top >= best) || top < 0) return;
    const auto i = at + (std::find(scores, scores + n, top) - scores);
    if (top > best || i < winner) best = top, winner = i;
  };
  if (!all_) {
    list_probabilities();
    for (int64_t at = 0; at < size(); at += tile_size)
      heat(probs_.data() + at, at, std::min<int64_t>(tile_size, size() - at));
    return nan ? -1 : ids_[winner];
  }
  // A tile is weighed only if its largest probability over its least noise could win; the tile of
  // the first token goes first.  Weights of neighbouring floats can decrease by 2^-23, hence the
  // margin.
  probs_.resize(n_tiles_);
  if (logits_) {
    weights_.resize(n_tiles_);
    weigh_(maxima_.data(), n_tiles_, top_, scale, weights_.data());
    to_probabilities_(weights_.data(), n_tiles_, total_, probs_.data());
  } else {
    probs_ = maxima_;
  }
  const auto look = [&](int64_t tile) {
    const int64_t at = tile * tile_size, n = std::min<int64_t>(tile_size, n_vocab_ - at);
    const float least = least_noise_(q + at, n);
    nan |= std::isnan(least);
    if (probs_[tile] * 1.000001f / (least + eps) < best) return;
    tile_probabilities(tile, static_cast<int>(n), probs);
    heat(probs, at, n);
  };
  const int64_t leader = argmax_ / tile_size;
  look(leader);
  for (int64_t t = 0; t < n_tiles_; ++t)
    if (t != leader) look(t);
  return nan ? -1 : static_cast<int32_t>(winner);
}

void KeptRow::write_select(float* out) const {
  const auto shown = [&](float v) { return infinite_ && v == 0 ? infinity : v + 0.0f; };
  if (all_) {
    for (int64_t id = 0; id < n_vocab_; ++id)
      out[id] = shown(tiles_[id / tile_size][id % tile_size]);
    return;
  }
  std::fill(out, out + n_vocab_, masked());
  for (size_t i = 0; i < ids_.size(); ++i) out[ids_[i]] = shown(values_[i]);
}

int32_t KeptRow::draw(uint64_t u) {
  const uint64_t sum = all_ ? mass() : weigh();
  if (!sum) return argmax_;  // probabilities below 2^-40 only
  auto target = static_cast<uint64_t>(static_cast<u128>(u) * sum >> 64);
  size_t i = 0;
  while (target >= weights_[i]) target -= weights_[i++];
  if (!all_) return ids_[i];
  uint64_t w[tile_size];
  if (logits_)
    weigh_(tiles_[i], tile_size, top_, scale, w);
  else
    unit_weigh_(tiles_[i], tile_size, w);
  int j = 0;
  while (target >= w[j]) target -= w[j++];
  return static_cast<int32_t>(i) * tile_size + j;
}

}  // namespace aleator
