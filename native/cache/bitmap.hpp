// A set of integers in [0, size) as a 64-ary tree of bits: the next or previous member is found in
// O(log64 size), a range is added or removed in O(length / 64).  Nothing but the constructor
// allocates.
#pragma once

#include <cstdint>

#include "cache/allocation.hpp"

namespace aleator::cache {

class Bitmap {
 public:
  Bitmap(int64_t size, bool full);

  int64_t size() const { return size_; }
  bool has(int64_t i) const { return levels_[0][i >> 6] >> (i & 63) & 1; }
  bool empty() const { return levels_.back()[0] == 0; }
  // Every step-th of [begin, end), from begin on.
  void add(int64_t begin, int64_t end, int64_t step = 1);
  void remove(int64_t begin, int64_t end, int64_t step = 1);
  int64_t next(int64_t i) const;      // the first member >= i, else size
  int64_t previous(int64_t i) const;  // the last member <= i, else -1

 private:
  void add_range(int64_t begin, int64_t end);
  void remove_range(int64_t begin, int64_t end);

  int64_t size_;
  // Bit i of level k + 1 says whether word i of level k is not 0.
  Vector<Vector<uint64_t>> levels_;
};

}  // namespace aleator::cache
