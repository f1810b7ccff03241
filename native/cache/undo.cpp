// Cells as they were: records of changes, and taking them back.
#include <algorithm>
#include <utility>

#include "cache/cell_arrays.hpp"

namespace aleator::cache {

// What the last outermost begin left; numbers of sets without cells may be used again.
void Cells::forget_journal() {
  if (!marks_.empty()) return;
  records_.clear();
  old_extras_.clear();
  done_.clear();
  sets_.sweep();
}

// Every change starts here.
void Cells::enter() {
  forget_journal();
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
    const auto more = size_t(s.len);
    if (old_extras_.capacity() - old_extras_.size() < more)
      old_extras_.reserve(2 * old_extras_.size() + more);
  }
  records_.push_back(s);
  if (extras)
    for (int64_t c = s.cell; c < s.end(); c += s.step) old_extras_.push_back(extras_[c]);
}

void Cells::begin() {
  forget_journal();
  done_.reserve(1);
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
    if (!extras_.empty()) extras = &old_extras_[old_extras_.size() - size_t(old.len)];
    write(old, extras);
    if (extras) old_extras_.resize(old_extras_.size() - size_t(old.len));
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

}  // namespace aleator::cache
