// Which cells the tokens of a micro-batch attend to, as lists in order of position.
//
// The tokens of one sequence share a list, of which each sees a beginning; so a list costs what its
// sequence holds, not tokens times cells, and sums run in the order of the text wherever it lies.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bind.hpp"

namespace {

using namespace nb::literals;
template <class T, int n = 1>
using In = nb::ndarray<const T, nb::ndim<n>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T> array(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), {kept->size()}, owner);
}

nb::tuple seen_cells(In<int32_t> cell_positions, In<uint64_t, 2> owners, int64_t top,
                     In<int32_t> positions, In<int32_t> seqs, bool causal,
                     std::optional<In<int32_t>> key_positions) {
  const int64_t words = int64_t(owners.shape(1)), n_tokens = int64_t(positions.size());
  if (top < 0 || top > int64_t(cell_positions.size()) || top > int64_t(owners.shape(0)) ||
      (key_positions && top > int64_t(key_positions->size())) || int64_t(seqs.size()) != n_tokens)
    throw std::invalid_argument("sizes disagree");
  for (int64_t t = 0; t < n_tokens; t++)
    if (seqs(t) < 0 || seqs(t) >= words * 64)
      throw std::invalid_argument("sequence " + std::to_string(seqs(t)));
  const int32_t *pos = cell_positions.data(), *key_pos = key_positions ? key_positions->data() : 0;
  std::vector<int32_t> cells, list(static_cast<size_t>(n_tokens)), deltas;
  std::vector<int64_t> start(1, 0), count(static_cast<size_t>(n_tokens));
  std::vector<int32_t> list_seq;
  const auto before = [pos](int32_t a, int32_t b) {
    return pos[a] != pos[b] ? pos[a] < pos[b] : a < b;
  };
  for (int64_t t = 0; t < n_tokens; t++) {
    const auto known = std::find(list_seq.begin(), list_seq.end(), seqs(t));
    list[t] = int32_t(known - list_seq.begin());
    if (known != list_seq.end()) continue;
    list_seq.push_back(seqs(t));
    const uint64_t* owner = owners.data() + seqs(t) / 64;
    const uint64_t bit = uint64_t(1) << (seqs(t) % 64);
    bool ordered = true;
    int32_t last = -1;
    for (int64_t j = 0; j < top; j++) {
      if (!(owner[j * words] & bit)) continue;
      ordered &= pos[j] >= last;
      last = pos[j];
      cells.push_back(int32_t(j));
    }
    if (!ordered) std::sort(cells.begin() + start.back(), cells.end(), before);
    start.push_back(int64_t(cells.size()));
  }
  for (int64_t t = 0; t < n_tokens; t++) {
    const auto begin = cells.begin() + start[list[t]], end = cells.begin() + start[list[t] + 1];
    count[t] = causal ? std::upper_bound(begin, end, positions(t),
                                         [pos](int32_t p, int32_t cell) { return p < pos[cell]; }) -
                            begin
                      : end - begin;
  }
  bool behind = false;
  if (key_pos)
    for (const int32_t c : cells) behind |= key_pos[c] != pos[c];
  if (behind)
    for (const int32_t c : cells) deltas.push_back(pos[c] - key_pos[c]);
  return nb::make_tuple(array(std::move(cells)), array(std::move(start)), array(std::move(list)),
                        array(std::move(count)),
                        behind ? nb::cast(array(std::move(deltas))) : nb::none());
}

}  // namespace

ALEATOR_BIND(seen) {
  m.def("seen_cells", &seen_cells, "cell_positions"_a, "owners"_a, "top"_a, "positions"_a, "seqs"_a,
        "causal"_a, "key_positions"_a.none(),
        "(seen, list_start, seen_list, seen_count, seen_deltas) of the tokens at positions[t] in "
        "sequence seqs[t], as DecoderStep.run wants them: for each sequence the cells below top "
        "that it owns, in order of position, of which a token sees those not after it (causal) or "
        "all. seen_deltas: positions minus key_positions of the listed cells; None if all 0.");
}
