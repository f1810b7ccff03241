// Sets of sequence ids, each stored once and named by a number: a cell then needs 4 bytes for its
// owners, whatever the largest id.  Sets of one id s are the number s and need no table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>

#include "cache/allocation.hpp"

namespace aleator::cache {

class OwnerSets {
 public:
  static constexpr int32_t kNone = -1;

  explicit OwnerSets(int32_t n_seq_max);

  // The set of these ids, which ascend.
  int32_t of(std::span<const int32_t> ids);
  int32_t with(int32_t set, int32_t seq);
  int32_t without(int32_t set, int32_t seq);
  bool has(int32_t set, int32_t seq) const;
  std::span<const int32_t> ids(int32_t set) const;

  // How many cells have a set.
  int64_t cells(int32_t set) const { return cells_[set]; }
  void count(int32_t set, int64_t change) { cells_[set] += change; }
  int32_t size() const { return int32_t(cells_.size()); }
  int64_t shared_cells() const;

  // Forgets sets that no cell has, if they are many.  Numbers kept elsewhere must be of live sets.
  void sweep();

 private:
  using Ids = Vector<int32_t>;
  struct Less {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };

  int32_t n_seq_max_;
  Ids single_;             // single_[s] = s
  Vector<Ids> ids_;        // of set n_seq_max + i; empty if the number is free
  Vector<int64_t> cells_;  // of every set, single ones first
  Ids free_;               // numbers to use again
  std::map<Ids, int32_t, Less, Allocator<std::pair<const Ids, int32_t>>> numbers_;
};

}  // namespace aleator::cache
