// Constraint as Python sees it, whatever grammar stands behind it.
#include "grammar/constraint.hpp"

#include "bind.hpp"
#include "errors.hpp"
#include "samplers/binding.hpp"

namespace aleator {

ALEATOR_BIND(constraint) {
  nb::class_<Constraint>(m, "Constraint",
                         "Which token may come next, given those accepted.  One thread at a time; "
                         "clones are independent.")
      .def_prop_ro("n_vocab", &Constraint::n_vocab, "Size of the vocabulary.")
      .def_prop_ro("waiting", &Constraint::waiting,
                   "Whether this is a lazy grammar before its trigger: everything is allowed.")
      .def_prop_ro("complete", &Constraint::complete,
                   "Whether the text so far is a whole sentence: the generation may end.")
      .def(
          "mask",
          [](Constraint& c) {
            std::vector<uint32_t> words(static_cast<size_t>(mask_words(c.n_vocab())));
            c.mask(words.data());
            return to_numpy(std::move(words));
          },
          "Tokens allowed next: uint32 words, bit ``id % 32`` of word ``id // 32``.")
      .def(
          "mask_into",
          [](Constraint& c, const Array<uint32_t>& words) {
            if (static_cast<int64_t>(words.shape(0)) != mask_words(c.n_vocab()))
              throw ParameterError("words", "words must have " +
                                                std::to_string(mask_words(c.n_vocab())) +
                                                " elements, one bit a token");
            c.mask(words.data());
          },
          "words"_a.noconvert(), "Write the words of mask() into a contiguous uint32 array.")
      .def("allows", &Constraint::allows, "token"_a,
           "Whether one token is allowed next: cheaper than a mask.")
      .def("accept", &Constraint::accept, "token"_a,
           "Add a token.  Raises ConstraintError, nothing changed, if it is not allowed.")
      .def("rollback", &Constraint::rollback, "n"_a, "Take back the last ``n`` tokens.")
      .def("reset", &Constraint::reset, "Back to the beginning.")
      .def(
          "jump_forward",
          [](Constraint& c) {
            const std::string forced = c.jump_forward();
            return nb::bytes(forced.data(), forced.size());
          },
          "Bytes that the grammar forces next; none where it leaves a choice.")
      .def("clone", &Constraint::clone, "An independent copy that goes on from here.");
}

}  // namespace aleator
