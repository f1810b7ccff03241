#include "cache/runs.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace aleator::cache {

std::unique_ptr<Runs::Chunk> Runs::new_chunk() {
  count_allocation();
  return std::make_unique<Chunk>();
}

int32_t Runs::max() const {
  if (entries_.empty()) return -1;
  if (ordered_) return entries_.back().max_end - 1;
  int32_t end = 0;
  for (const Entry& e : entries_) end = std::max(end, e.max_end);
  return end - 1;
}

// The first run of a chunk that ends after p0, where runs do not overlap.
int32_t Runs::skip(const Chunk& chunk, int32_t p0) {
  const Run* const run = std::partition_point(chunk.runs, chunk.runs + chunk.n,
                                              [&](const Run& r) { return r.end() <= p0; });
  return static_cast<int32_t>(run - chunk.runs);
}

// The first entry that can have a run ending after p0.
size_t Runs::start(int32_t p0) const {
  if (!ordered_) return 0;
  const auto e = std::partition_point(entries_.begin(), entries_.end(),
                                      [&](const Entry& x) { return x.max_end <= p0; });
  return static_cast<size_t>(e - entries_.begin());
}

// Where a run belongs: after all that are before it or equal.
Runs::Place Runs::after(const Run& run) const {
  const auto e = std::partition_point(entries_.begin(), entries_.end(),
                                      [&](const Entry& x) { return !run.before(x.first); });
  if (e == entries_.begin()) return {0, 0};
  const Chunk& chunk = *e[-1].chunk;
  const Run* const at = std::partition_point(chunk.runs, chunk.runs + chunk.n,
                                             [&](const Run& r) { return !run.before(r); });
  return {static_cast<size_t>(e - entries_.begin()) - 1, static_cast<int32_t>(at - chunk.runs)};
}

// The run that holds a position and its cell.
Runs::Place Runs::find(int32_t pos, int32_t cell) const {
  for (size_t e = start(pos); e < entries_.size() && entries_[e].first.pos <= pos; ++e) {
    if (entries_[e].max_end <= pos) continue;
    const Chunk& chunk = *entries_[e].chunk;
    for (int32_t i = ordered_ ? skip(chunk, pos) : 0; i < chunk.n && chunk.runs[i].pos <= pos; ++i)
      if (pos < chunk.runs[i].end() && chunk.runs[i].at(pos - chunk.runs[i].pos) == cell)
        return {e, i};
  }
  throw std::logic_error("a run is not in its sequence");
}

void Runs::refresh(Entry& entry) {
  const Chunk& chunk = *entry.chunk;
  entry.first = chunk.runs[0];
  if (ordered_) {
    entry.max_end = chunk.runs[chunk.n - 1].end();
    return;
  }
  entry.max_end = 0;
  for (int32_t i = 0; i < chunk.n; ++i)
    entry.max_end = std::max(entry.max_end, chunk.runs[i].end());
}

void Runs::insert_at(Place place, Run run) {
  if (entries_.empty()) entries_.push_back({run, run.end(), new_chunk()});
  Entry* entry = &entries_[place.entry];
  if (entry->chunk->n == kChunk) {
    // A full chunk is halved, but the last one, to which sequences grow, stays full.
    const bool append = place.index == kChunk && place.entry + 1 == entries_.size();
    auto half = new_chunk();
    Chunk& old = *entry->chunk;
    const int32_t kept = append ? kChunk : kChunk / 2;
    half->n = kChunk - kept;
    std::copy(old.runs + kept, old.runs + kChunk, half->runs);
    entries_.insert(entries_.begin() + static_cast<ptrdiff_t>(place.entry) + 1,
                    {half->runs[0], 0, std::move(half)});
    entry = &entries_[place.entry];
    entry->chunk->n = kept;
    if (!append) {
      refresh(*entry);
      refresh(entry[1]);
    }
    if (place.index > kept || append) {
      place = {place.entry + 1, place.index - kept};
      ++entry;
    }
  }
  Chunk& chunk = *entry->chunk;
  std::copy_backward(chunk.runs + place.index, chunk.runs + chunk.n, chunk.runs + chunk.n + 1);
  chunk.runs[place.index] = run;
  ++chunk.n;
  refresh(*entry);
}

void Runs::remove_at(Place place) {
  Entry& entry = entries_[place.entry];
  Chunk& chunk = *entry.chunk;
  std::copy(chunk.runs + place.index + 1, chunk.runs + chunk.n, chunk.runs + place.index);
  if (--chunk.n > 0)
    refresh(entry);
  else
    entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(place.entry));
  if (entries_.empty()) ordered_ = true;
}

void Runs::insert(Run run) {
  const Place at = after(run);
  Run* previous = nullptr;
  Run* next = nullptr;
  if (!entries_.empty()) {
    Chunk& chunk = *entries_[at.entry].chunk;
    if (at.index > 0) previous = &chunk.runs[at.index - 1];
    if (at.index < chunk.n)
      next = &chunk.runs[at.index];
    else if (at.entry + 1 < entries_.size())
      next = &entries_[at.entry + 1].chunk->runs[0];
  }
  if ((previous && previous->end() > run.pos) || (next && run.end() > next->pos)) ordered_ = false;
  cells_ += run.len;
  if (previous && previous->join(run)) {
    if (next && at.index < entries_[at.entry].chunk->n && previous->join(*next))
      remove_at(at);
    else
      refresh(entries_[at.entry]);
  } else if (next && run.join(*next)) {
    *next = run;
    refresh(entries_[at.entry + (at.index == entries_[at.entry].chunk->n)]);
  } else {
    insert_at(at, run);
  }
}

void Runs::erase(Run run) {
  while (run.len > 0) {
    const Place at = find(run.pos, run.cell);
    Run& found = entries_[at.entry].chunk->runs[at.index];
    const int32_t n = run.step == found.step ? std::min(run.len, found.end() - run.pos) : 1;
    const int32_t left = run.pos - found.pos, right = found.len - left - n;
    const Run rest = found.part(left + n, right);
    cells_ -= n;
    run = run.part(n, run.len - n);
    if (left > 0) {
      found = found.part(0, left);
      refresh(entries_[at.entry]);
      if (right > 0) {
        cells_ -= right;
        insert(rest);
      }
    } else if (right > 0 && ordered_) {
      found = rest;
      refresh(entries_[at.entry]);
    } else {
      remove_at(at);
      if (right > 0) {
        cells_ -= right;
        insert(rest);
      }
    }
  }
}

void Runs::erase(int32_t p0, int32_t p1) {
  if (entries_.empty() || p0 >= p1) return;
  if (p0 <= min() && p1 > max()) return clear();
  if (ordered_ && p1 > max()) {  // the tail
    int64_t removed = 0;
    while (!entries_.empty() && entries_.back().first.pos >= p0) {
      const Chunk& chunk = *entries_.back().chunk;
      for (int32_t i = 0; i < chunk.n; ++i) removed += chunk.runs[i].len;
      entries_.pop_back();
    }
    Entry& last = entries_.back();
    Chunk& chunk = *last.chunk;
    while (chunk.runs[chunk.n - 1].pos >= p0) removed += chunk.runs[--chunk.n].len;
    Run& cut = chunk.runs[chunk.n - 1];
    if (cut.end() > p0) {
      removed += cut.end() - p0;
      cut = cut.part(0, p0 - cut.pos);
    }
    refresh(last);
    cells_ -= removed;
    return;
  }
  Vector<Run> pieces;
  each(p0, p1, [&](const Run& r) { pieces.push_back(r); });
  if (pieces.size() < 2 * kChunk) {
    for (const Run& r : pieces) erase(r);
    return;
  }
  pieces.clear();
  const int32_t end = max() + 1;
  each(0, p0, [&](const Run& r) { pieces.push_back(r); });
  each(p1, end, [&](const Run& r) { pieces.push_back(r); });
  assign(pieces);
}

void Runs::shift(int32_t p0, int32_t p1, int32_t delta) {
  if (delta < 0) erase(p0, static_cast<int32_t>(std::min<int64_t>(p1, -int64_t{delta})));
  if (entries_.empty()) return;
  if (p0 <= min() && p1 > max()) {
    for (Entry& e : entries_) {
      e.first.pos += delta;
      e.max_end += delta;
      for (int32_t i = 0; i < e.chunk->n; ++i) e.chunk->runs[i].pos += delta;
    }
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
    if (kept > 0) {
      Run& last = runs[kept - 1];
      if (last.join(runs[i])) continue;
      if (last.end() > runs[i].pos) ordered_ = false;
    }
    runs[kept++] = runs[i];
  }
  entries_.reserve((kept + kChunk - 1) / kChunk);
  for (size_t i = 0; i < kept; i += kChunk) {
    auto chunk = new_chunk();
    chunk->n = static_cast<int32_t>(std::min<size_t>(kChunk, kept - i));
    std::copy_n(runs.begin() + static_cast<ptrdiff_t>(i), chunk->n, chunk->runs);
    for (int32_t k = 0; k < chunk->n; ++k) cells_ += chunk->runs[k].len;
    entries_.push_back({chunk->runs[0], 0, std::move(chunk)});
    refresh(entries_.back());
  }
}

void Runs::copy(const Runs& other) {
  clear();
  entries_.reserve(other.entries_.size());
  for (const Entry& e : other.entries_) {
    auto chunk = new_chunk();
    chunk->n = e.chunk->n;
    std::copy_n(e.chunk->runs, chunk->n, chunk->runs);
    entries_.push_back({e.first, e.max_end, std::move(chunk)});
  }
  cells_ = other.cells_;
  ordered_ = other.ordered_;
}

void Runs::clear() {
  entries_.clear();
  cells_ = 0;
  ordered_ = true;
}

void Runs::check() const {
  const auto require = [](bool right) {
    if (!right) throw std::logic_error("the runs of a sequence are damaged");
  };
  int64_t cells = 0;
  const Run* previous = nullptr;
  for (const Entry& e : entries_) {
    require(e.chunk->n > 0 && e.chunk->n <= kChunk);
    require(e.first.pos == e.chunk->runs[0].pos && e.first.cell == e.chunk->runs[0].cell);
    int32_t end = 0;
    for (int32_t i = 0; i < e.chunk->n; ++i) {
      const Run& r = e.chunk->runs[i];
      require(r.len > 0 && r.pos >= 0 && r.pos <= std::numeric_limits<int32_t>::max() - r.len);
      require(r.step > 0 && (r.len > 1 || r.step == 1));
      if (previous) {
        require(previous->before(r));
        if (ordered_) require(previous->end() <= r.pos);
      }
      previous = &r;
      end = std::max(end, r.end());
      cells += r.len;
    }
    require(end == e.max_end);
  }
  require(cells == cells_);
}

}  // namespace aleator::cache
