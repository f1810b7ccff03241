// What the cells of a sequence are, and who shares them.
#include <algorithm>
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

}  // namespace aleator::cache
