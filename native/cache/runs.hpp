// The cells of one sequence, in order of position, as runs: len tokens at positions pos, pos + 1,
// ... in cells cell, cell + step, ...  Sequences that are computed side by side lie in every n-th
// cell.
//
// Runs are kept in chunks, so that a change in the middle of a much scattered sequence moves few
// of them.  Positions may repeat (seq_div and seq_cp can make them), then runs overlap, and what
// would be a bisection becomes a walk over the chunks' headers.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/allocation.hpp"

namespace aleator::cache {

struct Run {
  int32_t pos, cell, len, step = 1;  // step is 1 if len is, and at least 1
  int32_t end() const { return pos + len; }
  int32_t at(int32_t i) const { return cell + i * step; }  // its i-th cell
  Run part(int32_t i, int32_t n) const { return {pos + i, at(i), n, n > 1 ? step : 1}; }
  // Takes in a run that continues it.
  bool join(const Run& next) {
    const int32_t gap = next.cell - at(len - 1);
    if (end() != next.pos || gap < 1 || (len > 1 && step != gap) ||
        (next.len > 1 && next.step != gap))
      return false;
    len += next.len;
    step = gap;
    return true;
  }
  bool before(const Run& other) const {
    return pos != other.pos ? pos < other.pos : cell < other.cell;
  }
};

class Runs {
 public:
  bool empty() const { return entries_.empty(); }
  int64_t cells() const { return cells_; }
  int32_t min() const { return entries_.empty() ? -1 : entries_.front().first.pos; }
  int32_t max() const;

  // All may throw bad_alloc, and must then be rebuilt with assign.
  void insert(Run run);
  void erase(Run run);  // which must be there
  void erase(int32_t p0, int32_t p1);
  void shift(int32_t p0, int32_t p1, int32_t delta);  // what would lie below 0 is erased
  void assign(Vector<Run>& runs);                     // sorts them
  void copy(const Runs& other);
  void clear();

  // f(run) for the parts of runs with positions in [p0, p1), in order.
  template <typename F>
  void each(int32_t p0, int32_t p1, F&& f) const {
    if (p0 >= p1) return;
    for (size_t e = start(p0); e < entries_.size(); ++e) {
      const Entry& entry = entries_[e];
      if (entry.first.pos >= p1) break;
      if (entry.max_end <= p0) continue;
      const Run* run = entry.chunk->runs;
      const Run* const last = run + entry.chunk->n;
      if (ordered_) run += skip(*entry.chunk, p0);
      for (; run < last && run->pos < p1; ++run) {
        if (run->end() <= p0) continue;
        const int32_t cut = run->pos < p0 ? p0 - run->pos : 0;
        const int32_t end = run->end() < p1 ? run->end() : p1;
        f(run->part(cut, end - run->pos - cut));
      }
    }
  }

  void check() const;

 private:
  static constexpr int32_t kChunk = 128;
  struct Chunk {
    int32_t n = 0;
    Run runs[kChunk];
  };
  struct Entry {
    Run first;  // a copy of the chunk's first run, whose len may be out of date
    int32_t max_end;
    std::unique_ptr<Chunk> chunk;
  };
  struct Place {
    size_t entry;
    int32_t index;
  };

  static std::unique_ptr<Chunk> new_chunk();
  static int32_t skip(const Chunk& chunk, int32_t p0);
  size_t start(int32_t p0) const;
  Place after(const Run& run) const;
  Place find(int32_t pos, int32_t cell) const;
  void insert_at(Place place, Run run);
  void remove_at(Place place);
  void refresh(Entry& entry);

  Vector<Entry> entries_;
  int64_t cells_ = 0;
  bool ordered_ = true;  // no two runs overlap in position
};

}  // namespace aleator::cache
