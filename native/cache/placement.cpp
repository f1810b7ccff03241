// Which cells tokens get, and giving them those.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "cache/cell_arrays.hpp"
#include "errors.hpp"

namespace aleator::cache {

// The lowest start >= from of n free cells in a row, else -1.
int64_t Cells::free_run(int64_t n, int64_t from) const {
  for (int64_t start = free_.next(from); start < size();) {
    const int64_t end = occupied_.next(start);
    if (end - start >= n) return start;
    start = free_.next(end);
  }
  return -1;
}

std::vector<int64_t> Cells::find(int64_t n, bool contiguous, int32_t stream) const {
  if (n < 0) refuse("n must not be negative, not ", n);
  if (stream < 0 || stream >= n_streams())
    refuse("stream must lie in [0, ", n_streams(), "), not ", stream);
  std::vector<int64_t> found;
  const int64_t begin = stream * share(), end = begin + share();
  if (n == 0 || n > share() - used_[stream]) return found;
  // Far past what is used, low cells are likely free: starting there keeps the attended range
  // short.
  int64_t cell = heads_[stream];
  if (cell - begin > used_[stream] + 2 * n) cell = begin;
  if (contiguous) {
    int64_t start = free_run(n, cell);
    if (start < 0 || start + n > end) start = free_run(n, begin);
    if (start < 0 || start + n > end) return found;
    found.resize(n);
    std::iota(found.begin(), found.end(), start);
    return found;
  }
  found.reserve(n);
  while (int64_t(found.size()) < n) {
    cell = free_.next(cell);
    if (cell >= end) {
      cell = begin;
      continue;
    }
    const int64_t left = n - int64_t(found.size());
    const int64_t stop = std::min({occupied_.next(cell), end, cell + left});
    for (; cell < stop; ++cell) found.push_back(cell);
  }
  return found;
}

int32_t Cells::set_of(const uint64_t* owners) {
  int32_t count = 0, only = 0;
  for (int64_t w = 0; w < words(); ++w)
    if (owners[w]) {
      count += __builtin_popcountll(owners[w]);
      only = int32_t(w * 64 + __builtin_ctzll(owners[w]));
    }
  const int32_t spare = n_seq_max_ % 64;
  if (count == 0 || (spare && owners[words() - 1] >> spare))
    refuse("a token's owners must be one or more ids below n_seq_max");
  if (count == 1) return only;
  if (n_streams() > 1)
    refuse(
        "a token cannot have several owners where every sequence has cells of its own (policy "
        "\"streams\")");
  Vector<int32_t> ids;
  ids.reserve(count);
  for (int64_t w = 0; w < words(); ++w)
    for (uint64_t bits = owners[w]; bits; bits &= bits - 1)
      ids.push_back(int32_t(w * 64 + __builtin_ctzll(bits)));
  return sets_.of(ids);
}

std::vector<int64_t> Cells::place(const int32_t* positions, const uint64_t* owners,
                                  const Extra* extras, int64_t n, bool contiguous) {
  std::vector<int64_t> cells;
  if (n_streams() == 1) {
    cells = find(n, contiguous);
  } else {
    std::vector<int32_t> stream(n);
    for (int64_t i = 0; i < n; ++i) stream[i] = set_of(owners + i * words());
    cells.resize(size_t(n), -1);
    for (int64_t i = 0; i < n; ++i) {
      if (cells[i] >= 0) continue;
      const int32_t s = stream[i];
      const auto own = find(std::count(stream.begin(), stream.end(), s), contiguous, s);
      if (own.empty()) {
        cells.clear();
        break;
      }
      for (size_t k = size_t(i), used = 0; k < cells.size(); ++k)
        if (stream[k] == s) cells[k] = own[used++];
    }
  }
  if (int64_t(cells.size()) < n) refuse("there are not ", n, " free cells");
  put(cells.data(), positions, owners, extras, n);
  return cells;
}

void Cells::require_free(const int64_t* cells, int64_t n) const {
  int64_t previous = -1;
  bool ascending = true;
  for (int64_t i = 0; i < n; ++i) {
    if (cells[i] < 0 || cells[i] >= size() || !free_.has(cells[i]))
      refuse("cell ", cells[i], " is not a free cell");
    ascending &= cells[i] > previous;
    previous = cells[i];
  }
  if (ascending) return;
  std::vector<int64_t> sorted(cells, cells + n);
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    refuse("a cell is named twice");
}

void Cells::put(const int64_t* cells, const int32_t* positions, const uint64_t* owners,
                const Extra* extras, int64_t n) {
  if ((extras != nullptr) != !extras_.empty())
    refuse(extras ? "these cells have no extras"
                  : "these cells need extras: y, x and token of each");
  if (n == 0) return;
  enter();
  require_free(cells, n);
  Vector<Segment> segments;
  const uint64_t* known = nullptr;
  int32_t set = kNone;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t* row = owners + i * words();
    if (positions[i] < 0 || positions[i] == kEnd)
      refuse("a position must lie in [0, 2^31 - 1), not ", positions[i]);
    if (!known || std::memcmp(row, known, size_t(words()) * 8) != 0) set = set_of(known = row);
    if (n_streams() > 1 && cells[i] / share() != set)
      refuse("cell ", cells[i], " is not in the share of sequence ", set);
    if (!segments.empty()) {
      Segment& last = segments.back();
      if (last.owners == set && last.cell + last.len == cells[i] &&
          last.pos + last.len == positions[i]) {
        ++last.len;
        continue;
      }
    }
    segments.push_back({int32_t(cells[i]), 1, 1, positions[i], positions[i], set});
  }
  for (const Segment& s : segments) record(s.cell, s.len, s.step);  // what they replace
  for (const Segment& s : segments) {
    write(s, extras);
    learn(s, false);
    if (extras) extras += s.len;
  }
  if (n_streams() == 1)
    advance_head(0, cells[n - 1]);
  else
    for (const Segment& s : segments) advance_head(stream_of(s.owners), s.cell + s.len - 1);
}

std::vector<int64_t> Cells::take_in_ring(int64_t n, int32_t window, int32_t keep, int32_t stream,
                                         bool chunked) {
  if (n < 1 || window < 1 || keep < 0 || stream < 0 || stream >= n_streams())
    refuse("n, window, keep or stream is out of range");
  const int64_t begin = stream * share();
  std::vector<int64_t> found;
  std::map<int32_t, int32_t> lost;  // sequence -> the highest of its positions to go
  int64_t cell = heads_[stream];
  if (cell - begin > used_[stream] + 2 * n) cell = begin;
  for (int64_t tested = 0; tested < share() && int64_t(found.size()) < n; ++tested) {
    if (cell >= begin + share()) cell = begin;
    if (pos_[cell] < 0) {
      found.push_back(cell);
    } else if (const auto ids = owners(cell); ids.size() == 1 && pos_[cell] >= keep) {
      const int32_t seq = ids[0], next = seq_pos_max(seq) + 1;
      if (pos_[cell] < window_begin(next, window, chunked)) {
        auto& highest = lost.try_emplace(seq, -1).first->second;
        highest = std::max(highest, pos_[cell]);
        found.push_back(cell);
      }
    }
    ++cell;
  }
  if (int64_t(found.size()) < n) return {};
  for (const auto& [seq, highest] : lost) seq_rm(seq, keep, highest + 1);
  return found;
}

void Cells::follow_head(int32_t dst, int32_t src) {
  require(dst, "dst");
  require(src, "src");
  if (n_streams() == 1) return;
  enter();
  heads_[dst] = heads_[src] + (dst - src) * share();
}

}  // namespace aleator::cache
