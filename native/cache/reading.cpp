// What the cells of a sequence are, who shares them, and which a query may see.
#include <algorithm>
#include <cstring>
#include <string>

#include "cache/cell_arrays.hpp"

namespace aleator::cache {

bool Cells::same_cells(int32_t a, int32_t b) const {
  require(a, "a");
  require(b, "b");
  for (int32_t set = 0; set < sets_.size(); ++set)
    if (sets_.cells(set) > 0 && sets_.has(set, a) != sets_.has(set, b)) return false;
  return true;
}

std::vector<Run> Cells::seq_runs(int32_t seq, int32_t p0, int32_t p1) const {
  const Interval in(p0, p1);
  std::vector<Run> out;
  runs(seq).each(in.p0, in.p1, [&](const Run& r) {
    const int32_t n = r.step == 1 ? r.len : 1;
    for (int32_t i = 0; i < r.len; i += n) {
      const Run piece = r.part(i, n);
      if (!out.empty() && out.back().end() == piece.pos &&
          out.back().cell + out.back().len == piece.cell)
        out.back().len += n;
      else
        out.push_back(piece);
    }
  });
  return out;
}

std::vector<int64_t> Cells::shared(int32_t seq, int32_t p0, int32_t p1) const {
  const Interval in(p0, p1);
  std::vector<int64_t> cells;
  runs(seq).each(in.p0, in.p1, [&](const Run& r) {
    for (int32_t i = 0; i < r.len; ++i)
      if (owners_[r.at(i)] != seq) cells.push_back(r.at(i));
  });
  return cells;
}

std::vector<int32_t> Cells::sharers(int32_t seq, int32_t p0, int32_t p1) const {
  const Interval in(p0, p1);
  std::vector<int32_t> ids, sets;
  runs(seq).each(in.p0, in.p1, [&](const Run& r) {
    for (int32_t i = 0; i < r.len;) {
      const int32_t set = owners_[r.at(i)];
      if (sets.empty() || sets.back() != set) sets.push_back(set);
      i += static_cast<int32_t>(same(&owners_[r.at(i)], r.len - i, r.step, 0));
    }
  });
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  for (const int32_t set : sets)
    for (const int32_t s : sets_.ids(set))
      if (s != seq) ids.push_back(s);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::string Cells::map() const {
  std::string picture(static_cast<size_t>(top()), '.');
  for (size_t i = 0; i < picture.size(); ++i) {
    const auto ids = owners(static_cast<int64_t>(i));
    if (ids.size() == 1)
      picture[i] = ids[0] < 10 ? static_cast<char>('0' + ids[0]) : '+';
    else if (ids.size() > 1)
      picture[i] = 'M';
  }
  return picture;
}

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
