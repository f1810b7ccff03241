// Which cells a query may see.
#include <algorithm>
#include <cstring>

#include "cache/cell_arrays.hpp"

namespace aleator::cache {

int32_t Sight::first(int32_t p) const {
  switch (window) {
    case Window::standard:
      return std::max(0, p - width + 1);
    case Window::chunked:
      return p / width * width;
    default:
      return 0;
  }
}

int32_t Sight::last(int32_t p) const { return causal ? p + 1 : kEnd; }

int64_t Cells::mask(const int32_t* positions, const int32_t* seqs, const int32_t* coordinates,
                    int64_t n_queries, int64_t n, const Sight& sight, bool* visible) const {
  int64_t count = 0, in_row = 0;
  for (int64_t t = 0; t < n_queries; ++t) {
    bool* row = visible + t * n;
    const Runs& r = runs(seqs[t]);
    int32_t from = sight.first(positions[t]);
    const int32_t to = sight.last(positions[t]);
    if (t > 0 && !coordinates && seqs[t] == seqs[t - 1] && positions[t] >= positions[t - 1] &&
        from == sight.first(positions[t - 1])) {
      // What the query before saw, and what lies between.
      std::memcpy(row, row - n, static_cast<size_t>(n));
      from = sight.last(positions[t - 1]);
    } else {
      std::memset(row, 0, static_cast<size_t>(n));
      in_row = 0;
    }
    r.each(from, to, [&](const Run& x) {
      const int64_t len = std::min<int64_t>(x.len, (n - x.cell + x.step - 1) / x.step);
      if (x.cell >= n) return;
      for (int64_t i = 0; i < len; ++i) row[x.cell + i * x.step] = true;
      in_row += len;
    });
    if (coordinates && sight.causal) {
      const int32_t y = coordinates[2 * t], x = coordinates[2 * t + 1];
      r.each(positions[t], positions[t] + 1, [&](const Run& own) {
        if (own.cell >= n || !row[own.cell] || !extras_[own.cell].after(y, x)) return;
        row[own.cell] = false;
        --in_row;
      });
    }
    count += in_row;
  }
  return count;
}

}  // namespace aleator::cache
