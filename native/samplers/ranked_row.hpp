// What truncations keep of a row.  One verb each, here, in the NumPy reference and in PyTorch:
// docs/numerics.md, "Words".
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "samplers/tiled_row.hpp"

namespace aleator {

template <typename Values>
class RankedRow : public TiledRow<Values> {
 public:
  using Row = TiledRow<Values>;
  using Row::compact, Row::measure, Row::n_tiles, Row::tile;

  // What stays is never empty, and is among what is left.
  // The first n of the order.
  void keep_first(int64_t n) {
    if (n >= n_vocab_) return;
    if (dense_) {
      collect_near(tile_bound(n), spare_ids_, spare_values_);
    } else {
      if (n >= int64_t(ids_.size())) return;
      spare_ids_ = ids_;
      spare_values_ = values_;
    }
    if (n >= int64_t(spare_ids_.size())) return set_compact(spare_ids_, spare_values_);
    keys_.resize(spare_ids_.size());
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = order_key(spare_values_[i], spare_ids_[i]);
    std::nth_element(keys_.begin(), keys_.begin() + (n - 1), keys_.end(), std::greater<>());
    filter_through(keys_[n - 1], spare_ids_, spare_values_);
  }

  // At least this distance from the origin.
  void keep_near(float threshold, int64_t min_keep) {
    collect_near(threshold, spare_ids_, spare_values_);
    if (int64_t(spare_ids_.size()) < min_keep) return keep_first(min_keep);
    set_compact(spare_ids_, spare_values_);
  }

  // The shortest prefix of at least this mass, out of `total`: of the order if `mean` is 0, else of
  // the ranking by score, the distance of a depth from the mean, and then the order.
  //
  // The ranking is cut in three steps: masses by bins of score show the bin in which the prefix
  // ends, only that bin is ranked, and what stands before its cut is collected.
  void keep_mass(uint64_t wanted, uint64_t total, int64_t min_keep, int32_t mean = 0) {
    const bool dense = dense_;
    collect_prefix(mean, end_of_prefix(mean, std::max<uint64_t>(wanted, 1), total, Measure::mass));
    if (int64_t(spare_ids_.size()) < min_keep) {
      dense_ = dense;  // all of the row, should a part have been enough for the mass
      collect_prefix(mean, end_of_prefix(mean, uint64_t(min_keep), 0, Measure::count));
    }
    set_compact(spare_ids_, spare_values_);
  }

  // This key and those before it.
  void keep_through(uint64_t key) {
    const float last = from_ordered(uint32_t(key >> 32));
    collect_near(last - measure().origin(), spare_ids_, spare_values_);
    filter_through(key, spare_ids_, spare_values_);
  }

  // The n first of the order, as (key, weight).
  const std::vector<std::pair<uint64_t, uint64_t>>& first(int64_t n) {
    collect_near(dense_ ? tile_bound(n) : -infinity, part_.ids, part_.values);
    weigh_part();
    pairs_.resize(part_.ids.size());
    for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] = {part_.key(i), part_.weights[i]};
    n = std::min<int64_t>(n, int64_t(pairs_.size()));
    std::partial_sort(pairs_.begin(), pairs_.begin() + n, pairs_.end(), std::greater<>());
    pairs_.resize(n);
    return pairs_;
  }

  struct Place {
    uint32_t key, index;
  };
  // The whole compact list in order: indices into it.  By digits of the values, or by comparisons
  // if the list is short: equal ones stay by id.
  const std::vector<Place>& in_order() {
    constexpr int digits = 3, bits = 11, buckets = 1 << bits;
    const size_t n = ids_.size();
    order_.resize(n);
    for (size_t i = 0; i < n; ++i) order_[i] = {~ordered(values_[i]), uint32_t(i)};
    if (n <= few) {
      std::sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) {
        return a.key != b.key ? a.key < b.key : a.index < b.index;
      });
      return order_;
    }
    other_.resize(n);
    std::array<std::array<uint32_t, buckets>, digits> counts{};
    for (const Place& place : order_)
      for (int d = 0; d < digits; ++d) ++counts[d][place.key >> d * bits & (buckets - 1)];
    for (int d = 0; d < digits; ++d) {
      std::exclusive_scan(counts[d].begin(), counts[d].end(), counts[d].begin(), uint32_t{0});
      for (const Place& place : order_)
        other_[counts[d][place.key >> d * bits & (buckets - 1)]++] = place;
      order_.swap(other_);
    }
    return order_;
  }

 protected:
  // Part of the list, ids ascending, with weights.
  struct Part {
    Buffer<int32_t> ids;
    Buffer<float> values;
    Buffer<uint64_t> weights;
    uint64_t key(size_t i) const { return order_key(values[i], ids[i]); }
  };
  void weigh_part() {
    part_.weights.resize(part_.ids.size());
    measure().weigh(part_.values.data(), int64_t(part_.ids.size()), part_.weights.data());
  }

  // Keeps what stands at `key` or before it in the order.
  void filter_through(uint64_t key, Buffer<int32_t>& ids, Buffer<float>& values) {
    this->retain(ids, values, [&](size_t i) { return order_key(values[i], ids[i]) >= key; });
    set_compact(ids, values);
  }

  using Row::collect_near, Row::dense_, Row::find_tiles, Row::found_, Row::ids_, Row::mass_,
      Row::maxima_, Row::n_found_, Row::n_tiles_, Row::n_vocab_, Row::set_compact, Row::spare_ids_,
      Row::spare_values_, Row::tiles_, Row::top_, Row::values_;

  Part part_;

 private:
  // A place in the ranking of keep_mass.
  struct Ranked {
    int32_t score;
    int32_t id;
    uint64_t key, measure;  // measure: the weight, or 1 where tokens are counted
    bool before(const Ranked& other) const {
      return score != other.score ? score < other.score : key > other.key;
    }
  };
  enum class Measure { mass, count };
  static constexpr int64_t few = 512;  // a list that is ranked whole

  // A distance from the origin within which at least n tokens lie, and not many more: so many
  // tiles, or smaller groups, have a maximum that reaches it.
  float tile_bound(int64_t n) {
    const float* maxima = maxima_.data();
    int64_t size = n_tiles_;
    if (n > size / 2) {
      size = n_tiles_ * groups_per_tile;
      if (n > size / 2) return -infinity;
      groups_.resize(size);
      for (int64_t t = 0; t < n_tiles_; ++t)
        group_maxima_(tiles_[t], groups_.data() + t * groups_per_tile);
      maxima = groups_.data();
    }
    uint32_t low = ordered(-infinity), high = ordered(top_) + 1;  // n reach low, and not high
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      const int64_t reach = count_at_least_(maxima, size, from_ordered(middle));
      (reach >= n ? low : high) = middle;
      if (reach >= n && reach <= n + n / 8) break;
    }
    // Rounding is monotone: nothing at the bound is lost.
    return from_ordered(low) - measure().origin();
  }

  void collect_scored(int32_t mean, int32_t from, int32_t to, Buffer<int32_t>& ids,
                      Buffer<float>& values) const {
    const Values own = measure();
    find_tiles(own.threshold(int64_t{mean} + to));
    const auto from_tile = [=](const float* x, const int32_t* listed, int32_t first,
                               int32_t* to_ids, float* to_values) {
      return own.collect_scored(x, listed, first, mean, from, to, to_ids, to_values);
    };
    this->collect(from_tile, ids, values);
  }

  // The last of the shortest prefix of the ranking whose measure reaches `wanted`; ranking_ holds
  // it and its neighbours.
  Ranked end_of_prefix(int32_t mean, uint64_t wanted, uint64_t total, Measure by) {
    if (!dense_ && int64_t(ids_.size()) <= few) {
      part_.ids = ids_;
      part_.values = values_;
      uint64_t above = 0;
      rank_part(mean, by, false, wanted, &above);
      return select_ranked(above, wanted);
    }
    // Most of the mass is near the mean; where most tiles reach so far, nothing is gained.
    constexpr int32_t limit = 8 * Values::octave;
    find_tiles(measure().threshold(int64_t{mean} + limit));
    uint64_t above = 0;
    int bin = n_bins;
    if (dense_ && n_found_ <= n_tiles_ / 2)
      bin = find_bin_down_to(mean + limit, mean, by, wanted, &above);
    if (bin == n_bins && dense_ && by == Measure::mass)
      bin = find_bin_in_part_of_row(mean, wanted, total, &above);
    if (bin == n_bins) {
      find_tiles(-infinity);
      bin = find_bin(mean, max_score, by, wanted, &above);
    }
    ranking_.clear();
    if (bin == n_bins) return {max_score, 0, 0, 0};  // there is not as much: all of them
    collect_scored(mean, bin << bin_shift, ((bin + 1) << bin_shift) - 1, part_.ids, part_.values);
    rank_part(mean, by, true, wanted, &above);
    return select_ranked(above, wanted);
  }

  // Collects the bin's measure above, and returns the first bin with which it reaches `wanted`;
  // n_bins if it is not reached within `limit`.
  int find_bin(int32_t mean, int32_t limit, Measure by, uint64_t wanted, uint64_t* above) {
    const Values own = measure();
    int32_t scores[tile_size];
    bins_.assign(n_bins, 0);
    for (int64_t i = 0; i < n_found_; ++i) {
      const float* x = tile(found_[i]);
      if (by == Measure::mass) {
        own.add_bins(x, mean, bins_.data());
      } else {
        own.score(x, tile_size, mean, scores);
        for (int j = 0; j < tile_size; ++j) bins_[scores[j] >> bin_shift] += x[j] > -infinity;
      }
    }
    const int end = limit == max_score ? n_bins : limit >> bin_shift;  // later ones are incomplete
    *above = 0;
    for (int bin = 0; bin < end; *above += bins_[bin++])
      if (*above + bins_[bin] >= wanted) return bin;
    return n_bins;
  }

  // Of a flat row tens of thousands of tokens remain, and every step is dear.  A sample of its
  // tiles tells down to which depth the prefix can reach.
  int find_bin_in_part_of_row(int32_t mean, uint64_t wanted, uint64_t total, uint64_t* above) {
    constexpr int64_t step = 16;
    if (n_tiles_ < 8 * step || wanted >= total) return n_bins;
    const Values own = measure();
    bins_.assign(n_bins, 0);
    for (int64_t t = 0; t < n_tiles_; t += step) own.add_bins(tiles_[t], 0, bins_.data());
    // Of the mass that is to go most lies below the prefix, or, where the ranking is by distance
    // from a mean, about half.  If it was less after all, the prefix does not end in the part.
    const double below = double(total - wanted) * (mean ? 0.4 : 0.9) / step;
    double sum = 0;
    int end = n_bins;
    while (end > 0 && sum + double(bins_[end - 1]) < below) sum += double(bins_[--end]);
    const int32_t depth = end << bin_shift;
    if (depth <= mean) return n_bins;
    return find_bin_down_to(depth, mean, Measure::mass, wanted, above);
  }

  // The same of a row without what lies deeper, which is left out of the list for good; where the
  // bin lies deeper too, the row is as it was.
  int find_bin_down_to(int32_t depth, int32_t mean, Measure by, uint64_t wanted, uint64_t* above) {
    collect_near(measure().threshold(depth), spare_ids_, spare_values_);
    const uint64_t whole = mass_;
    set_compact(spare_ids_, spare_values_, top_);
    find_tiles(-infinity);
    const int bin = find_bin(mean, depth - mean, by, wanted, above);
    if (bin == n_bins) {
      dense_ = true;
      mass_ = whole;
    }
    return bin;
  }

  // Ranks part_.  If all of it is in one bin, finer bins show which few have to be ranked.
  void rank_part(int32_t mean, Measure by, bool one_bin, uint64_t wanted, uint64_t* above) {
    const size_t n = part_.ids.size();
    scores_.resize(n);
    measure().score(part_.values.data(), int64_t(n), mean, scores_.data());
    if (by == Measure::mass) {
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
  Ranked select_ranked(uint64_t above, uint64_t wanted) {
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
  void collect_prefix(int32_t mean, const Ranked& last) {
    collect_scored(mean, 0, last.score, spare_ids_, spare_values_);
    // Those with last's score that stand after it in the order do not belong to it.
    excluded_.clear();
    for (const Ranked& r : ranking_)
      if (r.score == last.score && last.before(r)) excluded_.push_back(r.id);
    if (excluded_.empty()) return;
    std::sort(excluded_.begin(), excluded_.end());
    size_t from = 0, to = 0;
    const auto move_until = [&](size_t end) {
      std::copy_n(spare_ids_.begin() + from, end - from, spare_ids_.begin() + to);
      std::copy_n(spare_values_.begin() + from, end - from, spare_values_.begin() + to);
      to += end - from;
      from = end + 1;
    };
    for (const int32_t id : excluded_)
      move_until(std::lower_bound(spare_ids_.begin() + from, spare_ids_.end(), id) -
                 spare_ids_.begin());
    move_until(spare_ids_.size());
    spare_ids_.resize(to);
    spare_values_.resize(to);
  }

  Buffer<float> groups_;
  Buffer<uint64_t> bins_;
  std::vector<uint64_t> keys_;
  std::vector<std::pair<uint64_t, uint64_t>> pairs_;
  std::vector<Place> order_, other_;
  std::vector<Ranked> ranking_;
  std::vector<int32_t> excluded_;
  Buffer<int32_t> scores_;
};

}  // namespace aleator
