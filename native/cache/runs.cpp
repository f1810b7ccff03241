#include "cache/runs.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace aleator::cache {

int32_t Runs::max() const {
  if (runs_.empty()) return -1;
  if (ordered_) return runs_.back().end() - 1;
  int32_t end = 0;
  for (const Run& r : runs_) end = std::max(end, r.end());
  return end - 1;
}

// The first run that can end after p0.
size_t Runs::start(int32_t p0) const {
  if (!ordered_) return 0;
  const auto at =
      std::partition_point(runs_.begin(), runs_.end(), [&](const Run& r) { return r.end() <= p0; });
  return size_t(at - runs_.begin());
}

// The run that holds a position and its cell.
size_t Runs::find(int32_t pos, int32_t cell) const {
  for (size_t i = start(pos); i < runs_.size() && runs_[i].pos <= pos; ++i)
    if (pos < runs_[i].end() && runs_[i].at(pos - runs_[i].pos) == cell) return i;
  throw std::logic_error("a run is not in its sequence");
}

void Runs::insert(Run run) {
  // After all that are before it or equal.
  const auto at = std::partition_point(runs_.begin(), runs_.end(),
                                       [&](const Run& r) { return !run.before(r); });
  Run* const previous = at == runs_.begin() ? nullptr : &at[-1];
  Run* const next = at == runs_.end() ? nullptr : &at[0];
  if ((previous && previous->end() > run.pos) || (next && run.end() > next->pos)) ordered_ = false;
  cells_ += run.len;
  if (previous && previous->join(run)) {
    if (next && previous->join(*next)) runs_.erase(at);
  } else if (next && run.join(*next)) {
    *next = run;
  } else {
    runs_.insert(at, run);
  }
}

void Runs::erase(Run run) {
  while (run.len > 0) {
    const size_t at = find(run.pos, run.cell);
    Run& found = runs_[at];
    const int32_t n = run.step == found.step ? std::min(run.len, found.end() - run.pos) : 1;
    const int32_t left = run.pos - found.pos, right = found.len - left - n;
    const Run rest = found.part(left + n, right);
    cells_ -= n;
    run = run.part(n, run.len - n);
    if (left == 0 && right > 0 && ordered_) {
      found = rest;
      continue;
    }
    if (left > 0) {
      found = found.part(0, left);
    } else {
      runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(at));
      if (runs_.empty()) ordered_ = true;
    }
    if (right > 0) {
      cells_ -= right;
      insert(rest);
    }
  }
}

void Runs::erase(int32_t p0, int32_t p1) {
  if (runs_.empty() || p0 >= p1) return;
  if (p0 <= min() && p1 > max()) return clear();
  if (ordered_ && p1 > max()) {  // the tail
    for (; runs_.back().pos >= p0; runs_.pop_back()) cells_ -= runs_.back().len;
    Run& cut = runs_.back();
    if (cut.end() <= p0) return;
    cells_ -= cut.end() - p0;
    cut = cut.part(0, p0 - cut.pos);
    return;
  }
  Vector<Run> pieces;
  each(p0, p1, [&](const Run& r) { pieces.push_back(r); });
  if (pieces.size() < 256) {
    for (const Run& r : pieces) erase(r);
    return;
  }
  pieces.clear();
  const auto keep = [&](const Run& r) { pieces.push_back(r); };
  each(0, p0, keep);
  each(p1, std::numeric_limits<int32_t>::max(), keep);
  assign(pieces);
}

void Runs::shift(int32_t p0, int32_t p1, int32_t delta) {
  if (delta < 0) erase(p0, int32_t(std::min<int64_t>(p1, -int64_t{delta})));
  if (runs_.empty()) return;
  if (p0 <= min() && p1 > max()) {
    for (Run& r : runs_) r.pos += delta;
    return;
  }
  Vector<Run> pieces;
  const auto keep = [&](const Run& r) { pieces.push_back(r); };
  each(0, p0, keep);
  each(p0, p1, [&](Run r) {
    r.pos += delta;
    pieces.push_back(r);
  });
  each(p1, std::numeric_limits<int32_t>::max(), keep);
  assign(pieces);
}

void Runs::assign(Vector<Run>& runs) {
  clear();
  const auto before = [](const Run& a, const Run& b) { return a.before(b); };
  if (!std::is_sorted(runs.begin(), runs.end(), before))
    std::sort(runs.begin(), runs.end(), before);
  size_t kept = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    cells_ += runs[i].len;
    if (kept > 0) {
      Run& last = runs[kept - 1];
      if (last.join(runs[i])) continue;
      if (last.end() > runs[i].pos) ordered_ = false;
    }
    runs[kept++] = runs[i];
  }
  runs.resize(kept);
  runs_.swap(runs);
}

void Runs::clear() {
  runs_.clear();
  cells_ = 0;
  ordered_ = true;
}

void Runs::check() const {
  const auto require = [](bool right) {
    if (!right) throw std::logic_error("the runs of a sequence are damaged");
  };
  int64_t cells = 0;
  const Run* previous = nullptr;
  for (const Run& r : runs_) {
    require(r.len > 0 && r.pos >= 0 && r.pos <= std::numeric_limits<int32_t>::max() - r.len);
    require(r.step > 0 && (r.len > 1 || r.step == 1));
    require(!previous || (previous->before(r) && (!ordered_ || previous->end() <= r.pos)));
    previous = &r;
    cells += r.len;
  }
  require(cells == cells_);
}

}  // namespace aleator::cache
