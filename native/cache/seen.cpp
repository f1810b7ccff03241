// Which cells the tokens of a micro-batch attend to, as lists in order of position.
//
// The tokens of one sequence share a list, of which each sees a beginning; so a list costs what its
// sequence holds, not tokens times cells, and sums run in the order of the text wherever it lies.
#include <algorithm>

#include "bind.hpp"
#include "cache/cells.hpp"
#include "errors.hpp"

namespace aleator::cache {
namespace {

using Pairs =
    std::optional<nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>>;

nb::tuple seen_cells(const Cells& book, Array<const int32_t> positions, Array<const int32_t> seqs,
                     bool causal, std::optional<Array<const int32_t>> key_positions,
                     Pairs coordinates) {
  const int64_t n_tokens = int64_t(positions.size());
  if ((key_positions && int64_t(key_positions->size()) < book.top()) ||
      int64_t(seqs.size()) != n_tokens)
    refuse("sizes disagree");
  if (coordinates && (int64_t(coordinates->shape(0)) != n_tokens || !book.extras()))
    refuse("coordinates must be [tokens, 2], of cells with extras");
  const Extra* const at = coordinates ? book.extras() : nullptr;
  const int32_t *pos = book.positions(), *key_pos = key_positions ? key_positions->data() : 0;
  std::vector<int32_t> cells, list(n_tokens), deltas;
  std::vector<int64_t> start(1, 0), count(n_tokens);
  std::vector<int32_t> list_seq;
  const auto before = [pos, at](int32_t a, int32_t b) {
    if (pos[a] != pos[b]) return pos[a] < pos[b];
    if (at && (at[a].y != at[b].y || at[a].x != at[b].x)) return at[b].after(at[a].y, at[a].x);
    return a < b;
  };
  for (int64_t t = 0; t < n_tokens; t++) {
    const auto known = std::find(list_seq.begin(), list_seq.end(), seqs(t));
    list[t] = int32_t(known - list_seq.begin());
    if (known != list_seq.end()) continue;
    list_seq.push_back(seqs(t));
    cells.reserve(cells.size() + size_t(book.seq_cells(seqs(t))));
    bool ordered = true;
    int32_t end = 0;
    for (const Run& r : book.seq_runs(seqs(t), -1, -1)) {
      ordered &= r.pos >= end;
      end = r.end();
      for (int32_t c = r.cell; c < r.cell + r.len; c++) cells.push_back(c);
    }
    if (!ordered) std::sort(cells.begin() + start.back(), cells.end(), before);
    start.push_back(int64_t(cells.size()));
  }
  for (int64_t t = 0; t < n_tokens; t++) {
    const auto begin = cells.begin() + start[list[t]], end = cells.begin() + start[list[t] + 1];
    const auto after = [&](int32_t p, int32_t cell) {
      if (p != pos[cell] || !at) return p < pos[cell];
      return at[cell].after((*coordinates)(t, 0), (*coordinates)(t, 1));
    };
    count[t] = causal ? std::upper_bound(begin, end, positions(t), after) - begin : end - begin;
  }
  bool behind = false;
  if (key_pos)
    for (const int32_t c : cells) behind |= key_pos[c] != pos[c];
  if (behind)
    for (const int32_t c : cells) deltas.push_back(pos[c] - key_pos[c]);
  return nb::make_tuple(owned_array(std::move(cells)), owned_array(std::move(start)),
                        owned_array(std::move(list)), owned_array(std::move(count)),
                        behind ? nb::cast(owned_array(std::move(deltas))) : nb::none());
}

// Of each token's list, how many cells at its beginning lie before the token's window.
nb::ndarray<nb::numpy, int64_t> before_window(const Cells& book, Array<const int32_t> cells,
                                              Array<const int64_t> start, Array<const int32_t> list,
                                              Array<const int32_t> positions, int32_t window,
                                              bool chunked) {
  if (window < 1) refuse("window must be at least 1");
  const int64_t lists = int64_t(start.size()) - 1;
  if (list.size() != positions.size() || lists < 0 || start(lists) > int64_t(cells.size()))
    refuse("sizes disagree");
  for (int64_t i = 0; i < lists; i++)
    if (start(i) < 0 || start(i) > start(i + 1)) refuse("list_start must ascend");
  for (size_t i = 0; i < cells.size(); i++)
    if (cells(i) < 0 || cells(i) >= book.size()) refuse("a cell is out of range");
  const int32_t* pos = book.positions();
  std::vector<int64_t> first(list.size());
  for (size_t t = 0; t < list.size(); t++) {
    if (list(t) < 0 || list(t) >= lists) refuse("there is no such list");
    const int32_t *begin = cells.data() + start(list(t)), *end = cells.data() + start(list(t) + 1);
    const int64_t low = window_begin(positions(t), window, chunked);
    first[t] = std::partition_point(begin, end, [&](int32_t c) { return pos[c] < low; }) - begin;
  }
  return owned_array(std::move(first));
}

}  // namespace

ALEATOR_BIND(seen) {
  m.def("seen_cells", &seen_cells, "cells"_a, "positions"_a, "seqs"_a, "causal"_a,
        "key_positions"_a.none(), "coordinates"_a = nb::none(),
        "(seen, list_start, seen_list, seen_count, seen_deltas) of the tokens at positions[t] in "
        "sequence seqs[t], as DecoderStep.run wants them: for each sequence the cells that it "
        "owns, in order of position, of which a token sees those not after it (causal) or all. "
        "coordinates (int32 [tokens, 2]: y, x) orders the cells of one position. seen_deltas: "
        "positions minus key_positions of the listed cells; None if all 0.");
  m.def("before_window", &before_window, "cells"_a, "seen"_a, "list_start"_a, "seen_list"_a,
        "positions"_a, "window"_a, "chunked"_a = false,
        "int64 [tokens]: of the list of each token at positions[t], as seen_cells gave it, how "
        "many cells at its beginning lie below positions[t] - window + 1, or chunked: below the "
        "multiple of window that is next at or below positions[t].");
}

}  // namespace aleator::cache
