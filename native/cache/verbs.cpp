// What changes cells: llama.cpp's verbs, copies of shared cells, and the defragmentation that
// llama.cpp did until August 2025.
#include <algorithm>

#include "cache/cell_arrays.hpp"
#include "errors.hpp"

namespace aleator::cache {

void Cells::seq_rm(int32_t seq, int32_t p0, int32_t p1) {
  if (seq != -1) require(seq, "seq");
  const Interval in(p0, p1);
  if (in.p0 >= in.p1) return;
  enter();
  Vector<Segment> segments;
  if (seq < 0) {
    atomically([&] {
      for (int32_t s = 0; s < n_seq_max_; ++s) {
        segments.clear();
        collect(s, in.p0, in.p1, segments);
        if (segments.empty()) continue;
        for (const Segment& x : segments) record(x);
        const bool bulk = many(segments.size());
        for (const Segment& x : segments) {
          forget(x, bulk);
          release(x);
          lower_heads(x);
        }
      }
    });
    return;
  }
  collect(seq, in.p0, in.p1, segments);
  if (segments.empty()) return;
  Vector<int32_t> rest(segments.size(), kNone);
  for (size_t i = 0; i < segments.size(); ++i) {
    const int32_t set = segments[i].owners;
    if (set == seq) continue;
    rest[i] = i > 0 && segments[i - 1].owners == set ? rest[i - 1] : sets_.without(set, seq);
  }
  for (const Segment& s : segments) record(s);
  update(seq, [&](Runs& own) { own.erase(in.p0, in.p1); });  // a set of one is its id
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    if (rest[i] != kNone) {
      change_owners(s, rest[i]);
      continue;
    }
    release(s);
    lower_heads(s);
  }
}

void Cells::seq_cp(int32_t src, int32_t dst, int32_t p0, int32_t p1) {
  require(src, "src");
  require(dst, "dst");
  if (src == dst) return;
  if (n_streams() > 1) refuse("sequences with cells of their own cannot share any");
  const Interval in(p0, p1);
  enter();
  Vector<Segment> segments;
  collect(src, in.p0, in.p1, segments);
  Vector<int32_t> more(segments.size());
  const bool new_sequence = runs(dst).empty();
  for (size_t i = 0; i < segments.size(); ++i)
    more[i] = i > 0 && segments[i - 1].owners == segments[i].owners
                  ? more[i - 1]
                  : sets_.with(segments[i].owners, dst);
  for (size_t i = 0; i < segments.size(); ++i)
    if (more[i] != segments[i].owners) record(segments[i]);
  if (many(segments.size()) && !new_sequence) sequences_[dst].spoil();
  update(dst, [&](Runs& own) {
    if (new_sequence && in.p0 <= seq_pos_min(src) && in.p1 > seq_pos_max(src)) {
      own = runs(src);
    } else if (new_sequence) {
      Vector<Run> pieces;
      runs(src).each(in.p0, in.p1, [&](const Run& r) { pieces.push_back(r); });
      own.assign(pieces);
    } else {
      for (size_t i = 0; i < segments.size(); ++i)
        if (more[i] != segments[i].owners) own.insert(segments[i].run());
    }
  });
  for (size_t i = 0; i < segments.size(); ++i)
    if (more[i] != segments[i].owners) change_owners(segments[i], more[i]);
  if (llama_2024_) heads_[0] = 0;
}

void Cells::seq_keep(int32_t seq) {
  require(seq, "seq");
  enter();
  // In 2024 the head also fell to a cell that was already empty.
  int64_t first = size();
  if (llama_2024_) {
    first = free_.next(0);
    for (int64_t c = 0; c < first; ++c)
      if (!sets_.has(owners_[c], seq)) first = c;
  }
  atomically([&] {
    for (int32_t s = 0; s < n_seq_max_; ++s)
      if (s != seq) seq_rm(s, 0, kEnd);
  });
  if (first < size()) heads_[0] = std::min(heads_[0], first);
}

void Cells::seq_add(int32_t seq, int32_t p0, int32_t p1, int32_t delta) {
  require(seq, "seq");
  const Interval in(p0, p1);
  if (delta == 0 || in.p0 == in.p1) return;
  enter();
  Vector<Segment> segments;
  collect(seq, in.p0, in.p1, segments);
  for (const Segment& s : segments) {
    if (int64_t{s.pos} + s.len - 1 + delta >= kEnd)
      refuse("delta ", delta, " moves position ", s.pos + s.len - 1, " out of range");
  }
  int64_t first = size();  // of the cells that become free, all in one stream
  for (const Segment& s : segments) record(s);
  const bool together = move_together(segments, in.p0, in.p1);
  const bool bulk = many(segments.size());
  for (const Segment& s : segments)
    if (!together) forget(s, bulk);
  for (const Segment& s : segments) {
    const auto gone = int32_t(std::clamp<int64_t>(-(int64_t{s.pos} + delta), 0, s.len));
    if (gone > 0) {
      first = std::min<int64_t>(first, s.cell);
      release({s.cell, gone, s.step, s.pos, s.base, s.owners});
    }
    if (gone == s.len) continue;
    const Segment rest{s.cell + gone * s.step, s.len - gone,  gone + 1 < s.len ? s.step : 1,
                       s.pos + gone + delta,   s.base + gone, s.owners};
    fill(&pos_[rest.cell], rest.len, rest.step, rest.pos, 1);
    moved_.add(rest.cell, rest.end(), rest.step);
    if (!together) learn(rest, bulk);
  }
  if (together) update(segments[0].owners, [&](Runs& own) { own.shift(in.p0, in.p1, delta); });
  const int32_t stream = stream_of(seq);
  heads_[stream] = first < size() ? first : stream * share();
}

void Cells::seq_div(int32_t seq, int32_t p0, int32_t p1, int32_t divisor) {
  require(seq, "seq");
  if (divisor < 1) refuse("divisor must be 1 or more, not ", divisor);
  const Interval in(p0, p1);
  if (divisor == 1) return;
  enter();
  Vector<Segment> segments;
  collect(seq, in.p0, in.p1, segments);
  for (const Segment& s : segments) record(s);
  for (const Segment& s : segments) {
    stale(s);
    for (int64_t c = s.cell; c < s.end(); c += s.step) pos_[c] /= divisor;
    moved_.add(s.cell, s.end(), s.step);
  }
}

void Cells::clear() {
  enter();
  const int64_t end = top();
  record(0, end);
  for (Index& x : sequences_) x = {};
  std::fill_n(pos_.begin(), end, -1);
  std::fill_n(base_.begin(), end, -1);
  std::fill_n(owners_.begin(), end, kNone);
  free_.add(0, end);
  occupied_.remove(0, end);
  moved_.remove(0, end);
  for (int32_t set = 0; set < sets_.size(); ++set) sets_.count(set, -sets_.cells(set));
  for (size_t s = 0; s < heads_.size(); ++s) {
    heads_[s] = int64_t(s) * share();
    used_[s] = 0;
  }
}

void Cells::duplicate(const int64_t* from, const int64_t* to, int64_t n, int32_t seq, bool leave) {
  require(seq, "seq");
  enter();
  require_free(to, n);
  Vector<Segment> old, copies;
  Vector<int32_t> rest;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = from[i];
    if (c < 0 || c >= size() || owners_[c] == kNone || (leave && !sets_.has(owners_[c], seq)))
      refuse("cell ", c, " is not a cell of the sequence");
    if (leave && owners_[c] == seq) refuse("cell ", c, " is not shared");
    if (n_streams() > 1 && to[i] / share() != seq)
      refuse("cell ", to[i], " is not in the share of sequence ", seq);
    if (i > 0 && copies.back().cell + copies.back().len == to[i] && c == from[i - 1] + 1 &&
        owners_[c] == old.back().owners && pos_[c] == pos_[c - 1] + 1 &&
        base_[c] == base_[c - 1] + 1) {
      ++old.back().len;
      ++copies.back().len;
      continue;
    }
    old.push_back({int32_t(c), 1, 1, pos_[c], base_[c], owners_[c]});
    copies.push_back({int32_t(to[i]), 1, 1, pos_[c], base_[c], seq});
    if (leave) rest.push_back(sets_.without(owners_[c], seq));
  }
  for (const Segment& s : copies) record(s.cell, s.len);  // what they replace
  if (leave)
    for (const Segment& s : old) record(s);
  const bool bulk = many(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (leave) {
      forget({old[i].cell, old[i].len, 1, old[i].pos, old[i].base, seq}, bulk);
      change_owners(old[i], rest[i]);
    }
    write(copies[i], extras_.empty() ? nullptr : &extras_[old[i].cell]);
    learn(copies[i], bulk);
  }
}

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
      refuse("a move must go from used cells to free ones");
    segments(m.from, m.n, 1, old);
    for (size_t i = to.size(); i < old.size(); ++i)
      to.push_back(int32_t(m.to + old[i].cell - m.from));
  }
  for (const auto side : {&Move::from, &Move::to}) {
    std::vector<Move> sorted = moves;
    std::sort(sorted.begin(), sorted.end(),
              [side](const Move& a, const Move& b) { return a.*side < b.*side; });
    for (size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i - 1].*side + sorted[i - 1].n > sorted[i].*side)
        refuse("moves must not meet: each cell is free for one of them");
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
