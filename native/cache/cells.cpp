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

// How many of x[0 .. n) are first, first + step, first + 2 step, ...; x[0] is first.
int64_t same(const int32_t* x, int64_t n, int32_t step) {
  const int32_t first = x[0];
  int64_t i = 1;
  for (; i + 64 <= n; i += 64) {
    uint32_t differences = 0;
    for (int64_t k = 0; k < 64; ++k)
      differences |= static_cast<uint32_t>(x[i + k] ^ (first + step * static_cast<int32_t>(i + k)));
    if (differences) break;
  }
  while (i < n && x[i] == first + step * static_cast<int32_t>(i)) ++i;
  return i;
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
      if (!found.empty() && found.back().end() == pos_[i] &&
          found.back().cell + found.back().len == cell)
        ++found.back().len;
      else
        found.push_back({pos_[i], cell, 1});
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
      x.runs.insert({s.pos, s.cell, s.len});
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
      x.runs.erase({s.pos, s.cell, s.len});
    } catch (const std::bad_alloc&) {
      x.stale = true;
      x.runs.clear();
    }
  }
}

// Arrays

template <typename F>
void Cells::each_segment(int64_t cell, int64_t len, F&& f) const {
  for (int64_t n; len > 0; cell += n, len -= n) {
    const int32_t set = owners_[cell];
    n = len;
    if (len > 1) {
      n = same(&owners_[cell], n, 0);
      if (set != kNone) {
        n = same(&pos_[cell], n, 1);
        n = same(&base_[cell], n, 1);
      }
    }
    f(Segment{static_cast<int32_t>(cell), static_cast<int32_t>(n), pos_[cell], base_[cell], set});
  }
}

void Cells::collect(int32_t seq, int32_t p0, int32_t p1, Vector<Segment>& out) const {
  runs(seq).each(p0, p1, [&](const Run& r) {
    each_segment(r.cell, r.len, [&](const Segment& s) { out.push_back(s); });
  });
}

// Fills free cells.
void Cells::write(const Segment& s, const Extra* extras) noexcept {
  if (!extras_.empty()) std::copy_n(extras, s.len, &extras_[s.cell]);
  std::iota(&pos_[s.cell], &pos_[s.cell] + s.len, s.pos);
  std::iota(&base_[s.cell], &base_[s.cell] + s.len, s.base);
  std::fill_n(&owners_[s.cell], s.len, s.owners);
  free_.remove(s.cell, s.cell + s.len);
  occupied_.add(s.cell, s.cell + s.len);
  free_runs_.touch(s.cell, s.cell + s.len);
  if (s.pos != s.base) moved_.add(s.cell, s.cell + s.len);
  sets_.count(s.owners, s.len);
  for (int64_t c = s.cell, end = c + s.len; c < end;) {
    const int64_t stream = c / share(), stop = std::min(end, (stream + 1) * share());
    used_[static_cast<size_t>(stream)] += stop - c;
    c = stop;
  }
}

// Empties cells that all have the same owners.
void Cells::release(int64_t cell, int64_t len, int32_t owners) noexcept {
  std::fill_n(&pos_[cell], len, -1);
  std::fill_n(&base_[cell], len, -1);
  std::fill_n(&owners_[cell], len, kNone);
  free_.add(cell, cell + len);
  occupied_.remove(cell, cell + len);
  free_runs_.touch(cell, cell + len);
  moved_.remove(cell, cell + len);
  sets_.count(owners, -len);
  for (int64_t c = cell, end = c + len; c < end;) {
    const int64_t stream = c / share(), stop = std::min(end, (stream + 1) * share());
    used_[static_cast<size_t>(stream)] -= stop - c;
    c = stop;
  }
}

void Cells::change_owners(const Segment& s, int32_t owners) noexcept {
  std::fill_n(&owners_[s.cell], s.len, owners);
  sets_.count(s.owners, -s.len);
  sets_.count(owners, s.len);
}

// A search starts no later than the first cell that was freed.
void Cells::lower_heads(int64_t cell, int64_t len) {
  for (int64_t c = cell, end = c + len; c < end; c = (c / share() + 1) * share()) {
    int64_t& head = heads_[static_cast<size_t>(c / share())];
    head = std::min(head, c);
  }
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
void Cells::record(int64_t cell, int64_t len) {
  if (marks_.empty()) return;
  each_segment(cell, len, [&](const Segment& s) {
    records_.push_back(s);
    if (extras_.empty() || s.owners == kNone) return;
    try {
      old_extras_.insert(old_extras_.end(), &extras_[s.cell], &extras_[s.cell] + s.len);
    } catch (...) {
      records_.pop_back();
      throw;
    }
  });
}

void Cells::begin() {
  if (marks_.empty()) {
    forget_journal();
    sets_.sweep();
    done_.reserve(1);
  }
  marks_.push_back({records_.size(), heads_, version_});
}

void Cells::commit() {
  if (marks_.empty()) return;
  if (marks_.size() == 1) done_.push_back(std::move(marks_[0]));
  marks_.pop_back();
}

void Cells::rollback() noexcept {
  Vector<Mark>& marks = marks_.empty() ? done_ : marks_;
  if (marks.empty()) return;
  Mark& mark = marks.back();
  while (records_.size() > mark.records) {
    const Segment old = records_.back();
    records_.pop_back();
    each_segment(old.cell, old.len, [&](const Segment& now) {
      if (now.owners == kNone) return;
      unindex(now);
      release(now.cell, now.len, now.owners);
    });
    if (old.owners == kNone) continue;
    const Extra* extras = nullptr;
    if (!extras_.empty()) extras = &old_extras_[old_extras_.size() - static_cast<size_t>(old.len)];
    write(old, extras);
    if (extras) old_extras_.resize(old_extras_.size() - static_cast<size_t>(old.len));
    index(old);
  }
  std::copy(mark.heads.begin(), mark.heads.end(), heads_.begin());
  version_ = mark.version;
  marks.pop_back();
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

// Placement

std::vector<int64_t> Cells::find(int64_t n, bool contiguous, int32_t stream) const {
  if (n < 0) throw std::invalid_argument("n must not be negative, not " + std::to_string(n));
  if (stream < 0 || stream >= n_streams())
    throw std::invalid_argument("stream must lie in [0, " + std::to_string(n_streams()) +
                                "), not " + std::to_string(stream));
  std::vector<int64_t> found;
  const int64_t begin = stream * share(), end = begin + share();
  if (n == 0 || n > share() - used_[static_cast<size_t>(stream)]) return found;
  // Far past what is used, low cells are likely free: starting there keeps the attended range
  // short.
  int64_t cell = heads_[static_cast<size_t>(stream)];
  if (cell - begin > used_[static_cast<size_t>(stream)] + 2 * n) cell = begin;
  if (contiguous) {
    int64_t start = free_runs_.find(free_, n, cell);
    if (start < 0 || start + n > end) start = free_runs_.find(free_, n, begin);
    if (start < 0 || start + n > end) return found;
    found.resize(static_cast<size_t>(n));
    std::iota(found.begin(), found.end(), start);
    return found;
  }
  found.reserve(static_cast<size_t>(n));
  while (static_cast<int64_t>(found.size()) < n) {
    cell = free_.next(cell);
    if (cell >= end) {
      cell = begin;
      continue;
    }
    const int64_t left = n - static_cast<int64_t>(found.size());
    const int64_t stop = std::min({occupied_.next(cell), end, cell + left});
    for (; cell < stop; ++cell) found.push_back(cell);
  }
  return found;
}

int32_t Cells::set_of(const uint64_t* owners) {
  int32_t count = 0, only = 0;
  for (int64_t w = 0; w < words(); ++w)
    if (owners[w]) {
      count += __builtin_popcountll(owners[w]);
      only = static_cast<int32_t>(w * 64 + __builtin_ctzll(owners[w]));
    }
  const int32_t spare = n_seq_max_ % 64;
  if (count == 0 || (spare && owners[words() - 1] >> spare))
    throw std::invalid_argument("a token's owners must be one or more ids below n_seq_max");
  if (count == 1) return only;
  if (n_streams() > 1)
    throw std::invalid_argument(
        "a token cannot have several owners where every sequence has cells of its own (policy "
        "\"streams\")");
  Vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int64_t w = 0; w < words(); ++w)
    for (uint64_t bits = owners[w]; bits; bits &= bits - 1)
      ids.push_back(static_cast<int32_t>(w * 64 + __builtin_ctzll(bits)));
  return sets_.of(ids);
}

std::vector<int64_t> Cells::place(const int32_t* positions, const uint64_t* owners,
                                  const Extra* extras, int64_t n, bool contiguous) {
  std::vector<int64_t> cells;
  if (n_streams() == 1) {
    cells = find(n, contiguous);
  } else {
    std::vector<int32_t> stream(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) stream[static_cast<size_t>(i)] = set_of(owners + i * words());
    cells.resize(static_cast<size_t>(n), -1);
    for (int64_t i = 0; i < n; ++i) {
      if (cells[static_cast<size_t>(i)] >= 0) continue;
      const int32_t s = stream[static_cast<size_t>(i)];
      const auto own = find(std::count(stream.begin(), stream.end(), s), contiguous, s);
      if (own.empty()) {
        cells.clear();
        break;
      }
      for (size_t k = static_cast<size_t>(i), used = 0; k < cells.size(); ++k)
        if (stream[k] == s) cells[k] = own[used++];
    }
  }
  if (static_cast<int64_t>(cells.size()) < n)
    throw std::invalid_argument("there are not " + std::to_string(n) + " free cells");
  put(cells.data(), positions, owners, extras, n);
  return cells;
}

void Cells::require_free(const int64_t* cells, int64_t n) const {
  int64_t previous = -1;
  bool ascending = true;
  for (int64_t i = 0; i < n; ++i) {
    if (cells[i] < 0 || cells[i] >= size() || !free_.has(cells[i]))
      throw std::invalid_argument("cell " + std::to_string(cells[i]) + " is not a free cell");
    ascending &= cells[i] > previous;
    previous = cells[i];
  }
  if (ascending) return;
  std::vector<int64_t> sorted(cells, cells + n);
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw std::invalid_argument("a cell is named twice");
}

void Cells::put(const int64_t* cells, const int32_t* positions, const uint64_t* owners,
                const Extra* extras, int64_t n) {
  if ((extras != nullptr) != !extras_.empty())
    throw std::invalid_argument(extras ? "these cells have no extras"
                                       : "these cells need extras: y, x and token of each");
  if (n == 0) return;
  enter();
  require_free(cells, n);
  Vector<Segment> segments;
  const uint64_t* known = nullptr;
  int32_t set = kNone;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t* row = owners + i * words();
    if (positions[i] < 0 || positions[i] == kEnd)
      throw std::invalid_argument("a position must lie in [0, 2^31 - 1), not " +
                                  std::to_string(positions[i]));
    if (!known || std::memcmp(row, known, static_cast<size_t>(words()) * 8) != 0)
      set = set_of(known = row);
    if (n_streams() > 1 && cells[i] / share() != set)
      throw std::invalid_argument("cell " + std::to_string(cells[i]) +
                                  " is not in the share of sequence " + std::to_string(set));
    if (!segments.empty()) {
      Segment& last = segments.back();
      if (last.owners == set && last.cell + last.len == cells[i] &&
          last.pos + last.len == positions[i]) {
        ++last.len;
        continue;
      }
    }
    segments.push_back({static_cast<int32_t>(cells[i]), 1, positions[i], positions[i], set});
  }
  for (const Segment& s : segments) record(s.cell, s.len);
  for (const Segment& s : segments) {
    write(s, extras);
    index(s);
    if (extras) extras += s.len;
  }
  if (n_streams() == 1)
    advance_head(0, cells[n - 1]);
  else
    for (const Segment& s : segments) advance_head(stream_of(s.owners), s.cell + s.len - 1);
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
        for (const Segment& x : segments) record(x.cell, x.len);
        const bool bulk = many(segments.size());
        for (const Segment& x : segments) {
          forget(x, bulk);
          release(x.cell, x.len, x.owners);
          lower_heads(x.cell, x.len);
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
  for (const Segment& s : segments) record(s.cell, s.len);
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
    release(s.cell, s.len, s.owners);
    lower_heads(s.cell, s.len);
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
    if (more[i] != segments[i].owners) record(segments[i].cell, segments[i].len);
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
        if (more[i] != segments[i].owners)
          x.runs.insert({segments[i].pos, segments[i].cell, segments[i].len});
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
  for (const Segment& s : segments) record(s.cell, s.len);
  const bool bulk = many(segments.size());
  for (const Segment& s : segments) forget(s, bulk);
  for (const Segment& s : segments) {
    const auto gone =
        static_cast<int32_t>(std::clamp<int64_t>(-(int64_t{s.pos} + delta), 0, s.len));
    if (gone > 0) {
      int64_t& f = first[static_cast<size_t>(s.cell / share())];
      f = std::min<int64_t>(f, s.cell);
      release(s.cell, gone, s.owners);
    }
    if (gone == s.len) continue;
    const Segment rest{s.cell + gone, s.len - gone, s.pos + gone + delta, s.base + gone, s.owners};
    std::iota(&pos_[rest.cell], &pos_[rest.cell] + rest.len, rest.pos);
    moved_.add(rest.cell, rest.cell + rest.len);
    learn(rest, bulk);
  }
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
  for (const Segment& s : segments) record(s.cell, s.len);
  for (const Segment& s : segments) {
    stale(s);
    for (int32_t i = 0; i < s.len; ++i) pos_[s.cell + i] /= divisor;
    moved_.add(s.cell, s.cell + s.len);
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
  runs(seq).each(in.p0, in.p1, [&](const Run& r) { out.push_back(r); });
  return out;
}

std::vector<int64_t> Cells::shared(int32_t seq, int32_t p0, int32_t p1) const {
  const Interval in(p0, p1);
  std::vector<int64_t> cells;
  runs(seq).each(in.p0, in.p1, [&](const Run& r) {
    for (int32_t c = r.cell; c < r.cell + r.len; ++c)
      if (owners_[c] != seq) cells.push_back(c);
  });
  return cells;
}

std::vector<int32_t> Cells::sharers(int32_t seq, int32_t p0, int32_t p1) const {
  const Interval in(p0, p1);
  std::vector<int32_t> ids, sets;
  runs(seq).each(in.p0, in.p1, [&](const Run& r) {
    for (int64_t c = r.cell, n; c < r.cell + r.len; c += n) {
      n = same(&owners_[c], r.cell + r.len - c, 0);
      if (sets.empty() || sets.back() != owners_[c]) sets.push_back(owners_[c]);
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
    old.push_back({static_cast<int32_t>(c), 1, pos_[c], base_[c], owners_[c]});
    copies.push_back({static_cast<int32_t>(to[i]), 1, pos_[c], base_[c], seq});
    if (leave) rest.push_back(sets_.without(owners_[c], seq));
  }
  for (const Segment& s : copies) record(s.cell, s.len);
  if (leave)
    for (const Segment& s : old) record(s.cell, s.len);
  const bool bulk = many(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (leave) {
      forget({old[i].cell, old[i].len, old[i].pos, old[i].base, seq}, bulk);
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

// Defragmentation: what llama.cpp did until August 2025

std::vector<Move> Cells::defrag_plan(int64_t max_moves) const {
  std::vector<Move> moves;
  if (n_streams() > 1) return moves;
  const int64_t n_used = used();
  int64_t end = top();  // cells at or after this are planned to move
  for (int64_t hole = free_.next(0); hole < n_used && max_moves != 0;) {
    const int64_t stop = std::min(occupied_.next(hole), n_used);
    // The last stop - hole used cells, in ascending order, fill it.
    int64_t first = end;
    for (int64_t left = stop - hole; left > 0;) {
      const int64_t last = occupied_.previous(first - 1), before = free_.previous(last);
      first = std::max(before + 1, last + 1 - left);
      left -= last + 1 - first;
    }
    int64_t to = hole;
    for (int64_t c = first; to < stop; c = occupied_.next(c)) {
      if (max_moves == 0) return moves;
      const int64_t n = std::min({free_.next(c), end, c + stop - to}) - c;
      moves.push_back({c, to, n});
      --max_moves;
      to += n, c += n;
    }
    end = first;
    hole = free_.next(stop);
  }
  return moves;
}

void Cells::move(const std::vector<Move>& moves) {
  if (moves.empty()) return;
  enter();
  Vector<Segment> old;
  Vector<int32_t> to;
  for (const Move& m : moves) {
    if (m.n < 1 || m.from < 0 || m.to < 0 || m.from + m.n > size() || m.to + m.n > size() ||
        free_.next(m.from) < m.from + m.n || occupied_.next(m.to) < m.to + m.n)
      throw std::invalid_argument("a move must go from used cells to free ones");
    each_segment(m.from, m.n, [&](const Segment& s) {
      old.push_back(s);
      to.push_back(static_cast<int32_t>(m.to + s.cell - m.from));
    });
  }
  for (size_t i = 0; i < old.size(); ++i) {
    record(old[i].cell, old[i].len);
    record(to[i], old[i].len);
  }
  const bool bulk = many(old.size());
  for (const Segment& s : old) {
    forget(s, bulk);
    release(s.cell, s.len, s.owners);
  }
  for (size_t i = 0; i < old.size(); ++i) {
    Segment s = old[i];
    s.cell = to[i];
    write(s, extras_.empty() ? nullptr : &extras_[old[i].cell]);
    learn(s, bulk);
  }
  if (n_streams() == 1) heads_[0] = used();
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
      for (int32_t i = 0; i < x.len; ++i) listed.push_back({x.pos + i, x.cell + i, 1});
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
