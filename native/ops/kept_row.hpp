// One row of the operator: what top-k, top-p and min-p keep of it, and the choice of a token.
// Contract: docs/operator.md.
//
// Tiles, prefixes, masses and the draw are the chains' (samplers/ranked_row.hpp); here are the
// operator's own rules: what its list holds, probabilities, and the race against q.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/probability.hpp"
#include "rng/fixed.hpp"
#include "samplers/ranked_row.hpp"

namespace aleator {

// How much of a row had to be looked at.
enum class Path { argmax, top_k, nucleus, min_p, all };
constexpr int n_paths = 5;

struct Filters {
  int64_t k = 0;          // outside 1..limit: top-k is skipped
  float p = 1, m = 0;     // not NaN
  int64_t limit = 0;      // the largest k that is not skipped
  bool in_order = false;  // the list's order and probabilities will be asked for
  bool any_list = false;  // what is kept will be asked for, not only the first token
};

constexpr uint64_t one_probability = uint64_t{1} << contract::weight_bits;  // as a mass

// The race over parts of a list: the position of the largest score, the first among equals.
class Race {
 public:
  explicit Race(float eps) : eps_(eps) {}

  // Positions `at` to `at` + n - 1, n <= tile_size.
  void heat(const float* probs, const float* q, int64_t at, int64_t n) {
    float scores[tile_size];
    const float top = race_scores_(probs, q + at, n, eps_, scores);
    nan |= std::isnan(top);
    if (!(top >= best) || top < 0) return;
    const auto i = at + (std::find(scores, scores + n, top) - scores);
    if (top > best || i < winner) best = top, winner = i;
  }

  // Over n probabilities.
  void run(const float* probs, const float* q, int64_t n) {
    for (int64_t at = 0; at < n; at += tile_size)
      heat(probs + at, q, at, std::min<int64_t>(tile_size, n - at));
  }

  float best = -1;
  int64_t winner = -1;
  bool nan = false;

 private:
  float eps_;
};

// Not inlined: benchmarks/count_instructions.py counts the steps by their names.
template <typename Values>
class KeptRow {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  [[gnu::noinline]] void load(const void* data, int64_t n, Dtype dtype) {
    row_.load(data, n, dtype);
    infinite_ = !row_.dense();  // of such a row only the tokens at +inf are left
    if (!logits && row_.top() == 0)
      throw LogitsError("every probability is 0 or NaN: check the model's output and masks");
    first_ = row_.argmax();
  }

  [[gnu::noinline]] Path filter(const Filters& f) {
    const bool top_k = f.k >= 1 && f.k <= std::min(row_.n_vocab(), f.limit);
    const bool top_p = f.p > 0 && f.p < 1, min_p = f.m > 0 && f.m < 1;
    const bool single = f.p <= 0 || f.m >= 1;
    whole_ = !single && !top_k && !top_p && !min_p;
    ranked_ = top_k || top_p;
    certain_ = logits && f.p <= 0;
    at_least_ = top_k && !single && !top_p && !min_p ? f.k : 0;
    if (!f.in_order && (!f.any_list || single)) {
      row_.keep_only(first_);
      return Path::argmax;
    }
    Path path = Path::all;
    if (top_k) {
      row_.keep_first(f.k);
      path = Path::top_k;
    }
    total_ = one_probability;
    if (logits && f.p > 0 && (f.in_order || top_p)) total_ = row_.mass();
    if (top_p) {
      const uint64_t wanted = Fraction32(f.p).ceil_of(total_);
      // Probabilities may not add up to p: then all stay.
      row_.mass() < wanted ? row_.compact() : row_.keep_mass(wanted, row_.mass(), 1);
      if (!top_k) path = Path::nucleus;
    }
    if (single) {
      row_.keep_only(first_);
      if (f.p <= 0) path = Path::argmax;
    } else if (min_p) {
      keep_min_p(f.m);
      if (!ranked_) path = Path::min_p;
    }
    return path;
  }

  // After filter.  The first token of the order:
  int32_t first() const { return first_; }
  // The list's ids and probabilities, then zeros: in the order where top-k or top-p acted, by id
  // otherwise.  For filters with in_order.
  [[gnu::noinline]] void write_list(int64_t* ids, float* probs) {
    const int64_t n = row_.n_vocab();
    if (whole_ && !infinite_) {
      for (int64_t id = 0; id < n; ++id) ids[id] = id;
      for (int64_t t = 0, at = 0; at < n; ++t, at += tile_size)
        tile_probabilities(t, int(std::min<int64_t>(tile_size, n - at)), probs + at);
      return;
    }
    make_list();
    std::fill(probs, probs + n, 0.0f);
    if (whole_) {
      for (int64_t id = 0; id < n; ++id) ids[id] = id;
      for (size_t i = 0; i < ids_.size(); ++i) probs[ids_[i]] = probs_[i];
      return;
    }
    std::copy(probs_.begin(), probs_.end(), probs);
    std::fill(std::copy(ids_.begin(), ids_.end(), ids), ids + n, int64_t{0});
  }

  // The winner of prob / (|q| + eps), q by position; -1 if a q is NaN.
  [[gnu::noinline]] int32_t race(const float* q, float eps) {
    if (whole_ && !infinite_) return race_whole_row(q, eps);
    make_list();
    Race race(eps);
    if (whole_) {  // position is id
      values_.assign(row_.n_vocab(), 0.0f);
      for (size_t i = 0; i < ids_.size(); ++i) values_[ids_[i]] = probs_[i];
      race.run(values_.data(), q, row_.n_vocab());
      return race.nan ? -1 : int32_t(race.winner);
    }
    race.run(probs_.data(), q, int64_t(ids_.size()));
    return race.nan ? -1 : ids_[race.winner];
  }

  // Survivors keep their logit; the others are masked.
  [[gnu::noinline]] void write_select(float* out) const {
    if (row_.dense()) {
      for (int64_t t = 0, at = 0; at < row_.n_vocab(); ++t, at += tile_size) {
        const float* x = row_.tile(t);
        const int64_t n = std::min<int64_t>(tile_size, row_.n_vocab() - at);
        for (int64_t i = 0; i < n; ++i) out[at + i] = x[i] + 0.0f;
      }
      return;
    }
    std::fill(out, out + row_.n_vocab(), Values::of_nan);
    for (size_t i = 0; i < row_.ids().size(); ++i)
      out[row_.ids()[i]] = infinite_ ? infinity : row_.values()[i];
  }

  // The first token in id order whose cumulative weight exceeds floor(u * total / 2^64).
  [[gnu::noinline]] int32_t draw(uint64_t u) {
    return row_.mass() ? row_.draw(u).id : first_;  // 0: probabilities below 2^-40 only
  }

 private:
  static constexpr bool logits = !Values::bounded;

  void keep_min_p(float m) {
    if constexpr (logits) {
      row_.keep_near(float(std::log(double(m))), 0);  // the nearest float
    } else {
      const double least = double(m) * double(row_.top());    // exact
      row_.keep_near(std::nextafter(float(least), 0.0f), 0);  // a superset
      row_.keep_if([&](size_t i) { return double(row_.values()[i]) >= least; });
    }
  }

  void tile_probabilities(int64_t tile, int n, float* probs) {
    const float* x = row_.tile(tile);
    if (!logits) {
      for (int i = 0; i < n; ++i) probs[i] = x[i] + 0.0f;
    } else if (row_.measure().weightless(row_.most_of(tile))) {
      std::fill(probs, probs + n, 0.0f);
    } else {
      uint64_t w[tile_size];
      row_.measure().weigh(x, n, w);
      to_probabilities_(w, n, total_, probs);
    }
  }

  // The list in ids_ and probs_, where it is not the whole row.
  void make_list() {
    row_.compact();
    const auto& ids = row_.ids();
    const auto& values = row_.values();
    ids_.assign(ids.begin(), ids.end());
    values_.assign(values.begin(), values.end());
    if (ranked_) {
      const auto& order = row_.in_order();
      for (size_t i = 0; i < order.size(); ++i) {
        ids_[i] = ids[order[i].index];
        values_[i] = values[order[i].index];
      }
    }
    if (!logits) {
      probs_ = values_;
    } else if (certain_) {
      probs_.assign(1, 1.0f);
    } else {
      const auto n = int64_t(ids_.size());
      weights_.resize(n);
      probs_.resize(n);
      row_.measure().weigh(values_.data(), n, weights_.data());
      to_probabilities_(weights_.data(), n, total_, probs_.data());
    }
    fill_up();
  }

  // Masked tokens, the lowest ids first and with a probability of 0, as far as top-k wants them.
  void fill_up() {
    const auto& kept = row_.ids();
    auto next = kept.begin();
    for (int32_t id = 0; int64_t(ids_.size()) < at_least_; ++id) {
      if (next != kept.end() && *next == id) {
        ++next;
      } else {
        ids_.push_back(id);
        probs_.push_back(0);
      }
    }
  }

  // A tile is weighed only if its largest probability over its least noise could win; the tile of
  // the first token goes first.  Weights of neighbouring floats can decrease by 2^-23, hence the
  // margin.
  int32_t race_whole_row(const float* q, float eps) {
    const int64_t n_tiles = row_.n_tiles();
    probs_.resize(n_tiles);
    for (int64_t t = 0; t < n_tiles; ++t) probs_[t] = row_.most_of(t);
    if (logits) {
      weights_.resize(n_tiles);
      row_.measure().weigh(probs_.data(), n_tiles, weights_.data());
      to_probabilities_(weights_.data(), n_tiles, total_, probs_.data());
    }
    Race race(eps);
    const auto look = [&](int64_t tile) {
      const int64_t at = tile * tile_size, n = std::min<int64_t>(tile_size, row_.n_vocab() - at);
      const float least = least_noise_(q + at, n);
      race.nan |= std::isnan(least);
      if (probs_[tile] * 1.000001f / (least + eps) < race.best) return;
      float probs[tile_size];
      tile_probabilities(tile, int(n), probs);
      race.heat(probs, q, at, n);
    };
    const int64_t leader = first_ / tile_size;
    look(leader);
    for (int64_t t = 0; t < n_tiles; ++t)
      if (t != leader) look(t);
    return race.nan ? -1 : int32_t(race.winner);
  }

  RankedRow<Values> row_;
  int32_t first_ = 0;
  uint64_t total_ = 0;     // what weights are divided by
  bool infinite_ = false;  // the row's largest logit is +inf
  bool whole_ = false;     // the list is the whole row, by id
  bool ranked_ = false;    // the list is in order
  bool certain_ = false;   // top_p <= 0: the one token has a probability of 1
  int64_t at_least_ = 0;   // tokens of the list; masked ones fill up
  std::vector<int32_t> ids_;
  std::vector<float> values_, probs_;
  std::vector<uint64_t> weights_;
};

}  // namespace aleator
