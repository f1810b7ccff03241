#include "cache/bitmap.hpp"

#include <algorithm>
#include <bit>

namespace aleator::cache {

namespace {

// Bits [begin, end) of word w, where these count from the start of the level.
uint64_t bits_of(int64_t w, int64_t begin, int64_t end) {
  const int64_t low = std::max<int64_t>(begin - w * 64, 0),
                high = std::min<int64_t>(end - w * 64, 64);
  return (high == 64 ? ~uint64_t{0} : (uint64_t{1} << high) - 1) & ~uint64_t{0} << low;
}

// Bits 0, step, 2 step, ... of a word.
uint64_t every(int64_t step) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < 64; i += step) bits |= uint64_t{1} << i;
  return bits;
}

// The members of begin, begin + step, ... that lie in word w; pattern is every(step).
uint64_t bits_of(int64_t w, int64_t begin, int64_t end, int64_t step, uint64_t pattern) {
  const int64_t past = w * 64 - begin;
  const int64_t first = past <= 0 ? -past : (step - past % step) % step;
  return first < 64 ? pattern << first & bits_of(w, begin, end) : 0;
}

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

Bitmap::Bitmap(int64_t size, bool full) : size_(size) {
  for (int64_t n = size;;) {
    n = (n + 63) / 64;
    levels_.emplace_back(static_cast<size_t>(n), uint64_t{0});
    if (n == 1) break;
  }
  if (full) add(0, size);
}

void Bitmap::add(int64_t begin, int64_t end, int64_t step) {
  if (step == 1 || begin >= end) return add_from(0, begin, end);
  if (step > 64 || end - begin < 4 * step) {
    for (int64_t i = begin; i < end; i += step) add_from(0, i, i + 1);
    return;
  }
  const uint64_t pattern = every(step);
  const int64_t first = begin >> 6, last = (end - 1) >> 6;
  for (int64_t w = first; w <= last; ++w) {
    const uint64_t bits = bits_of(w, begin, end, step, pattern);
    levels_[0][w] |= bits;
    if (bits && w == last) return add_from(1, first, last + 1);
  }
  add_from(1, first, last);  // the last word has none of them
}

void Bitmap::remove(int64_t begin, int64_t end, int64_t step) {
  if (step == 1 || begin >= end) return remove_from(0, begin, end);
  if (step > 64 || end - begin < 4 * step) {
    for (int64_t i = begin; i < end; i += step) remove_from(0, i, i + 1);
    return;
  }
  const uint64_t pattern = every(step);
  for (int64_t w = begin >> 6; w <= (end - 1) >> 6; ++w) {
    levels_[0][w] &= ~bits_of(w, begin, end, step, pattern);
    if (levels_[0][w] == 0) remove_from(1, w, w + 1);
  }
}

void Bitmap::add_from(size_t level, int64_t begin, int64_t end) {
  for (; level < levels_.size(); ++level) {
    auto& words = levels_[level];
    if (begin >= end) return;
    const int64_t first = begin >> 6, last = (end - 1) >> 6;
    const bool known = first == last && words[first] != 0;  // then the levels above have it
    for (int64_t w = first; w <= last; ++w) words[w] |= bits_of(w, begin, end);
    if (known) return;
    begin = first, end = last + 1;
  }
}

void Bitmap::remove_from(size_t level, int64_t begin, int64_t end) {
  for (; level < levels_.size(); ++level) {
    auto& words = levels_[level];
    if (begin >= end) return;
    const int64_t first = begin >> 6, last = (end - 1) >> 6;
    for (int64_t w = first; w <= last; ++w) words[w] &= ~bits_of(w, begin, end);
    begin = first + (words[first] != 0);
    end = last + (words[last] == 0);
  }
}

int64_t Bitmap::next(int64_t i) const {
  const size_t height = levels_.size();
  size_t level = 0;
  for (; level < height; ++level, ++i) {  // up: to a word with a member at i or after
    const int64_t w = i >> 6;
    if (w >= static_cast<int64_t>(levels_[level].size())) return size_;
    const uint64_t rest = levels_[level][w] & ~uint64_t{0} << (i & 63);
    if (rest) {
      i = w * 64 + std::countr_zero(rest);
      break;
    }
    i = w;
  }
  if (level == height) return size_;
  while (level-- > 0) i = i * 64 + std::countr_zero(levels_[level][i]);
  return i;
}

int64_t Bitmap::previous(int64_t i) const {
  const size_t height = levels_.size();
  size_t level = 0;
  for (; level < height; ++level, --i) {
    if (i < 0) return -1;
    const int64_t w = i >> 6;
    const uint64_t rest = levels_[level][w] & ~uint64_t{0} >> (63 - (i & 63));
    if (rest) {
      i = w * 64 + 63 - std::countl_zero(rest);
      break;
    }
    i = w;
  }
  if (level == height) return -1;
  while (level-- > 0) i = i * 64 + 63 - std::countl_zero(levels_[level][i]);
  return i;
}

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
