// Host side of the KV cache: what each cell holds.  A cell is one token's slot in the storage.
//
// A cell knows its position, the position its stored key is rotated for (the difference is a
// pending shift) and its owners, a set of sequences.  An empty cell has position -1, no owner and
// no shift.  These arrays are the truth; the free cells as a bitmap and the cells of each sequence
// as runs are indexes of it, so that no operation walks over cells it does not change.
//
// Semantics are llama.cpp 0.5's, except where that is wrong: seq_div shifts the right way, ids out
// of range raise, and a journal makes every failure exact.  With `llama_2024` placement and head
// follow llama.cpp's struct of 2024.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/bitmap.hpp"
#include "cache/owner_sets.hpp"
#include "cache/runs.hpp"

namespace aleator::cache {

struct Move {
  int64_t from, to, n;
};

// Where a token lies beside its position, with M-RoPE (llama.cpp's llama_kv_cell_ext): in a picture
// all tokens have one position, and are in order of (y, x).  token is its id, -1 for an embedding.
struct Extra {
  int32_t y, x, token;
  bool after(int32_t y1, int32_t x1) const { return y != y1 ? y > y1 : x > x1; }
};

// The lowest position that a token at `position` sees where it sees `window` positions, its own
// included, or, chunked, those from the next lower multiple of `window` on.  It may be below 0.
inline int64_t window_begin(int64_t position, int32_t window, bool chunked) {
  return chunked ? position / window * window : position - window + 1;
}

class Cells final : public Part {
 public:
  static constexpr int32_t kMaxSequences = 4096;

  // With streams every sequence has an equal share of the cells to itself.
  // With extras every cell has an Extra too; without them they take no memory.
  Cells(int64_t size, int32_t n_seq_max, bool streams, bool llama_2024, bool extras = false);
  Cells(const Cells&) = delete;
  Cells& operator=(const Cells&) = delete;

  int64_t size() const { return int64_t(pos_.size()); }
  int32_t n_seq_max() const { return n_seq_max_; }
  int32_t n_streams() const { return int32_t(heads_.size()); }
  int64_t used() const;
  const Vector<int64_t>& heads() const { return heads_; }
  int64_t top() const { return occupied_.previous(size() - 1) + 1; }
  bool has_shift() const;
  const int32_t* positions() const { return pos_.data(); }
  const Extra* extras() const { return extras_.empty() ? nullptr : extras_.data(); }
  int32_t shift(int64_t cell) const { return pos_[cell] - base_[cell]; }
  std::span<const int32_t> owners(int64_t cell) const;
  int64_t shared_cells() const { return sets_.shared_cells(); }
  // Changes with every change of a cell or a head.
  uint64_t version() const { return version_; }

  // Free cells for n tokens of a stream: the first in ring order from head, or with `contiguous`
  // the first run of n that does not wrap.  Empty if there are not that many.
  std::vector<int64_t> find(int64_t n, bool contiguous, int32_t stream = 0) const;
  // Gives find's cells positions and owners (rows of `words` 64-bit words); the head moves on.
  // extras are null without extras, and must be there with them.
  std::vector<int64_t> place(const int32_t* positions, const uint64_t* owners, const Extra* extras,
                             int64_t n, bool contiguous);
  // The same for given cells, which must be free; the head moves behind the last.
  void put(const int64_t* cells, const int32_t* positions, const uint64_t* owners,
           const Extra* extras, int64_t n);

  // As find, of a cache whose sequences see only their last `window` positions (and those below
  // `keep`): a cell counts as free, too, whose only owner's next token does not see it.  That owner
  // leaves the cells found, and all at lower positions from `keep` on.  llama.cpp's rule.  To be
  // called between begin and commit.
  std::vector<int64_t> take_in_ring(int64_t n, int32_t window, int32_t keep, int32_t stream,
                                    bool chunked = false);

  // Ranges are [p0, p1); p0 < 0 is 0 and p1 < 0 is infinity.
  void seq_rm(int32_t seq, int32_t p0, int32_t p1);  // seq -1: every sequence
  void seq_cp(int32_t src, int32_t dst, int32_t p0, int32_t p1);
  void seq_keep(int32_t seq);
  void seq_add(int32_t seq, int32_t p0, int32_t p1, int32_t delta);
  void seq_div(int32_t seq, int32_t p0, int32_t p1, int32_t divisor);
  int32_t seq_pos_min(int32_t seq) const { return runs(seq).min(); }
  int32_t seq_pos_max(int32_t seq) const { return runs(seq).max(); }
  int64_t seq_cells(int32_t seq) const { return runs(seq).cells(); }
  // With streams: dst's head is where src's is in its own share.
  void follow_head(int32_t dst, int32_t src);
  bool same_cells(int32_t a, int32_t b) const;
  void clear();

  // A sequence's runs with positions in [p0, p1), in order, all of cells in a row.
  std::vector<Run> seq_runs(int32_t seq, int32_t p0, int32_t p1) const;
  // Its cells in a range that others own too.
  std::vector<int64_t> shared(int32_t seq, int32_t p0, int32_t p1) const;
  // The other sequences that own any of them.
  std::vector<int32_t> sharers(int32_t seq, int32_t p0, int32_t p1) const;
  // Free cells `to` become what `from` are, owned by seq alone; with `leave` seq leaves `from`.
  void duplicate(const int64_t* from, const int64_t* to, int64_t n, int32_t seq, bool leave);

  std::vector<int64_t> shifted() const;
  void clear_shifts();

  // The moves that would fill the holes below used() with the last cells, at most max_moves runs
  // (negative: all), and making them.  Their rows are copied by others.
  std::vector<Move> defrag_plan(int64_t max_moves) const;
  void move(const std::vector<Move>& moves);

  // From begin on every change is journalled; commit keeps, rollback restores the state at begin.
  // They nest.  After the last commit rollback still works until the next change.
  void begin() override;
  void commit() noexcept override;
  void rollback() noexcept override;
  // Those of the cells, ascending, that have held something else since the outermost begin.
  std::vector<int64_t> used_before(const int64_t* cells, int64_t n) const;

  // One character per cell below top: '.', a digit, '+' for an owner above 9, 'M' for several.
  std::string map() const;
  void check() const;  // throws if the indexes disagree with the cells

  int64_t words() const { return (n_seq_max_ + 63) / 64; }

 private:
  // Every step-th cell of a row, with positions and stored rotations that ascend by one, and the
  // same owners.
  struct Segment {
    int32_t cell, len, step, pos, base, owners;
    int64_t end() const { return cell + int64_t{len - 1} * step + 1; }
    Run run() const { return {pos, cell, len, step}; }
  };
  struct Mark {
    size_t records;
    Vector<int64_t> heads;
    uint64_t version;
  };
  struct Index {
    Runs runs;
    bool stale = false;  // to be made anew from the cells
    void spoil() noexcept { stale = true, runs.clear(); }
  };

  void require(int32_t seq, const char* what) const;
  int32_t stream_of(int32_t seq) const { return n_streams() > 1 ? seq : 0; }
  int64_t share() const { return size() / n_streams(); }
  int64_t free_run(int64_t n, int64_t from) const;
  void require_free(const int64_t* cells, int64_t n) const;
  const Runs& runs(int32_t seq) const;
  Runs& runs(int32_t seq) { return const_cast<Runs&>(std::as_const(*this).runs(seq)); }
  template <typename F>
  void each_segment(int64_t cell, int64_t len, int64_t step, F&& f) const;
  void segments(int64_t cell, int64_t len, int64_t step, Vector<Segment>& out) const;
  void collect(int32_t seq, int32_t p0, int32_t p1, Vector<Segment>& out) const;
  int32_t set_of(const uint64_t* owners);

  void enter();
  void forget_journal();
  void record(int64_t cell, int64_t len, int64_t step = 1);
  void record(const Segment& s);  // as the cells are now, so nothing has to be read
  template <typename F>
  void atomically(F&& change);

  bool move_together(const Vector<Segment>& segments, int32_t p0, int32_t p1) const;

  // Indexes; these never throw: what cannot be updated, as memory is short, becomes stale.
  template <typename F>
  void update(int32_t owners, F&& change) noexcept;  // change(runs) for each of a set of owners
  void stale(const Segment& s) noexcept;
  bool many(size_t segments) const { return segments > 64 + size_t(top()) / 256; }
  void forget(const Segment& s, bool in_bulk) noexcept;
  void learn(const Segment& s, bool in_bulk) noexcept;

  // The arrays.
  void write(const Segment& s, const Extra* extras) noexcept;
  void release(const Segment& s) noexcept;
  void change_owners(const Segment& s, int32_t owners) noexcept;
  void count_used(const Segment& s, int64_t sign) noexcept;
  void lower_heads(const Segment& s);
  void advance_head(int32_t stream, int64_t last);

  int32_t n_seq_max_;
  bool llama_2024_;
  Vector<int32_t> pos_, base_, owners_;  // base_ and owners_ of an empty cell are -1
  Vector<Extra> extras_;                 // empty without extras; of an empty cell anything
  OwnerSets sets_;
  Bitmap free_, occupied_;
  mutable Bitmap moved_;  // holds every cell with a pending shift, and perhaps others
  mutable Vector<Index> sequences_;
  Vector<int64_t> heads_, used_;  // per stream
  uint64_t version_ = 0, last_version_ = 0;

  Vector<Segment> records_;   // old states
  Vector<Extra> old_extras_;  // of their cells, one record after the other
  Vector<Mark> marks_;        // of begins not yet committed
  Vector<Mark> done_;         // of the last outermost begin, after its commit
};

}  // namespace aleator::cache
