#include <nanobind/stl/tuple.h>

#include "bind.hpp"
#include "cache/cells.hpp"
#include "errors.hpp"

namespace aleator::cache {
namespace {

using Rows = Array<const uint64_t, 2>;
// [tokens, 3]
using Triplets =
    std::optional<nb::ndarray<const int32_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>>;

void require_rows(const Cells& c, const Rows& owners, size_t n) {
  if (owners.shape(0) != n || owners.shape(1) != size_t(c.words()))
    refuse("owners must be uint64 [tokens, ceil(n_seq_max / 64)]");
}

const Extra* extras_of(const Triplets& extras, size_t n) {
  if (!extras) return nullptr;
  if (extras->shape(0) != n) refuse("extras must be int32 [tokens, 3]");
  static_assert(sizeof(Extra) == 3 * sizeof(int32_t));
  return reinterpret_cast<const Extra*>(extras->data());
}

nb::ndarray<nb::numpy, int64_t> place(Cells& c, Array<const int32_t> positions, Rows owners,
                                      bool contiguous, Triplets extras) {
  const size_t n = positions.shape(0);
  require_rows(c, owners, n);
  return owned_array(
      c.place(positions.data(), owners.data(), extras_of(extras, n), int64_t(n), contiguous));
}

void put(Cells& c, Array<const int64_t> cells, Array<const int32_t> positions, Rows owners,
         Triplets extras) {
  const size_t n = positions.shape(0);
  require_rows(c, owners, n);
  if (cells.shape(0) != n) refuse("cells and positions must be equally long");
  c.put(cells.data(), positions.data(), owners.data(), extras_of(extras, n), int64_t(n));
}

void duplicate(Cells& c, Array<const int64_t> from, Array<const int64_t> to, int32_t seq,
               bool leave) {
  if (from.shape(0) != to.shape(0)) refuse("from and to must be equally long");
  c.duplicate(from.data(), to.data(), int64_t(from.shape(0)), seq, leave);
}

auto owner_rows(const Cells& c) {
  std::vector<uint64_t> rows(c.size() * c.words());
  for (int64_t i = 0; i < c.size(); ++i)
    for (const int32_t s : c.owners(i)) rows[i * c.words() + s / 64] |= uint64_t{1} << (s % 64);
  return owned_array<nb::ndim<2>>(std::move(rows), {size_t(c.size()), size_t(c.words())});
}

using Triples = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

}  // namespace

ALEATOR_BIND(cells) {
  m.def(
      "fail_allocation", [](int64_t n) { allocations_left = n; }, "n"_a,
      "For tests: the cells' n-th allocation from now in this thread fails; -1: none does.");

  nb::class_<Cells>(m, "Cells",
                    "What each cell of a KV cache holds: position, owners, pending shift.\n\n"
                    "Ranges of positions are [p0, p1); p0 < 0 means 0 and p1 < 0 means infinity. "
                    "An id out of range raises ValueError.")
      .def(nb::init<int64_t, int32_t, bool, bool, bool>(), "size"_a, "n_seq_max"_a = 1,
           "streams"_a = false, "llama_2024"_a = false, "extras"_a = false,
           "streams: every sequence has size / n_seq_max cells to itself. llama_2024: the head "
           "follows llama.cpp's rules of 2024. extras: every cell also holds y, x and token.")
      .def_prop_ro("size", &Cells::size)
      .def_prop_ro("n_seq_max", &Cells::n_seq_max)
      .def_prop_ro("n_streams", &Cells::n_streams)
      .def_prop_ro("words", &Cells::words, "64-bit words of a row of owners.")
      .def_prop_ro("used", &Cells::used, "Cells that hold a token.")
      .def_prop_ro(
          "head", [](const Cells& c) { return c.heads()[0]; },
          "Where the next search starts; may equal size. With streams, the first one's.")
      .def_prop_ro("heads", &Cells::heads, "The head of every stream.")
      .def_prop_ro("top", &Cells::top, "Index of the highest used cell + 1.")
      .def_prop_ro("has_shift", &Cells::has_shift, "Does a stored key wait for a rotation?")
      .def_prop_ro("version", &Cells::version, "Changes with every change.")
      .def_prop_ro("shared_cells", &Cells::shared_cells, "Cells with several owners.")
      .def_prop_ro(
          "positions",
          [](const Cells& c) {
            return nb::ndarray<nb::numpy, const int32_t>(c.positions(), {(size_t)c.size()});
          },
          nb::rv_policy::reference_internal, "int32 [size], read-only view; -1 is an empty cell.")
      .def_prop_ro(
          "extras",
          [](const Cells& c) -> std::optional<nb::ndarray<nb::numpy, const int32_t, nb::ndim<2>>> {
            if (!c.extras()) return std::nullopt;
            return nb::ndarray<nb::numpy, const int32_t, nb::ndim<2>>(
                reinterpret_cast<const int32_t*>(c.extras()), {size_t(c.size()), 3});
          },
          nb::rv_policy::reference_internal,
          "int32 [size, 3], read-only view: y, x and token (-1: an embedding) of each used cell; "
          "of an empty one anything. None without extras.")
      .def_prop_ro(
          "shifts",
          [](const Cells& c) {
            std::vector<int32_t> shifts(c.size());
            for (int64_t i = 0; i < c.size(); ++i) shifts[i] = c.shift(i);
            return owned_array(std::move(shifts));
          },
          nb::rv_policy::move,
          "int32 [size], a new array: how far each stored key must still be rotated.")
      .def_prop_ro("owners", &owner_rows, nb::rv_policy::move,
                   "uint64 [size, words], a new array; bit s of a row is sequence s. For one cell "
                   "owners_of costs less.")
      .def(
          "owners_of",
          [](const Cells& c, int64_t cell) {
            if (cell < 0 || cell >= c.size())
              refuse("cell must lie in [0, ", c.size(), "), not ", cell);
            const auto ids = c.owners(cell);
            return std::vector<int32_t>(ids.begin(), ids.end());
          },
          "cell"_a, "Ascending ids of the sequences that own a cell.")
      .def(
          "census",
          [](const Cells& c) {
            std::vector<int32_t> first(c.size(), -1), count(first.size());
            for (int64_t i = 0; i < c.size(); ++i) {
              const auto ids = c.owners(i);
              count[i] = int32_t(ids.size());
              if (!ids.empty()) first[i] = ids[0];
            }
            return nb::make_tuple(owned_array(std::move(first)), owned_array(std::move(count)));
          },
          "Each cell's lowest owner (-1: none) and how many it has, int32 [size] each.")
      .def("find", as_array(&Cells::find), "n"_a, "contiguous"_a = false, "stream"_a = 0,
           "The first n free cells in ring order from head, int64, or with contiguous the first n "
           "in a row, which do not wrap; empty if there are not that many.")
      .def("place", &place, "positions"_a, "owners"_a, "contiguous"_a = false,
           "extras"_a = nb::none(),
           "Give the cells that find names positions (int32 [n]), owners (uint64 [n, words]) and, "
           "if they have them, extras (int32 [n, 3]: y, x, token); return them.")
      .def("put", &put, "cells"_a, "positions"_a, "owners"_a, "extras"_a = nb::none(),
           "Give these free cells (int64 [n]) positions, owners and extras.")
      .def("take_in_ring", as_array(&Cells::take_in_ring), "n"_a, "window"_a, "keep"_a = 0,
           "stream"_a = 0, "chunked"_a = false,
           "As find, where cells count as free, too, whose only owner's next token does not see "
           "them in its window, nor as one of the first keep positions; their owners leave them. "
           "chunked: as for before_window. llama.cpp's rule.")
      .def("seq_rm", &Cells::seq_rm, "seq"_a, "p0"_a = -1, "p1"_a = -1)
      .def("seq_cp", &Cells::seq_cp, "src"_a, "dst"_a, "p0"_a = -1, "p1"_a = -1)
      .def("seq_keep", &Cells::seq_keep, "seq"_a)
      .def("seq_add", &Cells::seq_add, "seq"_a, "p0"_a, "p1"_a, "delta"_a)
      .def("seq_div", &Cells::seq_div, "seq"_a, "p0"_a, "p1"_a, "divisor"_a)
      .def("seq_pos_min", &Cells::seq_pos_min, "seq"_a, "-1 if the sequence is empty.")
      .def("seq_pos_max", &Cells::seq_pos_max, "seq"_a, "-1 if the sequence is empty.")
      .def("seq_cells", &Cells::seq_cells, "seq"_a, "How many cells the sequence owns.")
      .def(
          "seq_runs",
          [](const Cells& c, int32_t seq, int32_t p0, int32_t p1) {
            Triples out;
            for (const Run& r : c.seq_runs(seq, p0, p1)) out.emplace_back(r.pos, r.cell, r.len);
            return out;
          },
          "seq"_a, "p0"_a = -1, "p1"_a = -1,
          "The sequence's cells in a range, in order of position, as runs (position, cell, "
          "length).")
      .def(
          "seq_cell_list",
          [](const Cells& c, int32_t seq, int32_t p0, int32_t p1) {
            std::vector<int64_t> cells;
            for (const Run& r : c.seq_runs(seq, p0, p1))
              for (int32_t i = 0; i < r.len; ++i) cells.push_back(r.cell + i);
            return owned_array(std::move(cells));
          },
          "seq"_a, "p0"_a = -1, "p1"_a = -1,
          "The sequence's cells in a range, in order of position, int64.")
      .def("shared", as_array(&Cells::shared), "seq"_a, "p0"_a = -1, "p1"_a = -1,
           "The sequence's cells in a range that others own too, int64.")
      .def("sharers", &Cells::sharers, "seq"_a, "p0"_a = -1, "p1"_a = -1,
           "Ascending ids of the other sequences that own any of its cells in a range.")
      .def("follow_head", &Cells::follow_head, "dst"_a, "src"_a,
           "With streams: dst's head is where src's is in its own share.")
      .def("same_cells", &Cells::same_cells, "a"_a, "b"_a, "Do a and b own the same cells?")
      .def("duplicate", &duplicate, "source"_a, "target"_a, "seq"_a, "leave"_a,
           "Free cells target become what source are, owned by seq alone; with leave seq leaves "
           "source. The stored rows are copied by others.")
      .def("clear", &Cells::clear)
      .def("shifted", as_array(&Cells::shifted),
           "Cells whose stored key waits for a rotation, int64.")
      .def("clear_shifts", &Cells::clear_shifts)
      .def(
          "pending",
          [](const Cells& c) {
            std::vector<int64_t> cells = c.shifted();
            std::vector<int32_t> deltas;
            deltas.reserve(cells.size());
            for (const int64_t i : cells) deltas.push_back(c.shift(i));
            return nb::make_tuple(owned_array(std::move(cells)), owned_array(std::move(deltas)));
          },
          "The shifted cells, int64 [n], and how far each key must be rotated, int32 [n].")
      .def(
          "defrag_plan",
          [](const Cells& c, int64_t max_moves) {
            Triples out;
            for (const Move& x : c.defrag_plan(max_moves)) out.emplace_back(x.from, x.to, x.n);
            return out;
          },
          "max_moves"_a = -1,
          "Moves (from, to, length) of the last cells into the holes before them; negative: any "
          "number.")
      .def(
          "move",
          [](Cells& c, const Triples& moves) {
            std::vector<Move> list;
            for (const auto& [from, to, n] : moves) list.push_back({from, to, n});
            c.move(list);
          },
          "moves"_a, "Make moves of used cells to free ones. The stored rows are copied by others.")
      .def("begin", &Cells::begin, "Start a journal of all changes; may be nested.")
      .def("commit", &Cells::commit, "Keep the changes since the last begin.")
      .def("rollback", &Cells::rollback,
           "Restore the state at the last begin; after its commit too, until the next change.")
      .def(
          "used_before",
          [](const Cells& c, Array<const int64_t> cells) {
            return owned_array(c.used_before(cells.data(), int64_t(cells.shape(0))));
          },
          "cells"_a,
          "Those of the cells, ascending, that have held something else since the outermost begin "
          "that is not committed: what is stored there is needed if that is rolled back.")
      .def("map", &Cells::map,
           "One character per cell below top: '.' free, a digit its owner ('+' above 9), 'M' "
           "several.")
      .def("check", &Cells::check, "Raise RuntimeError if the indexes and the cells disagree.");
}

}  // namespace aleator::cache
