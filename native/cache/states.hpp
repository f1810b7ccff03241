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
#include <utility>
#include <vector>

#include "cache/allocation.hpp"
#include "cache/bitmap.hpp"

namespace aleator::cache {

class States final : public Part {
 public:
  using History = Vector<std::pair<int32_t, int32_t>>;  // row, position
  // By sequence; none is empty.
  using Book =
      std::map<int32_t, History, std::less<int32_t>, Allocator<std::pair<const int32_t, History>>>;

  explicit States(int32_t n_rows);

  int32_t n_rows() const { return static_cast<int32_t>(holders_.size()); }
  uint64_t version() const { return version_; }
  const Book& book() const { return book_; }
  const History* history(int32_t seq) const;
  // The lowest n free rows; fewer if there are not so many.  They stay free.
  std::vector<int32_t> free_rows(int64_t n) const;
  // Rows that sequences from `first` on hold, those included that an open frame would bring back.
  int64_t held(int32_t first) const;
  void grow(int32_t n);  // stays, whatever becomes of the frame

  // Replaces histories, all or none.
  void change(Book histories);

  void begin() override;
  void commit() noexcept override;
  void rollback() noexcept override;
  void check() const;  // throws if rows are lost or held twice

 private:
  struct Frame {
    Book before;  // the histories of those that it has changed
    uint64_t version;
  };

  void hold(const History& history) noexcept;
  void release(const History& history) noexcept;

  Book book_;
  Vector<int32_t> holders_;
  Bitmap free_;
  Vector<Frame> frames_;
  uint64_t version_ = 0, last_version_ = 0;
};

}  // namespace aleator::cache
