// The cells of one sequence, in order of position, as runs: len tokens at positions pos, pos + 1,
// ... in cells cell, cell + step, ...  Sequences that are computed side by side lie in every n-th
// cell.
//
// Positions may repeat (seq_div and seq_cp can make them), then runs overlap, and what would be a
// bisection becomes a walk.
#pragma once

#include <cstdint>

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
  bool empty() const { return runs_.empty(); }
  int64_t cells() const { return cells_; }
  int32_t min() const { return runs_.empty() ? -1 : runs_.front().pos; }
  int32_t max() const;

  // All may throw bad_alloc, and must then be rebuilt with assign.
  void insert(Run run);
  void erase(Run run);  // which must be there
  void erase(int32_t p0, int32_t p1);
  void shift(int32_t p0, int32_t p1, int32_t delta);  // what would lie below 0 is erased
  void assign(Vector<Run>& runs);                     // sorts them
  void clear();

  // f(run) for the parts of runs with positions in [p0, p1), in order.
  template <typename F>
  void each(int32_t p0, int32_t p1, F&& f) const {
    if (p0 >= p1) return;
    for (size_t i = start(p0); i < runs_.size() && runs_[i].pos < p1; ++i) {
      const Run& run = runs_[i];
      if (run.end() <= p0) continue;
      const int32_t cut = run.pos < p0 ? p0 - run.pos : 0;
      const int32_t end = run.end() < p1 ? run.end() : p1;
      f(run.part(cut, end - run.pos - cut));
    }
  }

  void check() const;

 private:
  size_t start(int32_t p0) const;
  size_t find(int32_t pos, int32_t cell) const;

  Vector<Run> runs_;  // in the order of before()
  int64_t cells_ = 0;
  bool ordered_ = true;  // no two runs overlap in position
};

}  // namespace aleator::cache
