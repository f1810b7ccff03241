// Whether the indexes agree with the cells.
#include <algorithm>
#include <stdexcept>

#include "cache/cell_arrays.hpp"

namespace aleator::cache {

void Cells::check() const {
  const auto require = [](bool right, const std::string& what) {
    if (!right) throw std::logic_error(what);
  };
  std::vector<int64_t> used(used_.size()), per_set(static_cast<size_t>(sets_.size()));
  std::vector<Vector<Run>> found(sequences_.size());
  for (int64_t i = 0; i < size(); ++i) {
    const std::string cell = "cell " + std::to_string(i);
    const bool empty = pos_[i] < 0;
    require(free_.has(i) == empty && occupied_.has(i) != empty, cell + ": the bitmaps are wrong");
    require((owners_[i] == kNone) == empty, cell + " is neither used nor empty");
    require(!empty || (pos_[i] == -1 && base_[i] == -1), cell + " is empty and has a position");
    require(pos_[i] == base_[i] || moved_.has(i), cell + ": its shift is not known");
    if (empty) continue;
    ++used[static_cast<size_t>(i / share())];
    ++per_set[static_cast<size_t>(owners_[i])];
    require(!sets_.ids(owners_[i]).empty(), cell + " has a set of owners that is not in use");
    for (const int32_t s : sets_.ids(owners_[i])) {
      require(n_streams() == 1 || i / share() == s, cell + " is in another stream");
      auto& list = found[static_cast<size_t>(s)];
      const auto c = static_cast<int32_t>(i);
      list.push_back({pos_[i], c, 1});
    }
  }
  // By the bitmaps' upper levels too.
  int64_t full = 0, empty = 0;
  for (int64_t c = occupied_.next(0); c < size(); c = occupied_.next(c + 1)) ++full;
  for (int64_t c = free_.previous(size() - 1); c >= 0; c = free_.previous(c - 1)) ++empty;
  require(full == this->used() && empty == size() - full, "a bitmap does not find its members");
  for (size_t s = 0; s < used_.size(); ++s) {
    const auto low = static_cast<int64_t>(s) * share();
    require(used[s] == used_[s], "the number of used cells is wrong");
    require(heads_[s] >= low && heads_[s] <= low + share(), "a head is out of range");
  }
  for (int32_t set = 0; set < sets_.size(); ++set)
    require(per_set[static_cast<size_t>(set)] == sets_.cells(set), "a set's count is wrong");
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const Runs& r = runs(static_cast<int32_t>(s));
    r.check();
    std::vector<Run> listed;
    r.each(0, kEnd, [&](const Run& x) {
      for (int32_t i = 0; i < x.len; ++i) listed.push_back(x.part(i, 1));
    });
    const auto before = [](const Run& a, const Run& b) { return a.before(b); };
    std::sort(listed.begin(), listed.end(), before);
    std::sort(found[s].begin(), found[s].end(), before);
    require(listed.size() == found[s].size() &&
                std::equal(
                    listed.begin(), listed.end(), found[s].begin(),
                    [](const Run& a, const Run& b) { return a.pos == b.pos && a.cell == b.cell; }),
            "the runs of sequence " + std::to_string(s) + " are wrong");
    int32_t low = -1, high = -1;
    for (const Run& x : found[s]) {
      low = low < 0 ? x.pos : std::min(low, x.pos);
      high = std::max(high, x.pos);
    }
    require(r.min() == low && r.max() == high, "the range of a sequence is wrong");
  }
}

}  // namespace aleator::cache
