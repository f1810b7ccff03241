// The cells' arrays read and written in runs, for the files that define Cells.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "cache/cells.hpp"

namespace aleator::cache {

constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();
constexpr int32_t kNone = OwnerSets::kNone;

struct Interval {
  int32_t p0, p1;
  Interval(int32_t a, int32_t b) : p0(std::max(a, 0)), p1(b < 0 ? kEnd : b) {}
};

// How many of x[0], x[step], ... x[(n - 1) step] are first, first + slope, first + 2 slope, ...;
// x[0] is first.
inline int64_t same(const int32_t* x, int64_t n, int64_t step, int32_t slope) {
  const int32_t first = x[0];
  int64_t i = 1;
  for (; step == 1 && i + 64 <= n; i += 64) {
    uint32_t differences = 0;
    for (int64_t k = 0; k < 64; ++k)
      differences |= uint32_t(x[i + k] ^ (first + slope * int32_t(i + k)));
    if (differences) break;
  }
  while (i < n && x[i * step] == first + slope * int32_t(i)) ++i;
  return i;
}

// x[0] = first, x[step] = first + slope, ..., n of them.
inline void fill(int32_t* x, int64_t n, int64_t step, int32_t first, int32_t slope) {
  if (n == 1)
    x[0] = first;
  else if (step == 1 && slope == 0)
    std::fill_n(x, n, first);
  else if (step == 1)
    std::iota(x, x + n, first);
  else
    for (int64_t i = 0; i < n; ++i) x[i * step] = first + slope * int32_t(i);
}

template <typename F>
void Cells::each_segment(int64_t cell, int64_t len, int64_t step, F&& f) const {
  for (int64_t n; len > 0; cell += n * step, len -= n) {
    const int32_t set = owners_[cell];
    n = len;
    if (len > 1) {
      n = same(&owners_[cell], n, step, 0);
      if (set != kNone) {
        n = same(&pos_[cell], n, step, 1);
        n = same(&base_[cell], n, step, 1);
      }
    }
    f(Segment{int32_t(cell), int32_t(n), n > 1 ? int32_t(step) : 1, pos_[cell], base_[cell], set});
  }
}

template <typename F>
void Cells::update(int32_t owners, F&& change) noexcept {
  for (const int32_t seq : sets_.ids(owners)) {
    Index& x = sequences_[seq];
    try {
      if (!x.stale) change(x.runs);
    } catch (const std::bad_alloc&) {
      x.spoil();
    }
  }
}

template <typename F>
void Cells::atomically(F&& change) {
  begin();
  try {
    change();
  } catch (...) {
    rollback();
    throw;
  }
  commit();
  forget_journal();
}

}  // namespace aleator::cache
