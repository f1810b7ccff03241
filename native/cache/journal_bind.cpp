#include "bind.hpp"
#include "cache/cells.hpp"
#include "cache/journal.hpp"
#include "cache/states.hpp"

namespace aleator::cache {
namespace {

// The frame of one block under `with`.  Entering and leaving are native, so that a block that was
// entered is left whatever comes between.
class Transaction {
 public:
  explicit Transaction(nb::object journal)
      : kept_(journal), journal_(nb::cast<Journal*>(journal)) {}

  nb::object enter(nb::handle self) {
    journal_->begin(nb::borrow(self));
    nb::object done = nb::steal(PyObject_CallMethod(self.ptr(), "_entered", nullptr));
    if (!done.is_valid()) {
      nb::python_error error;
      journal_->close(self, false);
      throw error;
    }
    return nb::borrow(self);
  }
  void exit(nb::handle self, bool failed) { journal_->close(self, !failed && !cancelled_); }
  void cancel() { cancelled_ = true; }

 private:
  nb::object kept_;
  Journal* journal_;
  bool cancelled_ = false;
};

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

ALEATOR_BIND(journal) {
  nb::class_<Journal>(m, "Journal",
                      "One undo log for everything that a cache can change.\n\n"
                      "Its frames nest. Each of its methods is atomic to signals and to trace "
                      "functions. A second thread waits until the first has closed its frames.")
      .def(nb::init<>())
      .def_rw("lock_timeout", &Journal::lock_timeout,
              "Seconds that a second thread waits before CacheBusy is raised; None: without end.",
              nb::arg().none())
      .def(
          "enlist",
          [](Journal& j, nb::object part) {
            if (nb::isinstance<Cells>(part))
              j.enlist(part, nb::cast<Cells*>(part));
            else
              j.enlist(part, nb::cast<States*>(part));
          },
          nb::sig("def enlist(self, part: Cells | States) -> None"),
          "Let a part's changes be taken back with the others. RuntimeError within a frame.")
      .def_prop_ro("depth", &Journal::depth, "How many frames are open.")
      .def_prop_ro("frame", &Journal::frame,
                   "A number of the innermost frame that no other had; 0: none is open.")
      .def_prop_ro("current", &Journal::current, nb::sig("def current(self) -> object | None"),
                   "The innermost block under `with`, or None.")
      .def(
          "run",
          [](Journal& j, nb::callable function, nb::args args, nb::kwargs kwargs) {
            return j.run(std::move(function), std::move(args), std::move(kwargs), true);
          },
          "function"_a, "args"_a, "kwargs"_a,
          nb::sig("def run(self, function: collections.abc.Callable[..., typing.Any], *args: "
                  "typing.Any, **kwargs: typing.Any) -> typing.Any"),
          "Call a function in a frame of its own: what it changed stays if it returns, and is "
          "taken back exactly if it raises anything at all.")
      .def(
          "attempt",
          [](Journal& j, nb::callable function, nb::args args, nb::kwargs kwargs) {
            return j.run(std::move(function), std::move(args), std::move(kwargs), false);
          },
          "function"_a, "args"_a, "kwargs"_a,
          nb::sig("def attempt(self, function: collections.abc.Callable[..., typing.Any], *args: "
                  "typing.Any, **kwargs: typing.Any) -> typing.Any"),
          "As run, but what it changed is taken back even if it returns.")
      .def("set", &Journal::set, "target"_a, "name"_a, "value"_a.none(),
           nb::sig("def set(self, target: object, name: str, value: object) -> None"),
           "Set an attribute.")
      .def("put", &Journal::put, "target"_a, "key"_a, "value"_a.none(),
           nb::sig("def put(self, target: dict[typing.Any, typing.Any], key: object, value: "
                   "object) -> None"),
           "Set an entry of a dictionary.")
      .def("drop", &Journal::drop, "target"_a, "key"_a,
           nb::sig("def drop(self, target: dict[typing.Any, typing.Any], key: object) -> None"),
           "Remove an entry of a dictionary, if it is there.")
      .def("undo", &Journal::undo, "function"_a, "args"_a,
           nb::sig("def undo(self, function: collections.abc.Callable[..., object], *args: object) "
                   "-> None"),
           "Have a call made if the innermost frame is taken back. To be said before the change; "
           "the call may be made twice. Outside of frames nothing is taken back.")
      .def("after_commit", &Journal::after_commit, "function"_a, "args"_a,
           nb::sig("def after_commit(self, function: collections.abc.Callable[..., object], *args: "
                   "object) -> None"),
           "Have a call made once the outermost frame is committed, or now outside of frames; it "
           "may be made twice.");

  nb::class_<Transaction>(m, "Transaction",
                          "A block under `with` whose changes are taken back exactly if it raises "
                          "anything at all.\n\nOnce it is begun, the method _entered is called.")
      .def(nb::init<nb::object>(), "journal"_a,
           nb::sig("def __init__(self, journal: Journal) -> None"))
      .def(
          "__enter__", [](nb::handle self) { return nb::cast<Transaction&>(self).enter(self); },
          nb::sig("def __enter__(self) -> typing.Self"))
      .def(
          "__exit__",
          [](nb::handle self, nb::args args) {
            nb::cast<Transaction&>(self).exit(self, args.size() > 0 && !args[0].is_none());
          },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def(
          "_entered", [](Transaction&) {}, "What is to be done first; for subclasses.")
      .def("cancel", &Transaction::cancel,
           "Take everything back at the end of the block, although nothing was raised.");
}

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

}  // namespace aleator::cache
