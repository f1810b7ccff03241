// Host side of the KV cache: what each cell holds.  A cell is one token's slot in the storage.
//
// A cell knows its position, the sequences that own it (a set, as bits) and the rotation its stored
// key still waits for.  An empty cell has position -1, no owner and no shift.  Semantics are
// llama.cpp 0.5's, except where that is wrong: seq_div shifts the right way, ids out of range
// raise, and a journal makes every failure exact.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aleator {

class Cells {
 public:
  static constexpr int32_t kMaxSequences = 4096;

  Cells(int64_t size, int32_t n_seq_max);

  int64_t size() const { return static_cast<int64_t>(pos_.size()); }
  int32_t n_seq_max() const { return n_seq_max_; }
  int64_t words() const { return words_; }
  int64_t used() const { return used_; }
  int64_t head() const { return head_; }
  int64_t top() const { return top_; }
  bool has_shift() const { return n_shifted_ > 0; }
  const int32_t* positions() const { return pos_.data(); }
  const int32_t* shifts() const { return shift_.data(); }
  const uint64_t* owners() const { return owners_.data(); }

  // The first n free cells in ring order from head; empty if there are not that many.
  std::vector<int64_t> find(int64_t n) const;
  // Gives find(n) positions and owners; head becomes the last of those cells + 1.
  std::vector<int64_t> place(const int32_t* positions, const uint64_t* owners, int64_t n);

  // Ranges are [p0, p1); p0 < 0 is 0 and p1 < 0 is infinity.
  void seq_rm(int32_t seq, int32_t p0, int32_t p1);  // seq -1: every sequence
  void seq_cp(int32_t src, int32_t dst, int32_t p0, int32_t p1);
  void seq_keep(int32_t seq);
  void seq_add(int32_t seq, int32_t p0, int32_t p1, int32_t delta);
  void seq_div(int32_t seq, int32_t p0, int32_t p1, int32_t divisor);
  int32_t seq_pos_min(int32_t seq) const;
  int32_t seq_pos_max(int32_t seq) const;
  bool same_cells(int32_t a, int32_t b) const;
  void clear();

  std::vector<int64_t> shifted() const;
  void clear_shifts();

  // From begin on every change is journalled; rollback restores the state at begin, also after
  // commit.
  void begin();
  void commit() { journalling_ = false; }
  void rollback();

  // visible[t * n + j] = 1 where the query t, at positions[t] in sequence seqs[t], may see cell j <
  // n: a cell of its sequence at a position not after its own.  Returns how many are 1.
  int64_t mask(const int32_t* positions, const int32_t* seqs, int64_t n_queries, int64_t n,
               bool* visible) const;
  void check() const;  // throws if the counters disagree with the cells

 private:
  struct Range {
    int32_t min = -1, max = -1;
    bool stale = false;
  };
  struct Change {
    int64_t cell;
    int32_t pos, shift;
  };

  uint64_t* owners_of(int64_t cell) { return &owners_[static_cast<size_t>(cell * words_)]; }
  const uint64_t* owners_of(int64_t cell) const {
    return &owners_[static_cast<size_t>(cell * words_)];
  }
  bool owns(int64_t cell, int32_t seq) const { return owners_of(cell)[seq / 64] >> (seq % 64) & 1; }
  bool owned(int64_t cell) const;
  void require(int32_t seq, const char* what) const;
  const Range& range(int32_t seq) const;
  void remember(int64_t cell);
  void stale_owners(int64_t cell);
  void empty(int64_t cell);
  void move(int64_t cell, int32_t position);
  void lower_top();

  int32_t n_seq_max_;
  int64_t words_;
  std::vector<int32_t> pos_, shift_;
  std::vector<uint64_t> owners_;
  mutable std::vector<Range> ranges_;
  int64_t head_ = 0, used_ = 0, top_ = 0, n_shifted_ = 0;

  bool journalling_ = false;  // changes are being recorded
  bool can_roll_back_ = false;
  int64_t head_before_ = 0;
  std::vector<Change> journal_;
  std::vector<uint64_t> journal_owners_;
};

}  // namespace aleator
