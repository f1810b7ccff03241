#include "cache/cells.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace aleator::cache {

namespace {

constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();
constexpr int32_t kNone = OwnerSets::kNone;

struct Interval {
  int32_t p0, p1;
  Interval(int32_t a, int32_t b) : p0(std::max(a, 0)), p1(b < 0 ? kEnd : b) {}
};

// How many of x[0], x[step], ... x[(n - 1) step] are first, first + slope, first + 2 slope, ...;
// x[0] is first.
int64_t same(const int32_t* x, int64_t n, int64_t step, int32_t slope) {
  const int32_t first = x[0];
  int64_t i = 1;
  for (; step == 1 && i + 64 <= n; i += 64) {
    uint32_t differences = 0;
    for (int64_t k = 0; k < 64; ++k)
      differences |=
          static_cast<uint32_t>(x[i + k] ^ (first + slope * static_cast<int32_t>(i + k)));
    if (differences) break;
  }
  while (i < n && x[i * step] == first + slope * static_cast<int32_t>(i)) ++i;
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
    for (int64_t i = 0; i < n; ++i) x[i * step] = first + slope * static_cast<int32_t>(i);
}

}  // namespace

Cells::Cells(int64_t size, int32_t n_seq_max, bool streams, bool llama_2024, bool extras)
    : n_seq_max_(n_seq_max),
      llama_2024_(llama_2024),
      sets_(std::clamp(n_seq_max, 1, kMaxSequences)),
      free_(std::clamp<int64_t>(size, 1, kEnd), true),
      occupied_(free_.size(), false),
      moved_(free_.size(), false) {
  if (size < 1 || size > kEnd)
    throw std::invalid_argument("size must lie in [1, 2^31), not " + std::to_string(size));
  if (n_seq_max < 1 || n_seq_max > kMaxSequences)
    throw std::invalid_argument("n_seq_max must lie in [1, " + std::to_string(kMaxSequences) +
                                "], not " + std::to_string(n_seq_max));
  if (streams && size % n_seq_max != 0)
    throw std::invalid_argument(
        "size must be a multiple of n_seq_max for equal streams: " + std::to_string(size) +
        " cells, " + std::to_string(n_seq_max) + " sequences");
  const auto n = static_cast<size_t>(size);
  pos_.assign(n, -1), base_.assign(n, -1), owners_.assign(n, kNone);
  if (extras) extras_.resize(n);
  sequences_.resize(static_cast<size_t>(n_seq_max));
  heads_.resize(static_cast<size_t>(streams ? n_seq_max : 1));
  used_.resize(heads_.size());
  for (size_t s = 0; s < heads_.size(); ++s) heads_[s] = static_cast<int64_t>(s) * share();
}

void Cells::require(int32_t seq, const char* what) const {
  if (seq < 0 || seq >= n_seq_max_)
    throw std::invalid_argument(std::string(what) + " must lie in [0, " +
                                std::to_string(n_seq_max_) + "), not " + std::to_string(seq));
}

int64_t Cells::used() const { return std::accumulate(used_.begin(), used_.end(), int64_t{0}); }

std::span<const int32_t> Cells::owners(int64_t cell) const {
  const int32_t set = owners_[cell];
  return set == kNone ? std::span<const int32_t>() : sets_.ids(set);
}

// Indexes

const Runs& Cells::runs(int32_t seq) const {
  require(seq, "seq");
  Index& x = sequences_[static_cast<size_t>(seq)];
  if (x.stale) {
    Vector<Run> found;
    const int64_t end = top();
    int32_t known = kNone;
    bool owned = false;
    for (int64_t i = 0; i < end; ++i) {
      if (owners_[i] == kNone) continue;
      if (owners_[i] != known) owned = sets_.has(known = owners_[i], seq);
      if (!owned) continue;
      const auto cell = static_cast<int32_t>(i);
      const Run one{pos_[i], cell, 1};
      if (found.empty() || !found.back().join(one)) found.push_back(one);
    }
    x.runs.assign(found);
    x.stale = false;
  }
  return x.runs;
}

void Cells::stale(const Segment& s) noexcept {
  for (const int32_t seq : sets_.ids(s.owners)) {
    Index& x = sequences_[static_cast<size_t>(seq)];
    x.stale = true;
    x.runs.clear();
  }
}

void Cells::index(const Segment& s) noexcept {
  for (const int32_t seq : sets_.ids(s.owners)) {
    Index& x = sequences_[static_cast<size_t>(seq)];
    if (x.stale) continue;
    try {
      x.runs.insert(s.run());
    } catch (const std::bad_alloc&) {
      x.stale = true;
      x.runs.clear();
    }
  }
}

void Cells::unindex(const Segment& s) noexcept {
  for (const int32_t seq : sets_.ids(s.owners)) {
    Index& x = sequences_[static_cast<size_t>(seq)];
    if (x.stale) continue;
    try {
      x.runs.erase(s.run());
    } catch (const std::bad_alloc&) {
      x.stale = true;
      x.runs.clear();
    }
  }
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

void Cells::shift_runs(int32_t owners, int32_t p0, int32_t p1, int32_t delta) noexcept {
  for (const int32_t seq : sets_.ids(owners)) {
    Index& x = sequences_[static_cast<size_t>(seq)];
    try {
      x.runs.shift(p0, p1, delta);
    } catch (const std::bad_alloc&) {
      x.stale = true;
      x.runs.clear();
    }
  }
}

// Arrays

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
    f(Segment{static_cast<int32_t>(cell), static_cast<int32_t>(n),
              n > 1 ? static_cast<int32_t>(step) : 1, pos_[cell], base_[cell], set});
  }
}

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
  free_runs_.touch(s.cell, s.end());
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
  free_runs_.touch(s.cell, s.end());
  moved_.remove(s.cell, s.end(), s.step);
  sets_.count(s.owners, -s.len);
  count_used(s, -1);
}

// Only cells in a row, of what clear() has journalled, can lie in several streams.
void Cells::count_used(const Segment& s, int64_t sign) noexcept {
  for (int64_t c = s.cell, left = s.len; left > 0;) {
    const int64_t stream = c / share();
    const int64_t n = s.step > 1 ? left : std::min(left, (stream + 1) * share() - c);
    used_[static_cast<size_t>(stream)] += sign * n;
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
  int64_t& head = heads_[static_cast<size_t>(s.cell / share())];
  head = std::min<int64_t>(head, s.cell);
}

void Cells::advance_head(int32_t stream, int64_t last) {
  int64_t& head = heads_[static_cast<size_t>(stream)];
  head = last + 1;
  if (llama_2024_ && head >= (stream + 1) * share()) head = stream * share();
}

// Journal

void Cells::forget_journal() {
  records_.clear();
  old_extras_.clear();
  done_.clear();
}

// Every change starts here.
void Cells::enter() {
  if (marks_.empty()) {
    forget_journal();
    sets_.sweep();
  }
  version_ = ++last_version_;
}

// Remembers cells; may throw, so it comes before the change.
void Cells::record(int64_t cell, int64_t len, int64_t step) {
  if (marks_.empty()) return;
  each_segment(cell, len, step, [&](const Segment& s) { record(s); });
}
void Cells::record(const Segment& s) {
  if (marks_.empty()) return;
  const bool extras = !extras_.empty() && s.owners != kNone;
  if (extras) {
    const auto more = static_cast<size_t>(s.len);
    if (old_extras_.capacity() - old_extras_.size() < more)
      old_extras_.reserve(2 * old_extras_.size() + more);
  }
  records_.push_back(s);
  if (extras)
    for (int64_t c = s.cell; c < s.end(); c += s.step) old_extras_.push_back(extras_[c]);
}

void Cells::begin() {
  if (marks_.empty()) {
    forget_journal();
    sets_.sweep();
    done_.reserve(1);
  }
  marks_.push_back({records_.size(), heads_, version_});
}

void Cells::commit() noexcept {
  if (marks_.empty()) return;
  if (marks_.size() == 1) done_.push_back(std::move(marks_[0]));
  marks_.pop_back();
}

void Cells::rollback() noexcept {
  Vector<Mark>& marks = marks_.empty() ? done_ : marks_;
  if (marks.empty()) return;
  Mark& mark = marks.back();
  const bool bulk = many(records_.size() - mark.records);
  while (records_.size() > mark.records) {
    const Segment old = records_.back();
    records_.pop_back();
    each_segment(old.cell, old.len, old.step, [&](const Segment& now) {
      if (now.owners == kNone) return;
      forget(now, bulk);
      release(now);
    });
    if (old.owners == kNone) continue;
    const Extra* extras = nullptr;
    if (!extras_.empty()) extras = &old_extras_[old_extras_.size() - static_cast<size_t>(old.len)];
    write(old, extras);
    if (extras) old_extras_.resize(old_extras_.size() - static_cast<size_t>(old.len));
    learn(old, bulk);
  }
  std::copy(mark.heads.begin(), mark.heads.end(), heads_.begin());
  version_ = mark.version;
  marks.pop_back();
}

std::vector<int64_t> Cells::used_before(const int64_t* cells, int64_t n) const {
  std::vector<int64_t> found;
  if (marks_.empty()) return found;
  std::vector<int64_t> sorted(cells, cells + n);
  if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
  for (const Segment& s : records_) {
    if (s.owners == kNone) continue;
    auto c = std::lower_bound(sorted.begin(), sorted.end(), s.cell);
    for (; c != sorted.end() && *c < s.end(); ++c)
      if ((*c - s.cell) % s.step == 0) found.push_back(*c);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
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
  if (marks_.empty()) forget_journal();
}

// Verbs

void Cells::seq_rm(int32_t seq, int32_t p0, int32_t p1) {
  if (seq != -1) require(seq, "seq");
  const Interval in(p0, p1);
  if (in.p0 >= in.p1) return;
  enter();
  Vector<Segment> segments;
  if (seq < 0) {
    atomically([&] {
      for (int32_t s = 0; s < n_seq_max_; ++s) {
        segments.clear();
        collect(s, in.p0, in.p1, segments);
        if (segments.empty()) continue;
        for (const Segment& x : segments) record(x);
        const bool bulk = many(segments.size());
        for (const Segment& x : segments) {
          forget(x, bulk);
          release(x);
          lower_heads(x);
        }
      }
    });
    return;
  }
  collect(seq, in.p0, in.p1, segments);
  if (segments.empty()) return;
  Vector<int32_t> rest(segments.size(), kNone);
  for (size_t i = 0; i < segments.size(); ++i) {
    const int32_t set = segments[i].owners;
    if (set == seq) continue;
    rest[i] = i > 0 && segments[i - 1].owners == set ? rest[i - 1] : sets_.without(set, seq);
  }
  for (const Segment& s : segments) record(s);
  Index& x = sequences_[static_cast<size_t>(seq)];
  try {
    x.runs.erase(in.p0, in.p1);
  } catch (const std::bad_alloc&) {
    x.stale = true;
    x.runs.clear();
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    if (rest[i] != kNone) {
      change_owners(s, rest[i]);
      continue;
    }
    release(s);
    lower_heads(s);
  }
}

void Cells::seq_cp(int32_t src, int32_t dst, int32_t p0, int32_t p1) {
  require(src, "src");
  require(dst, "dst");
  if (src == dst) return;
  if (n_streams() > 1)
    throw std::invalid_argument("sequences with cells of their own cannot share any");
  const Interval in(p0, p1);
  enter();
  Vector<Segment> segments;
  collect(src, in.p0, in.p1, segments);
  Vector<int32_t> more(segments.size());
  const bool new_sequence = runs(dst).empty();
  for (size_t i = 0; i < segments.size(); ++i)
    more[i] = i > 0 && segments[i - 1].owners == segments[i].owners
                  ? more[i - 1]
                  : sets_.with(segments[i].owners, dst);
  for (size_t i = 0; i < segments.size(); ++i)
    if (more[i] != segments[i].owners) record(segments[i]);
  const bool bulk = many(segments.size()) && !new_sequence;
  Index& x = sequences_[static_cast<size_t>(dst)];
  try {
    if (new_sequence && in.p0 <= seq_pos_min(src) && in.p1 > seq_pos_max(src)) {
      x.runs.copy(runs(src));
    } else if (new_sequence) {
      Vector<Run> pieces;
      runs(src).each(in.p0, in.p1, [&](const Run& r) { pieces.push_back(r); });
      x.runs.assign(pieces);
    } else if (!bulk) {
      for (size_t i = 0; i < segments.size(); ++i)
        if (more[i] != segments[i].owners) x.runs.insert(segments[i].run());
    }
    x.stale |= bulk;
  } catch (const std::bad_alloc&) {
    x.stale = true;
  }
  if (x.stale) x.runs.clear();
  for (size_t i = 0; i < segments.size(); ++i)
    if (more[i] != segments[i].owners) change_owners(segments[i], more[i]);
  if (llama_2024_) heads_[0] = 0;
}

void Cells::seq_keep(int32_t seq) {
  require(seq, "seq");
  enter();
  // In 2024 the head also fell to a cell that was already empty.
  int64_t first = size();
  if (llama_2024_) {
    first = free_.next(0);
    for (int64_t c = 0; c < first; ++c)
      if (!sets_.has(owners_[c], seq)) first = c;
  }
  atomically([&] {
    for (int32_t s = 0; s < n_seq_max_; ++s)
      if (s != seq) seq_rm(s, 0, kEnd);
  });
  if (first < size()) heads_[0] = std::min(heads_[0], first);
}

void Cells::seq_add(int32_t seq, int32_t p0, int32_t p1, int32_t delta) {
  require(seq, "seq");
  const Interval in(p0, p1);
  if (delta == 0 || in.p0 == in.p1) return;
  enter();
  Vector<Segment> segments;
  collect(seq, in.p0, in.p1, segments);
  for (const Segment& s : segments) {
    if (int64_t{s.pos} + s.len - 1 + delta >= kEnd)
      throw std::invalid_argument("delta " + std::to_string(delta) + " moves position " +
                                  std::to_string(s.pos + s.len - 1) + " out of range");
  }
  Vector<int64_t> first(heads_.size(), size());
  for (const Segment& s : segments) record(s);
  const bool together = move_together(segments, in.p0, in.p1);
  const bool bulk = many(segments.size());
  for (const Segment& s : segments)
    if (!together) forget(s, bulk);
  for (const Segment& s : segments) {
    const auto gone =
        static_cast<int32_t>(std::clamp<int64_t>(-(int64_t{s.pos} + delta), 0, s.len));
    if (gone > 0) {
      int64_t& f = first[static_cast<size_t>(s.cell / share())];
      f = std::min<int64_t>(f, s.cell);
      release({s.cell, gone, s.step, s.pos, s.base, s.owners});
    }
    if (gone == s.len) continue;
    const Segment rest{s.cell + gone * s.step, s.len - gone,  gone + 1 < s.len ? s.step : 1,
                       s.pos + gone + delta,   s.base + gone, s.owners};
    fill(&pos_[rest.cell], rest.len, rest.step, rest.pos, 1);
    moved_.add(rest.cell, rest.end(), rest.step);
    if (!together) learn(rest, bulk);
  }
  if (together) shift_runs(segments[0].owners, in.p0, in.p1, delta);
  const auto stream = static_cast<size_t>(stream_of(seq));
  heads_[stream] = first[stream] < size() ? first[stream] : static_cast<int64_t>(stream) * share();
}

void Cells::seq_div(int32_t seq, int32_t p0, int32_t p1, int32_t divisor) {
  require(seq, "seq");
  if (divisor < 1)
    throw std::invalid_argument("divisor must be 1 or more, not " + std::to_string(divisor));
  const Interval in(p0, p1);
  if (divisor == 1) return;
  enter();
  Vector<Segment> segments;
  collect(seq, in.p0, in.p1, segments);
  for (const Segment& s : segments) record(s);
  for (const Segment& s : segments) {
    stale(s);
    for (int64_t c = s.cell; c < s.end(); c += s.step) pos_[c] /= divisor;
    moved_.add(s.cell, s.end(), s.step);
  }
}

bool Cells::same_cells(int32_t a, int32_t b) const {
  require(a, "a");
  require(b, "b");
  for (int32_t set = 0; set < sets_.size(); ++set)
    if (sets_.cells(set) > 0 && sets_.has(set, a) != sets_.has(set, b)) return false;
  return true;
}

void Cells::clear() {
  enter();
  const int64_t end = top();
  record(0, end);
  for (Index& x : sequences_) {
    x.runs.clear();
    x.stale = false;
  }
  std::fill_n(pos_.begin(), end, -1);
  std::fill_n(base_.begin(), end, -1);
  std::fill_n(owners_.begin(), end, kNone);
  free_.add(0, end);
  occupied_.remove(0, end);
  moved_.remove(0, end);
  free_runs_.touch(0, end);
  for (int32_t set = 0; set < sets_.size(); ++set) sets_.count(set, -sets_.cells(set));
  for (size_t s = 0; s < heads_.size(); ++s) {
    heads_[s] = static_cast<int64_t>(s) * share();
    used_[s] = 0;
  }
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

void Cells::duplicate(const int64_t* from, const int64_t* to, int64_t n, int32_t seq, bool leave) {
  require(seq, "seq");
  enter();
  require_free(to, n);
  Vector<Segment> old, copies;
  Vector<int32_t> rest;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = from[i];
    if (c < 0 || c >= size() || owners_[c] == kNone || (leave && !sets_.has(owners_[c], seq)))
      throw std::invalid_argument("cell " + std::to_string(c) + " is not a cell of the sequence");
    if (leave && owners_[c] == seq)
      throw std::invalid_argument("cell " + std::to_string(c) + " is not shared");
    if (n_streams() > 1 && to[i] / share() != seq)
      throw std::invalid_argument("cell " + std::to_string(to[i]) +
                                  " is not in the share of sequence " + std::to_string(seq));
    if (i > 0 && copies.back().cell + copies.back().len == to[i] && c == from[i - 1] + 1 &&
        owners_[c] == old.back().owners && pos_[c] == pos_[c - 1] + 1 &&
        base_[c] == base_[c - 1] + 1) {
      ++old.back().len;
      ++copies.back().len;
      continue;
    }
    old.push_back({static_cast<int32_t>(c), 1, 1, pos_[c], base_[c], owners_[c]});
    copies.push_back({static_cast<int32_t>(to[i]), 1, 1, pos_[c], base_[c], seq});
    if (leave) rest.push_back(sets_.without(owners_[c], seq));
  }
  for (const Segment& s : copies) record(s.cell, s.len);  // what they replace
  if (leave)
    for (const Segment& s : old) record(s);
  const bool bulk = many(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (leave) {
      forget({old[i].cell, old[i].len, 1, old[i].pos, old[i].base, seq}, bulk);
      change_owners(old[i], rest[i]);
    }
    write(copies[i], extras_.empty() ? nullptr : &extras_[old[i].cell]);
    learn(copies[i], bulk);
  }
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

// Reading

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
