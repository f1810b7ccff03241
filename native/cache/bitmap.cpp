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

}  // namespace

Bitmap::Bitmap(int64_t size, bool full) : size_(size) {
  for (int64_t n = size;;) {
    n = (n + 63) / 64;
    levels_.emplace_back(size_t(n), uint64_t{0});
    if (n == 1) break;
  }
  if (full) add(0, size);
}

void Bitmap::add(int64_t begin, int64_t end, int64_t step) {
  if (step == 1) return add_range(begin, end);
  for (int64_t i = begin; i < end; i += step) add_range(i, i + 1);
}

void Bitmap::remove(int64_t begin, int64_t end, int64_t step) {
  if (step == 1) return remove_range(begin, end);
  for (int64_t i = begin; i < end; i += step) remove_range(i, i + 1);
}

void Bitmap::add_range(int64_t begin, int64_t end) {
  for (auto& words : levels_) {
    if (begin >= end) return;
    const int64_t first = begin >> 6, last = (end - 1) >> 6;
    const bool known = first == last && words[first] != 0;  // then the levels above have it
    for (int64_t w = first; w <= last; ++w) words[w] |= bits_of(w, begin, end);
    if (known) return;
    begin = first, end = last + 1;
  }
}

void Bitmap::remove_range(int64_t begin, int64_t end) {
  for (auto& words : levels_) {
    if (begin >= end) return;
    const int64_t first = begin >> 6, last = (end - 1) >> 6;
    for (int64_t w = first; w <= last; ++w) words[w] &= ~bits_of(w, begin, end);
    begin = first + (words[first] != 0);
    end = last + (words[last] == 0);
  }
}

int64_t Bitmap::next(int64_t i) const {
  // Up, to a word with a member at i or after, and down to that member.
  for (size_t level = 0; level < levels_.size(); ++level, ++i) {
    const int64_t w = i >> 6;
    if (w >= int64_t(levels_[level].size())) break;
    const uint64_t rest = levels_[level][w] & ~uint64_t{0} << (i & 63);
    i = w;
    if (!rest) continue;
    i = w * 64 + std::countr_zero(rest);
    while (level-- > 0) i = i * 64 + std::countr_zero(levels_[level][i]);
    return i;
  }
  return size_;
}

int64_t Bitmap::previous(int64_t i) const {
  for (size_t level = 0; level < levels_.size() && i >= 0; ++level, --i) {
    const int64_t w = i >> 6;
    const uint64_t rest = levels_[level][w] & ~uint64_t{0} >> (63 - (i & 63));
    i = w;
    if (!rest) continue;
    i = w * 64 + 63 - std::countl_zero(rest);
    while (level-- > 0) i = i * 64 + 63 - std::countl_zero(levels_[level][i]);
    return i;
  }
  return -1;
}

}  // namespace aleator::cache
