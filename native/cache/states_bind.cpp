
#include "bind.hpp"
#include "cache/states.hpp"

namespace {

using aleator::cache::States;

nb::tuple pair_of(const std::pair<int32_t, int32_t>& state) {
  return nb::make_tuple(state.first, state.second);
}

nb::tuple tuple_of(const States::History& history) {
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(history.size())));
  if (!made.is_valid()) throw nb::python_error();
  Py_ssize_t i = 0;
  for (const auto& state : history)
    if (PyTuple_SetItem(made.ptr(), i++, pair_of(state).release().ptr())) throw nb::python_error();
  return nb::borrow<nb::tuple>(made);
}

// Made here and not by a caster: those end the process when an allocation fails.
States::Book book_of(const nb::dict& histories) {
  States::Book book;
  for (const auto& [seq, history] : histories) {
    States::History& made = book[nb::cast<int32_t>(seq)];
    for (nb::handle state : history) made.push_back(nb::cast<std::pair<int32_t, int32_t>>(state));
  }
  return book;
}

}  // namespace

ALEATOR_BIND(states) {
  nb::class_<States>(m, "States",
                     "Whose states the rows of a recurrent pool hold.\n\n"
                     "A sequence's history is a tuple of (row, position), oldest first. Rows are "
                     "free when no history has them, and none that an open frame would bring back.")
      .def(nb::init<int32_t>(), "n_rows"_a)
      .def_prop_ro("n_rows", &States::n_rows, "Rows, free ones included.")
      .def_prop_ro("version", &States::version, "Changes with every change.")
      .def(
          "history",
          [](const States& s, int32_t seq) {
            const auto* found = s.history(seq);
            return found ? tuple_of(*found) : nb::tuple();
          },
          "seq"_a, nb::sig("def history(self, seq: int) -> tuple[tuple[int, int], ...]"),
          "A sequence's states, oldest first; () if it is empty.")
      .def(
          "newest",
          [](const States& s, int32_t seq) -> nb::object {
            const auto* found = s.history(seq);
            return found ? nb::object(pair_of(found->back())) : nb::none();
          },
          "seq"_a, nb::sig("def newest(self, seq: int) -> tuple[int, int] | None"),
          "The last of them; None if it is empty.")
      .def(
          "book",
          [](const States& s) {
            nb::dict book;
            for (const auto& [seq, history] : s.book()) book[nb::int_(seq)] = tuple_of(history);
            return book;
          },
          nb::sig("def book(self) -> dict[int, tuple[tuple[int, int], ...]]"),
          "Every sequence that is not empty, with its history; a copy.")
      .def("free_rows", &States::free_rows, "n"_a,
           "The lowest n free rows, or fewer; they stay free.")
      .def("held", &States::held, "first"_a,
           "How many rows sequences from first on hold, or would if the open frames were taken "
           "back.")
      .def("grow", &States::grow, "n"_a, "Add so many rows, for good.")
      .def(
          "change", [](States& s, const nb::dict& histories) { s.change(book_of(histories)); },
          "histories"_a,
          nb::sig("def change(self, histories: dict[int, tuple[tuple[int, int], ...]]) -> None"),
          "Replace histories, all or none. ValueError for a row that there is not.")
      .def("check", &States::check, "Raise RuntimeError if rows are lost or held twice.");
}
