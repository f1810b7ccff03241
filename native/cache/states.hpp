// Whose states the rows of a recurrent pool hold.
//
// A row holds one state of every layer, as it was after one token.  A sequence has a history: rows
// and positions, oldest first.  Histories share rows; a row is free when none has it, and none that
// an open frame would bring back.  So rows are never overwritten while they may be needed, and a
// failed step has only its histories to restore.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cache/allocation.hpp"
#include "cache/bitmap.hpp"
#include "errors.hpp"

namespace aleator::cache {

class States final : public Part {
 public:
  using History = Vector<std::pair<int32_t, int32_t>>;  // row, position
  // By sequence; none is empty.
  using Book =
      std::map<int32_t, History, std::less<int32_t>, Allocator<std::pair<const int32_t, History>>>;

  explicit States(int32_t n_rows)
      : holders_(size_t(n_rows < 0 ? 0 : n_rows)), free_(n_rows < 1 ? 1 : n_rows, true) {
    if (n_rows < 1) refuse("n_rows must be 1 or more");
  }

  int32_t n_rows() const { return int32_t(holders_.size()); }
  uint64_t version() const { return version_; }
  const Book& book() const { return book_; }
  const History* history(int32_t seq) const {
    const auto found = book_.find(seq);
    return found == book_.end() ? nullptr : &found->second;
  }

  // The lowest n free rows; fewer if there are not so many.  They stay free.
  std::vector<int32_t> free_rows(int64_t n) const {
    std::vector<int32_t> rows;
    for (int64_t row = free_.next(0); row < n_rows() && n > 0; row = free_.next(row + 1), --n)
      rows.push_back(int32_t(row));
    return rows;
  }

  // Rows that sequences from `first` on hold, those included that an open frame would bring back.
  int64_t held(int32_t first) const {
    std::vector<bool> seen(holders_.size());
    int64_t n = 0;
    each_book([&](const Book& book) {
      for (auto at = book.lower_bound(first); at != book.end(); ++at)
        for (const auto& [row, position] : at->second) {
          n += !seen[row];
          seen[row] = true;
        }
    });
    return n;
  }

  // Stays, whatever becomes of the frame.
  void grow(int32_t n) {
    if (n < 1) return;
    Bitmap free(n_rows() + n, false);
    for (int64_t row = free_.next(0); row < n_rows(); row = free_.next(row + 1))
      free.add(row, row + 1);
    free.add(n_rows(), n_rows() + n);
    holders_.resize(holders_.size() + size_t(n));
    free_ = std::move(free);
  }

  // Replaces histories, all or none.
  void change(Book histories) {
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

  void begin() override { frames_.push_back({Book(), version_}); }

  void commit() noexcept override {
    Book before = std::move(frames_.back().before);
    frames_.pop_back();
    if (!frames_.empty()) frames_.back().before.merge(before);  // those that are not there yet
    for (const auto& [seq, history] : before) release(history);
  }

  void rollback() noexcept override {
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

  // Throws if rows are lost or held twice.
  void check() const {
    Vector<int32_t> holders(holders_.size());
    each_book([&](const Book& book) {
      for (const auto& [seq, history] : book)
        for (const auto& [row, position] : history) ++holders[row];
    });
    bool right = holders == holders_;
    for (size_t row = 0; row < holders.size(); ++row)
      right &= free_.has(int64_t(row)) == (holders[row] == 0);
    if (!right) throw std::runtime_error("rows are lost or held twice");
  }

 private:
  struct Frame {
    Book before;  // the histories of those that it has changed
    uint64_t version;
  };

  // The histories as they are, and those that open frames would bring back.
  template <typename F>
  void each_book(F&& f) const {
    f(book_);
    for (const Frame& frame : frames_) f(frame.before);
  }
  void hold(const History& history) noexcept {
    for (const auto& [row, position] : history)
      if (holders_[row]++ == 0) free_.remove(row, row + 1);
  }
  void release(const History& history) noexcept {
    for (const auto& [row, position] : history)
      if (--holders_[row] == 0) free_.add(row, row + 1);
  }

  Book book_;
  Vector<int32_t> holders_;
  Bitmap free_;
  Vector<Frame> frames_;
  uint64_t version_ = 0, last_version_ = 0;
};

}  // namespace aleator::cache
