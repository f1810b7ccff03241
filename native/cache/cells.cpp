#include "cache/cells.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "bind.hpp"

namespace aleator {

namespace {

constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();

struct Interval {
  int32_t p0, p1;
  Interval(int32_t a, int32_t b) : p0(std::max(a, 0)), p1(b < 0 ? kEnd : b) {}
  bool has(int32_t p) const { return p >= p0 && p < p1; }
};

}  // namespace

Cells::Cells(int64_t size, int32_t n_seq_max) : n_seq_max_(n_seq_max) {
  if (size < 1 || size > kEnd)
    throw std::invalid_argument("size must lie in [1, 2^31), not " + std::to_string(size));
  if (n_seq_max < 1 || n_seq_max > kMaxSequences)
    throw std::invalid_argument("n_seq_max must lie in [1, " + std::to_string(kMaxSequences) +
                                "], not " + std::to_string(n_seq_max));
  words_ = (n_seq_max + 63) / 64;
  pos_.assign(static_cast<size_t>(size), -1);
  shift_.assign(static_cast<size_t>(size), 0);
  owners_.assign(static_cast<size_t>(size * words_), 0);
  ranges_.resize(static_cast<size_t>(n_seq_max));
}

void Cells::require(int32_t seq, const char* what) const {
  if (seq < 0 || seq >= n_seq_max_)
    throw std::invalid_argument(std::string(what) + " must lie in [0, " +
                                std::to_string(n_seq_max_) + "), not " + std::to_string(seq));
}

bool Cells::owned(int64_t cell) const {
  const uint64_t* o = owners_of(cell);
  return std::any_of(o, o + words_, [](uint64_t w) { return w != 0; });
}

void Cells::remember(int64_t cell) {
  if (!journalling_) return;
  journal_.push_back({cell, pos_[cell], shift_[cell]});
  journal_owners_.insert(journal_owners_.end(), owners_of(cell), owners_of(cell) + words_);
}

void Cells::stale_owners(int64_t cell) {
  for (int32_t s = 0; s < n_seq_max_; ++s)
    if (owns(cell, s)) ranges_[s].stale = true;
}

void Cells::empty(int64_t cell) {
  std::fill_n(owners_of(cell), words_, 0);
  n_shifted_ -= shift_[cell] != 0;
  pos_[cell] = -1;
  shift_[cell] = 0;
  --used_;
}

// Moves an occupied cell to a position >= 0; its stored key waits for the rotation from here on.
void Cells::move(int64_t cell, int32_t position) {
  n_shifted_ -= shift_[cell] != 0;
  shift_[cell] += position - pos_[cell];
  n_shifted_ += shift_[cell] != 0;
  pos_[cell] = position;
  stale_owners(cell);
}

void Cells::lower_top() {
  while (top_ > 0 && pos_[top_ - 1] < 0) --top_;
}

std::vector<int64_t> Cells::find(int64_t n) const {
  if (n < 0) throw std::invalid_argument("n must not be negative");
  std::vector<int64_t> found;
  if (n > size() - used_) return found;
  found.reserve(static_cast<size_t>(n));
  // Far past what is used, low cells are likely free: starting there keeps the attended range
  // short.
  int64_t cell = head_ > used_ + 2 * n ? 0 : head_;
  while (static_cast<int64_t>(found.size()) < n) {
    if (cell >= size()) cell = 0;
    if (pos_[cell] < 0) found.push_back(cell);
    ++cell;
  }
  return found;
}

std::vector<int64_t> Cells::place(const int32_t* positions, const uint64_t* owners, int64_t n) {
  const int32_t spare = n_seq_max_ % 64;
  const uint64_t last_word = spare ? (uint64_t{1} << spare) - 1 : ~uint64_t{0};
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t* o = owners + i * words_;
    if (positions[i] < 0) throw std::invalid_argument("a position must not be negative");
    if (std::all_of(o, o + words_, [](uint64_t w) { return w == 0; }) ||
        (o[words_ - 1] & ~last_word))
      throw std::invalid_argument("a token's owners must be one or more ids below n_seq_max");
  }
  std::vector<int64_t> cells = find(n);
  if (static_cast<int64_t>(cells.size()) < n)
    throw std::invalid_argument("there are not " + std::to_string(n) + " free cells");
  for (int64_t i = 0; i < n; ++i) {
    const int64_t cell = cells[i];
    remember(cell);
    pos_[cell] = positions[i];
    std::copy_n(owners + i * words_, words_, owners_of(cell));
    ++used_;
    top_ = std::max(top_, cell + 1);
    for (int64_t w = 0; w < words_; ++w)
      for (uint64_t bits = owners[i * words_ + w]; bits; bits &= bits - 1) {
        Range& r = ranges_[w * 64 + __builtin_ctzll(bits)];
        r.min = r.min < 0 ? positions[i] : std::min(r.min, positions[i]);
        r.max = std::max(r.max, positions[i]);
      }
  }
  if (n > 0) head_ = cells[n - 1] + 1;
  return cells;
}

void Cells::seq_rm(int32_t seq, int32_t p0, int32_t p1) {
  if (seq != -1) require(seq, "seq");
  const Interval in(p0, p1);
  int64_t first = size();
  for (int64_t i = 0; i < top_; ++i) {
    if (!in.has(pos_[i]) || (seq >= 0 && !owns(i, seq))) continue;
    remember(i);
    stale_owners(i);
    if (seq >= 0) owners_of(i)[seq / 64] &= ~(uint64_t{1} << (seq % 64));
    if (seq < 0 || !owned(i)) {
      empty(i);
      first = std::min(first, i);
    }
  }
  lower_top();
  head_ = std::min(head_, first);
}

void Cells::seq_cp(int32_t src, int32_t dst, int32_t p0, int32_t p1) {
  require(src, "src");
  require(dst, "dst");
  if (src == dst) return;
  const Interval in(p0, p1);
  for (int64_t i = 0; i < top_; ++i)
    if (in.has(pos_[i]) && owns(i, src)) {
      remember(i);
      owners_of(i)[dst / 64] |= uint64_t{1} << (dst % 64);
    }
  ranges_[dst].stale = true;
}

void Cells::seq_keep(int32_t seq) {
  require(seq, "seq");
  int64_t first = size();
  for (int64_t i = 0; i < top_; ++i) {
    if (pos_[i] < 0) continue;
    remember(i);
    stale_owners(i);
    const bool keep = owns(i, seq);
    std::fill_n(owners_of(i), words_, 0);
    if (keep) {
      owners_of(i)[seq / 64] = uint64_t{1} << (seq % 64);
    } else {
      empty(i);
      first = std::min(first, i);
    }
  }
  lower_top();
  head_ = std::min(head_, first);
}

void Cells::seq_add(int32_t seq, int32_t p0, int32_t p1, int32_t delta) {
  require(seq, "seq");
  const Interval in(p0, p1);
  if (delta == 0 || in.p0 == in.p1) return;
  for (int64_t i = 0; i < top_; ++i)
    if (in.has(pos_[i]) && owns(i, seq)) {
      const int64_t shift = int64_t{shift_[i]} + delta;
      if (int64_t{pos_[i]} + delta >= kEnd || shift > kEnd || shift < -int64_t{kEnd})
        throw std::invalid_argument("delta " + std::to_string(delta) + " moves position " +
                                    std::to_string(pos_[i]) + " out of range");
    }
  int64_t first = size();
  for (int64_t i = 0; i < top_; ++i) {
    if (!in.has(pos_[i]) || !owns(i, seq)) continue;
    remember(i);
    if (pos_[i] + delta < 0) {
      stale_owners(i);
      empty(i);
      first = std::min(first, i);
    } else {
      move(i, pos_[i] + delta);
    }
  }
  lower_top();
  head_ = first < size() ? first : 0;
}

void Cells::seq_div(int32_t seq, int32_t p0, int32_t p1, int32_t divisor) {
  require(seq, "seq");
  if (divisor < 1)
    throw std::invalid_argument("divisor must be 1 or more, not " + std::to_string(divisor));
  const Interval in(p0, p1);
  if (divisor == 1) return;
  for (int64_t i = 0; i < top_; ++i) {
    if (!in.has(pos_[i]) || !owns(i, seq)) continue;
    remember(i);
    move(i, pos_[i] / divisor);
  }
}

const Cells::Range& Cells::range(int32_t seq) const {
  require(seq, "seq");
  Range& r = ranges_[seq];
  if (r.stale) {
    r = Range{};
    for (int64_t i = 0; i < top_; ++i)
      if (owns(i, seq)) {
        r.min = r.min < 0 ? pos_[i] : std::min(r.min, pos_[i]);
        r.max = std::max(r.max, pos_[i]);
      }
  }
  return r;
}

int32_t Cells::seq_pos_min(int32_t seq) const { return range(seq).min; }
int32_t Cells::seq_pos_max(int32_t seq) const { return range(seq).max; }

bool Cells::same_cells(int32_t a, int32_t b) const {
  require(a, "a");
  require(b, "b");
  for (int64_t i = 0; i < top_; ++i)
    if (owns(i, a) != owns(i, b)) return false;
  return true;
}

void Cells::clear() {
  for (int64_t i = 0; i < top_; ++i)
    if (pos_[i] >= 0) {
      remember(i);
      empty(i);
    }
  std::fill(ranges_.begin(), ranges_.end(), Range{});
  head_ = top_ = 0;
}

std::vector<int64_t> Cells::shifted() const {
  std::vector<int64_t> cells;
  if (has_shift())
    for (int64_t i = 0; i < top_; ++i)
      if (shift_[i] != 0) cells.push_back(i);
  return cells;
}

void Cells::clear_shifts() {
  if (!has_shift()) return;
  for (int64_t i = 0; i < top_; ++i)
    if (shift_[i] != 0) {
      remember(i);
      shift_[i] = 0;
    }
  n_shifted_ = 0;
}

void Cells::begin() {
  journal_.clear();
  journal_owners_.clear();
  head_before_ = head_;
  journalling_ = can_roll_back_ = true;
}

void Cells::rollback() {
  if (!can_roll_back_) return;
  journalling_ = can_roll_back_ = false;
  for (size_t k = journal_.size(); k-- > 0;) {
    const Change& c = journal_[k];
    stale_owners(c.cell);
    used_ += (c.pos >= 0) - (pos_[c.cell] >= 0);
    n_shifted_ += (c.shift != 0) - (shift_[c.cell] != 0);
    pos_[c.cell] = c.pos;
    shift_[c.cell] = c.shift;
    std::copy_n(&journal_owners_[k * static_cast<size_t>(words_)], words_, owners_of(c.cell));
    stale_owners(c.cell);
    top_ = std::max(top_, c.cell + 1);
  }
  head_ = head_before_;
  lower_top();
  journal_.clear();
  journal_owners_.clear();
}

int64_t Cells::mask(const int32_t* positions, const int32_t* seqs, int64_t n_queries, int64_t n,
                    bool* visible) const {
  int64_t count = 0;
  for (int64_t t = 0; t < n_queries; ++t) {
    const int64_t word = seqs[t] / 64;
    const int bit = seqs[t] % 64;
    const uint64_t* o = owners_.data() + word;
    bool* row = visible + t * n;
    int64_t in_row = 0;
    for (int64_t j = 0; j < n; ++j) {
      const bool see = (o[j * words_] >> bit & 1) & (pos_[j] <= positions[t]);
      row[j] = see;
      in_row += see;
    }
    count += in_row;
  }
  return count;
}

void Cells::check() const {
  int64_t used = 0, top = 0, shifted = 0;
  std::vector<Range> ranges(ranges_.size());
  for (int64_t i = 0; i < size(); ++i) {
    shifted += shift_[i] != 0;
    if ((pos_[i] >= 0) != owned(i) || (pos_[i] < 0 && (shift_[i] != 0 || pos_[i] != -1)))
      throw std::logic_error("cell " + std::to_string(i) + " is neither used nor empty");
    if (pos_[i] < 0) continue;
    ++used;
    top = i + 1;
    for (int32_t s = 0; s < n_seq_max_; ++s)
      if (owns(i, s)) {
        ranges[s].min = ranges[s].min < 0 ? pos_[i] : std::min(ranges[s].min, pos_[i]);
        ranges[s].max = std::max(ranges[s].max, pos_[i]);
      }
  }
  if (used != used_ || top != top_ || shifted != n_shifted_ || head_ < 0 || head_ > size())
    throw std::logic_error("the counters disagree with the cells");
  for (int32_t s = 0; s < n_seq_max_; ++s)
    if (range(s).min != ranges[s].min || range(s).max != ranges[s].max)
      throw std::logic_error("the range of sequence " + std::to_string(s) + " is wrong");
}

}  // namespace aleator

namespace {

using aleator::Cells;
using namespace nb::literals;
template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::ndarray<nb::numpy, int64_t> owned_array(std::vector<int64_t>&& values) {
  auto* kept = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  return nb::ndarray<nb::numpy, int64_t>(kept->data(), {kept->size()}, owner);
}

nb::ndarray<nb::numpy, int64_t> place(
    Cells& c, Array<int32_t> positions,
    nb::ndarray<const uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> owners) {
  const size_t n = positions.shape(0);
  if (owners.shape(0) != n || owners.shape(1) != static_cast<size_t>(c.words()))
    throw std::invalid_argument("owners must be uint64 [tokens, ceil(n_seq_max / 64)]");
  return owned_array(c.place(positions.data(), owners.data(), static_cast<int64_t>(n)));
}

int64_t mask(const Cells& c, Array<int32_t> positions, Array<int32_t> seqs,
             nb::ndarray<bool, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
  const size_t t = positions.shape(0), n = out.shape(1);
  if (seqs.shape(0) != t || out.shape(0) != t || n > static_cast<size_t>(c.size()))
    throw std::invalid_argument("out must be [queries, n] with n at most the number of cells");
  for (size_t i = 0; i < t; ++i)
    if (seqs.data()[i] < 0 || seqs.data()[i] >= c.n_seq_max())
      throw std::invalid_argument("seqs must lie in [0, n_seq_max)");
  return c.mask(positions.data(), seqs.data(), static_cast<int64_t>(t), static_cast<int64_t>(n),
                out.data());
}

}  // namespace

ALEATOR_BIND(cells) {
  nb::class_<Cells>(m, "Cells",
                    "What each cell of a KV cache holds: position, owners, pending shift.\n\n"
                    "Ranges of positions are [p0, p1); p0 < 0 means 0 and p1 < 0 means infinity. "
                    "An id out of range raises ValueError.")
      .def(nb::init<int64_t, int32_t>(), "size"_a, "n_seq_max"_a = 1)
      .def_prop_ro("size", &Cells::size)
      .def_prop_ro("n_seq_max", &Cells::n_seq_max)
      .def_prop_ro("used", &Cells::used, "Cells that hold a token.")
      .def_prop_ro("head", &Cells::head, "Where the next search starts; may equal size.")
      .def_prop_ro("top", &Cells::top, "Index of the highest used cell + 1.")
      .def_prop_ro("has_shift", &Cells::has_shift)
      .def_prop_ro(
          "positions",
          [](const Cells& c) {
            return nb::ndarray<nb::numpy, const int32_t>(c.positions(), {(size_t)c.size()});
          },
          nb::rv_policy::reference_internal, "int32 [size], read-only view; -1 is an empty cell.")
      .def_prop_ro(
          "shifts",
          [](const Cells& c) {
            return nb::ndarray<nb::numpy, const int32_t>(c.shifts(), {(size_t)c.size()});
          },
          nb::rv_policy::reference_internal, "int32 [size], read-only view.")
      .def_prop_ro(
          "owners",
          [](const Cells& c) {
            return nb::ndarray<nb::numpy, const uint64_t>(c.owners(),
                                                          {(size_t)c.size(), (size_t)c.words()});
          },
          nb::rv_policy::reference_internal,
          "uint64 [size, ceil(n_seq_max / 64)], read-only view; bit s of a row is sequence s.")
      .def(
          "find", [](const Cells& c, int64_t n) { return owned_array(c.find(n)); }, "n"_a,
          "The first n free cells in ring order from head, int64; empty if there are fewer.")
      .def("place", &place, "positions"_a, "owners"_a,
           "Give the cells that find names positions (int32 [n]) and owners (uint64 [n, words]); "
           "return them.")
      .def("seq_rm", &Cells::seq_rm, "seq"_a, "p0"_a = -1, "p1"_a = -1)
      .def("seq_cp", &Cells::seq_cp, "src"_a, "dst"_a, "p0"_a = -1, "p1"_a = -1)
      .def("seq_keep", &Cells::seq_keep, "seq"_a)
      .def("seq_add", &Cells::seq_add, "seq"_a, "p0"_a, "p1"_a, "delta"_a)
      .def("seq_div", &Cells::seq_div, "seq"_a, "p0"_a, "p1"_a, "divisor"_a)
      .def("seq_pos_min", &Cells::seq_pos_min, "seq"_a, "-1 if the sequence is empty.")
      .def("seq_pos_max", &Cells::seq_pos_max, "seq"_a, "-1 if the sequence is empty.")
      .def("same_cells", &Cells::same_cells, "a"_a, "b"_a, "Do a and b own the same cells?")
      .def("clear", &Cells::clear)
      .def(
          "shifted", [](const Cells& c) { return owned_array(c.shifted()); },
          "Cells whose stored key waits for a rotation, int64.")
      .def("clear_shifts", &Cells::clear_shifts)
      .def("begin", &Cells::begin, "Start a journal of all changes.")
      .def("commit", &Cells::commit, "Stop the journal.")
      .def("rollback", &Cells::rollback, "Restore the state at the last begin.")
      .def("mask", &mask, "positions"_a, "seqs"_a, "out"_a,
           "Fill bool out [queries, n]: may the query at positions[t] of sequence seqs[t] see cell "
           "j? Returns how many are True.")
      .def("check", &Cells::check, "Raise RuntimeError if counters and cells disagree.");
}
