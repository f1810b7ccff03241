#include "cache/free_runs.hpp"

#include <algorithm>
#include <bit>

namespace aleator::cache {

namespace {

// The first of n ones in a row, n in [1, 64]; the word has them.
int first_of(uint64_t word, int64_t n) {
  uint64_t starts = word;  // bit i: ones at i to i + length - 1
  for (int64_t length = 1; length < n;) {
    const int64_t step = std::min(length, n - length);
    starts &= starts >> step;
    length += step;
  }
  return std::countr_zero(starts);
}

}  // namespace

void FreeRuns::touch(int64_t begin, int64_t end) {
  if (leaves_ == 0 || begin >= end) return;
  const int64_t first = begin >> 6, last = ((end - 1) >> 6) + 1;
  dirty_begin_ = dirty_begin_ < dirty_end_ ? std::min(dirty_begin_, first) : first;
  dirty_end_ = std::max(dirty_end_, last);
}

FreeRuns::Node FreeRuns::leaf(uint64_t word) {
  Node node;
  node.prefix = std::countr_one(word);
  node.suffix = std::countl_one(word);
  for (; word; word &= word << 1) ++node.best;  // each round shortens every run by one
  return node;
}

FreeRuns::Node FreeRuns::join(const Node& a, const Node& b, int64_t half) {
  const auto h = static_cast<int32_t>(half);
  return {a.prefix == h ? h + b.prefix : a.prefix, b.suffix == h ? h + a.suffix : b.suffix,
          std::max({a.best, b.best, a.suffix + b.prefix})};
}

void FreeRuns::update(const Bitmap& free) {
  const auto& words = free.words();
  if (leaves_ == 0) {
    const auto leaves = static_cast<int64_t>(std::bit_ceil(words.size()));
    nodes_.resize(static_cast<size_t>(2 * leaves));
    leaves_ = leaves;
    dirty_begin_ = 0, dirty_end_ = static_cast<int64_t>(words.size());
  }
  if (dirty_begin_ >= dirty_end_) return;
  int64_t begin = leaves_ + dirty_begin_, end = leaves_ + dirty_end_;
  for (int64_t i = begin; i < end; ++i)
    nodes_[static_cast<size_t>(i)] = leaf(words[static_cast<size_t>(i - leaves_)]);
  for (int64_t half = 64; begin > 1; half *= 2) {
    begin /= 2, end = (end + 1) / 2;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      nodes_[i] = join(nodes_[2 * i], nodes_[2 * i + 1], half);
  }
  dirty_begin_ = dirty_end_ = 0;
}

// The start, counted from the node's own, of the first run of n in a node that has one.
int64_t FreeRuns::descend(const Bitmap& free, size_t node, int64_t width, int64_t n) const {
  int64_t start = 0;
  for (; width > 64; width /= 2) {
    const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
    const int64_t half = width / 2;
    node *= 2;
    if (left.best >= n) continue;
    if (left.suffix + right.prefix >= n) return start + half - left.suffix;
    start += half;
    ++node;
  }
  return start + first_of(free.words()[node - static_cast<size_t>(leaves_)], n);
}

int64_t FreeRuns::find(const Bitmap& free, int64_t n, int64_t from) {
  update(free);
  if (n <= 0 || from >= free.size()) return -1;
  int64_t w = from >> 6;
  const uint64_t word = free.words()[static_cast<size_t>(w)] & ~uint64_t{0} << (from & 63);
  const Node first = leaf(word);
  if (first.best >= n) return w * 64 + first_of(word, n);
  int64_t carry = first.suffix;  // members in a row just before what is looked at next
  for (++w; w < leaves_;) {
    // The largest node that starts at word w; runs in all before it are too short.
    int64_t width = 1, node = leaves_ + w;
    while (node % 2 == 0 && w + 2 * width <= leaves_) node /= 2, width *= 2;
    const Node& x = nodes_[static_cast<size_t>(node)];
    const int64_t cells = width * 64;
    if (carry + x.prefix >= n) return w * 64 - carry;
    if (x.best >= n) return w * 64 + descend(free, static_cast<size_t>(node), cells, n);
    carry = x.suffix == cells ? carry + cells : x.suffix;
    w += width;
  }
  return -1;
}

}  // namespace aleator::cache
