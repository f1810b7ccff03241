#include "cache/states.hpp"

#include <stdexcept>
#include <string>

#include "errors.hpp"

namespace aleator::cache {

States::States(int32_t n_rows)
    : holders_(static_cast<size_t>(n_rows < 0 ? 0 : n_rows)), free_(n_rows < 1 ? 1 : n_rows, true) {
  if (n_rows < 1) refuse("n_rows must be 1 or more");
}

const States::History* States::history(int32_t seq) const {
  const auto found = book_.find(seq);
  return found == book_.end() ? nullptr : &found->second;
}

std::vector<int32_t> States::free_rows(int64_t n) const {
  std::vector<int32_t> rows;
  for (int64_t row = free_.next(0); row < n_rows() && n > 0; row = free_.next(row + 1), --n)
    rows.push_back(static_cast<int32_t>(row));
  return rows;
}

int64_t States::held(int32_t first) const {
  std::vector<bool> seen(holders_.size());
  int64_t n = 0;
  const auto count = [&](const Book& book) {
    for (auto at = book.lower_bound(first); at != book.end(); ++at)
      for (const auto& [row, position] : at->second) {
        n += !seen[row];
        seen[row] = true;
      }
  };
  count(book_);
  for (const Frame& frame : frames_) count(frame.before);
  return n;
}

void States::grow(int32_t n) {
  if (n < 1) return;
  Bitmap free(n_rows() + n, false);
  for (int64_t row = free_.next(0); row < n_rows(); row = free_.next(row + 1))
    free.add(row, row + 1);
  free.add(n_rows(), n_rows() + n);
  holders_.resize(holders_.size() + static_cast<size_t>(n));
  free_ = std::move(free);
}

void States::hold(const History& history) noexcept {
  for (const auto& [row, position] : history)
    if (holders_[row]++ == 0) free_.remove(row, row + 1);
}

void States::release(const History& history) noexcept {
  for (const auto& [row, position] : history)
    if (--holders_[row] == 0) free_.add(row, row + 1);
}

void States::change(Book histories) {
  if (histories.empty()) return;
  for (const auto& [seq, history] : histories)
    for (const auto& [row, position] : history)
      if (row < 0 || row >= n_rows()) refuse("row ", row, " is out of range");
  Book before;  // what is allocated is allocated here
  if (!frames_.empty())
    for (const auto& [seq, history] : histories)
      if (!frames_.back().before.contains(seq)) before.emplace(seq, History());
  while (!histories.empty()) {
    auto fresh = histories.extract(histories.begin());
    const int32_t seq = fresh.key();
    hold(fresh.mapped());
    History old;
    if (const auto at = book_.find(seq); at != book_.end()) {
      old = std::move(at->second);
      book_.erase(at);
    }
    if (!fresh.mapped().empty()) book_.insert(std::move(fresh));
    if (auto kept = before.extract(seq)) {
      kept.mapped() = std::move(old);
      frames_.back().before.insert(std::move(kept));
    } else {
      release(old);
    }
  }
  version_ = ++last_version_;
}

void States::begin() { frames_.push_back({Book(), version_}); }

void States::commit() noexcept {
  Book before = std::move(frames_.back().before);
  frames_.pop_back();
  if (!frames_.empty()) frames_.back().before.merge(before);  // those that are not there yet
  for (const auto& [seq, history] : before) release(history);
}

void States::rollback() noexcept {
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  while (!frame.before.empty()) {
    auto old = frame.before.extract(frame.before.begin());
    if (const auto at = book_.find(old.key()); at != book_.end()) {
      release(at->second);
      book_.erase(at);
    }
    if (!old.mapped().empty()) book_.insert(std::move(old));
  }
  version_ = frame.version;
}

void States::check() const {
  Vector<int32_t> holders(holders_.size());
  const auto count = [&](const Book& book) {
    for (const auto& [seq, history] : book)
      for (const auto& [row, position] : history) ++holders[row];
  };
  count(book_);
  for (const Frame& frame : frames_) count(frame.before);
  bool right = holders == holders_;
  for (size_t row = 0; row < holders.size(); ++row)
    right &= free_.has(static_cast<int64_t>(row)) == (holders[row] == 0);
  if (!right) throw std::runtime_error("rows are lost or held twice");
}

}  // namespace aleator::cache
