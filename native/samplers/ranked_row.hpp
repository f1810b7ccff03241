// What truncations keep of a row.  One verb each, here, in the NumPy reference and in PyTorch:
// docs/numerics.md, "Words".
#pragma once

#include <cstdint>
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
  void keep_first(int64_t n);                         // the first n of the order
  void keep_near(float threshold, int64_t min_keep);  // at least this distance from the origin
  // The shortest prefix of at least this mass, out of `total`: of the order if `mean` is 0, else of
  // the ranking by score, the distance of a depth from the mean, and then the order.
  void keep_mass(uint64_t wanted, uint64_t total, int64_t min_keep, int32_t mean = 0);
  void keep_through(uint64_t key);  // this key and those before it

  // The n first of the order, as (key, weight).
  const std::vector<std::pair<uint64_t, uint64_t>>& first(int64_t n);
  // The whole compact list in order: indices into it.
  struct Place {
    uint32_t key, index;
  };
  const std::vector<Place>& in_order();

 protected:
  // Part of the list, ids ascending, with weights.
  struct Part {
    Buffer<int32_t> ids;
    Buffer<float> values;
    Buffer<uint64_t> weights;
    uint64_t key(size_t i) const { return order_key(values[i], ids[i]); }
  };
  void weigh_part();
  void filter_through(uint64_t key, Buffer<int32_t>& ids, Buffer<float>& values);

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

  float tile_bound(int64_t n);
  void collect_scored(int32_t mean, int32_t from, int32_t to, Buffer<int32_t>& ids,
                      Buffer<float>& values) const;
  Ranked end_of_prefix(int32_t mean, uint64_t wanted, uint64_t total, Measure by);
  int find_bin(int32_t mean, int32_t limit, Measure by, uint64_t wanted, uint64_t* above);
  int find_bin_in_part_of_row(int32_t mean, uint64_t wanted, uint64_t total, uint64_t* above);
  void rank_part(int32_t mean, Measure by, bool one_bin, uint64_t wanted, uint64_t* above);
  Ranked select_ranked(uint64_t above, uint64_t wanted);
  void collect_prefix(int32_t mean, const Ranked& last);

  Buffer<float> groups_;
  Buffer<uint64_t> bins_;
  std::vector<uint64_t> keys_;
  std::vector<std::pair<uint64_t, uint64_t>> pairs_;
  std::vector<Place> order_, other_;
  std::vector<Ranked> ranking_;
  std::vector<int32_t> excluded_;
  Buffer<int32_t> scores_;
};

extern template class RankedRow<LogitValues>;
extern template class RankedRow<ProbabilityValues>;

}  // namespace aleator
