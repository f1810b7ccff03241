// Defragmentation: what llama.cpp did until August 2025.
#include <algorithm>
#include <stdexcept>

#include "cache/cells.hpp"

namespace aleator::cache {

std::vector<Move> Cells::defrag_plan(int64_t max_moves) const {
  std::vector<Move> moves;
  if (n_streams() > 1) return moves;
  const int64_t n_used = used();
  int64_t end = top();  // cells at or after this are planned to move
  for (int64_t hole = free_.next(0); hole < n_used && max_moves != 0;) {
    const int64_t stop = std::min(occupied_.next(hole), n_used);
    // The last stop - hole used cells, in ascending order, fill it.
    int64_t first = end;
    for (int64_t left = stop - hole; left > 0;) {
      const int64_t last = occupied_.previous(first - 1), before = free_.previous(last);
      first = std::max(before + 1, last + 1 - left);
      left -= last + 1 - first;
    }
    int64_t to = hole;
    for (int64_t c = first; to < stop; c = occupied_.next(c)) {
      if (max_moves == 0) return moves;
      const int64_t n = std::min({free_.next(c), end, c + stop - to}) - c;
      moves.push_back({c, to, n});
      --max_moves;
      to += n, c += n;
    }
    end = first;
    hole = free_.next(stop);
  }
  return moves;
}

void Cells::move(const std::vector<Move>& moves) {
  if (moves.empty()) return;
  enter();
  Vector<Segment> old;
  Vector<int32_t> to;
  for (const Move& m : moves) {
    if (m.n < 1 || m.from < 0 || m.to < 0 || m.from + m.n > size() || m.to + m.n > size() ||
        free_.next(m.from) < m.from + m.n || occupied_.next(m.to) < m.to + m.n)
      throw std::invalid_argument("a move must go from used cells to free ones");
    segments(m.from, m.n, 1, old);
    for (size_t i = to.size(); i < old.size(); ++i)
      to.push_back(static_cast<int32_t>(m.to + old[i].cell - m.from));
  }
  for (const auto side : {&Move::from, &Move::to}) {
    std::vector<Move> sorted = moves;
    std::sort(sorted.begin(), sorted.end(),
              [side](const Move& a, const Move& b) { return a.*side < b.*side; });
    for (size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i - 1].*side + sorted[i - 1].n > sorted[i].*side)
        throw std::invalid_argument("moves must not meet: each cell is free for one of them");
  }
  for (size_t i = 0; i < old.size(); ++i) {
    record(old[i]);
    record(to[i], old[i].len);
  }
  const bool bulk = many(old.size());
  for (const Segment& s : old) {
    forget(s, bulk);
    release(s);
  }
  for (size_t i = 0; i < old.size(); ++i) {
    Segment s = old[i];
    s.cell = to[i];
    write(s, extras_.empty() ? nullptr : &extras_[old[i].cell]);
    learn(s, bulk);
  }
  if (n_streams() == 1) heads_[0] = used();
}

}  // namespace aleator::cache
