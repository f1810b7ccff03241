// Finds a run of n consecutive free cells in O(log size): a tree over the words of a bitmap in
// which every node knows the longest run of bits in it, at its start and at its end.
#pragma once

#include <cstdint>

#include "cache/bitmap.hpp"

namespace aleator::cache {

class FreeRuns {
 public:
  // Words of the bitmap that hold cells [begin, end) have changed.
  void touch(int64_t begin, int64_t end);
  // The lowest start >= from of n members in a row, else -1.
  int64_t find(const Bitmap& free, int64_t n, int64_t from);

 private:
  struct Node {
    int32_t prefix = 0, suffix = 0, best = 0;
  };
  static Node leaf(uint64_t word);
  static Node join(const Node& a, const Node& b, int64_t half);
  void update(const Bitmap& free);
  int64_t descend(const Bitmap& free, size_t node, int64_t width, int64_t n) const;

  Vector<Node> nodes_;  // a heap: children of i are 2 i and 2 i + 1, leaf of word w is leaves_ + w
  int64_t leaves_ = 0;
  int64_t dirty_begin_ = 0, dirty_end_ = 0;  // words
};

}  // namespace aleator::cache
