// Cells: the arrays, the indexes of them, what they say of a sequence, and whether they agree.
#include "cache/cells.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "cache/cell_arrays.hpp"
#include "errors.hpp"

namespace aleator::cache {

Cells::Cells(int64_t size, int32_t n_seq_max, bool streams, bool llama_2024, bool extras)
    : n_seq_max_(n_seq_max),
      llama_2024_(llama_2024),
      sets_(std::clamp(n_seq_max, 1, kMaxSequences)),
      free_(std::clamp<int64_t>(size, 1, kEnd), true),
      occupied_(free_.size(), false),
      moved_(free_.size(), false) {
  if (size < 1 || size > kEnd) refuse("size must lie in [1, 2^31), not ", size);
  if (n_seq_max < 1 || n_seq_max > kMaxSequences)
    refuse("n_seq_max must lie in [1, ", kMaxSequences, "], not ", n_seq_max);
  if (streams && size % n_seq_max != 0)
    refuse("size must be a multiple of n_seq_max for equal streams: ", size, " cells, ", n_seq_max,
           " sequences");
  const auto n = size_t(size);
  pos_.assign(n, -1), base_.assign(n, -1), owners_.assign(n, kNone);
  if (extras) extras_.resize(n);
  sequences_.resize(n_seq_max);
  heads_.resize(streams ? n_seq_max : 1);
  used_.resize(heads_.size());
  for (size_t s = 0; s < heads_.size(); ++s) heads_[s] = int64_t(s) * share();
}

void Cells::require(int32_t seq, const char* what) const {
  if (seq < 0 || seq >= n_seq_max_) refuse(what, " must lie in [0, ", n_seq_max_, "), not ", seq);
}

int64_t Cells::used() const { return std::accumulate(used_.begin(), used_.end(), int64_t{0}); }

std::span<const int32_t> Cells::owners(int64_t cell) const {
  const int32_t set = owners_[cell];
  return set == kNone ? std::span<const int32_t>() : sets_.ids(set);
}

// Indexes

const Runs& Cells::runs(int32_t seq) const {
  require(seq, "seq");
  Index& x = sequences_[seq];
  if (x.stale) {
    Vector<Run> found;
    const int64_t end = top();
    int32_t known = kNone;
    bool owned = false;
    for (int64_t i = 0; i < end; ++i) {
      if (owners_[i] == kNone) continue;
      if (owners_[i] != known) owned = sets_.has(known = owners_[i], seq);
      if (!owned) continue;
      const auto cell = int32_t(i);
      const Run one{pos_[i], cell, 1};
      if (found.empty() || !found.back().join(one)) found.push_back(one);
    }
    x.runs.assign(found);
    x.stale = false;
  }
  return x.runs;
}

void Cells::stale(const Segment& s) noexcept {
  for (const int32_t seq : sets_.ids(s.owners)) sequences_[seq].spoil();
}

void Cells::forget(const Segment& s, bool in_bulk) noexcept {
  if (in_bulk) return stale(s);
  update(s.owners, [&](Runs& own) { own.erase(s.run()); });
}

void Cells::learn(const Segment& s, bool in_bulk) noexcept {
  if (in_bulk) return stale(s);
  update(s.owners, [&](Runs& own) { own.insert(s.run()); });
}

// Whether all these cells, of a range of positions, have the same owners, and those no others in
// it.
bool Cells::move_together(const Vector<Segment>& segments, int32_t p0, int32_t p1) const {
  int64_t n = 0;
  for (const Segment& s : segments) {
    if (s.owners != segments[0].owners) return false;
    n += s.len;
  }
  if (n == 0) return false;
  for (const int32_t owner : sets_.ids(segments[0].owners)) {
    int64_t cells = 0;
    runs(owner).each(p0, p1, [&](const Run& r) { cells += r.len; });
    if (cells != n) return false;
  }
  return true;
}

// Arrays

void Cells::segments(int64_t cell, int64_t len, int64_t step, Vector<Segment>& out) const {
  each_segment(cell, len, step, [&](const Segment& s) { out.push_back(s); });
}

void Cells::collect(int32_t seq, int32_t p0, int32_t p1, Vector<Segment>& out) const {
  const Runs& own = runs(seq);
  const bool unmoved = moved_.empty();
  own.each(p0, p1, [&](const Run& r) {
    // If as many cells have these owners as the sequence has, all of its cells do; so where nothing
    // has moved either, the arrays need not be read.
    const int32_t set = owners_[r.cell];
    const bool alike = sets_.cells(set) == own.cells();
    if (alike && (unmoved || moved_.next(r.cell) > r.at(r.len - 1)))
      out.push_back({r.cell, r.len, r.step, r.pos, r.pos, set});
    else
      segments(r.cell, r.len, r.step, out);
  });
}

// Fills free cells.
void Cells::write(const Segment& s, const Extra* extras) noexcept {
  if (!extras_.empty())
    for (int32_t i = 0; i < s.len; ++i) extras_[s.cell + int64_t{i} * s.step] = extras[i];
  fill(&pos_[s.cell], s.len, s.step, s.pos, 1);
  fill(&base_[s.cell], s.len, s.step, s.base, 1);
  fill(&owners_[s.cell], s.len, s.step, s.owners, 0);
  free_.remove(s.cell, s.end(), s.step);
  occupied_.add(s.cell, s.end(), s.step);
  if (s.pos != s.base) moved_.add(s.cell, s.end(), s.step);
  sets_.count(s.owners, s.len);
  count_used(s, 1);
}

// Empties cells that all have the same owners.
void Cells::release(const Segment& s) noexcept {
  fill(&pos_[s.cell], s.len, s.step, -1, 0);
  fill(&base_[s.cell], s.len, s.step, -1, 0);
  fill(&owners_[s.cell], s.len, s.step, kNone, 0);
  free_.add(s.cell, s.end(), s.step);
  occupied_.remove(s.cell, s.end(), s.step);
  moved_.remove(s.cell, s.end(), s.step);
  sets_.count(s.owners, -s.len);
  count_used(s, -1);
}

// Only cells in a row, of what clear() has journalled, can lie in several streams.
void Cells::count_used(const Segment& s, int64_t sign) noexcept {
  for (int64_t c = s.cell, left = s.len; left > 0;) {
    const int64_t stream = c / share();
    const int64_t n = s.step > 1 ? left : std::min(left, (stream + 1) * share() - c);
    used_[stream] += sign * n;
    c += n, left -= n;
  }
}

void Cells::change_owners(const Segment& s, int32_t owners) noexcept {
  fill(&owners_[s.cell], s.len, s.step, owners, 0);
  sets_.count(s.owners, -s.len);
  sets_.count(owners, s.len);
}

// A search starts no later than the first cell that was freed; a sequence has freed them.
void Cells::lower_heads(const Segment& s) {
  int64_t& head = heads_[s.cell / share()];
  head = std::min<int64_t>(head, s.cell);
}

void Cells::advance_head(int32_t stream, int64_t last) {
  int64_t& head = heads_[stream];
  head = last + 1;
  if (llama_2024_ && head >= (stream + 1) * share()) head = stream * share();
}

// Shifts

bool Cells::has_shift() const {
  for (int64_t c = moved_.next(0); c < size(); c = moved_.next(c + 1)) {
    if (pos_[c] != base_[c]) return true;
    moved_.remove(c, c + 1);
  }
  return false;
}

std::vector<int64_t> Cells::shifted() const {
  std::vector<int64_t> cells;
  for (int64_t c = moved_.next(0); c < size(); c = moved_.next(c + 1))
    if (pos_[c] != base_[c]) cells.push_back(c);
  return cells;
}

void Cells::clear_shifts() {
  if (!has_shift()) return;
  enter();
  if (!marks_.empty())
    for (const int64_t c : shifted()) record(c, 1);
  const int64_t n = size();
  for (int64_t c = moved_.next(0); c < n; c = moved_.next(c)) {
    c = c / 64 * 64;  // in a word all that did not move are right already
    const int64_t end = std::min(n, c + 64);
    std::copy(&pos_[c], &pos_[c] + end - c, &base_[c]);
    c = end;
  }
  moved_.remove(0, n);
}

// What the cells of a sequence are, and who shares them

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
  std::set<int32_t> sets, ids;
  int32_t last = kNone;
  runs(seq).each(in.p0, in.p1, [&](const Run& r) {
    for (int32_t i = 0; i < r.len;) {
      if (owners_[r.at(i)] != last) sets.insert(last = owners_[r.at(i)]);
      i += int32_t(same(&owners_[r.at(i)], r.len - i, r.step, 0));
    }
  });
  for (const int32_t set : sets) ids.insert(sets_.ids(set).begin(), sets_.ids(set).end());
  ids.erase(seq);
  return {ids.begin(), ids.end()};
}

std::string Cells::map() const {
  std::string picture(size_t(top()), '.');
  for (size_t i = 0; i < picture.size(); ++i) {
    const auto ids = owners(int64_t(i));
    if (ids.size() == 1)
      picture[i] = ids[0] < 10 ? char('0' + ids[0]) : '+';
    else if (ids.size() > 1)
      picture[i] = 'M';
  }
  return picture;
}

void Cells::check() const {
  const auto require = [](bool right, auto... what) {
    if (!right) throw std::logic_error(message(what...));
  };
  std::vector<int64_t> used(used_.size()), per_set(size_t(sets_.size()));
  using Places = std::vector<std::pair<int32_t, int32_t>>;  // position, cell
  std::vector<Places> found(sequences_.size());
  for (int64_t i = 0; i < size(); ++i) {
    const std::string cell = message("cell ", i);
    const bool empty = pos_[i] < 0;
    require(free_.has(i) == empty && occupied_.has(i) != empty, cell, ": the bitmaps are wrong");
    require((owners_[i] == kNone) == empty, cell, " is neither used nor empty");
    require(!empty || (pos_[i] == -1 && base_[i] == -1), cell, " is empty and has a position");
    require(pos_[i] == base_[i] || moved_.has(i), cell, ": its shift is not known");
    if (empty) continue;
    ++used[i / share()];
    ++per_set[owners_[i]];
    require(!sets_.ids(owners_[i]).empty(), cell, " has a set of owners that is not in use");
    for (const int32_t s : sets_.ids(owners_[i])) {
      require(n_streams() == 1 || i / share() == s, cell, " is in another stream");
      found[s].emplace_back(pos_[i], int32_t(i));
    }
  }
  // By the bitmaps' upper levels too.
  int64_t full = 0, empty = 0;
  for (int64_t c = occupied_.next(0); c < size(); c = occupied_.next(c + 1)) ++full;
  for (int64_t c = free_.previous(size() - 1); c >= 0; c = free_.previous(c - 1)) ++empty;
  require(full == this->used() && empty == size() - full, "a bitmap does not find its members");
  for (size_t s = 0; s < used_.size(); ++s) {
    const auto low = int64_t(s) * share();
    require(used[s] == used_[s], "the number of used cells is wrong");
    require(heads_[s] >= low && heads_[s] <= low + share(), "a head is out of range");
  }
  for (int32_t set = 0; set < sets_.size(); ++set)
    require(per_set[set] == sets_.cells(set), "a set's count is wrong");
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const Runs& r = runs(int32_t(s));
    r.check();
    Places listed;
    r.each(0, kEnd, [&](const Run& x) {
      for (int32_t i = 0; i < x.len; ++i) listed.emplace_back(x.pos + i, x.at(i));
    });
    Places& held = found[s];
    std::sort(listed.begin(), listed.end());
    std::sort(held.begin(), held.end());
    require(listed == held, "the runs of sequence ", s, " are wrong");
    const int32_t low = held.empty() ? -1 : held.front().first,
                  high = held.empty() ? -1 : held.back().first;
    require(r.min() == low && r.max() == high, "the range of a sequence is wrong");
  }
}

}  // namespace aleator::cache
