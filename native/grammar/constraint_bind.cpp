// Constraints as Python sees them, and GBNF: src/aleator/grammar/gbnf.py.
#include "bind.hpp"
#include "errors.hpp"
#include "grammar/gbnf_constraint.hpp"
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
            std::vector<uint32_t> words(mask_words(c.n_vocab()));
            c.mask(words.data());
            return to_numpy(std::move(words));
          },
          "Tokens allowed next: uint32 words, bit ``id % 32`` of word ``id // 32``.")
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

ALEATOR_BIND(gbnf) {
  nb::class_<TokenTrie>(m, "TokenTrie",
                        "A vocabulary as grammars read it: built once, then shared.")
      .def(nb::new_([](const nb::list& pieces, const std::vector<int32_t>& eog) {
             std::vector<std::string> texts;
             texts.reserve(pieces.size());
             for (const nb::handle piece : pieces) {
               const auto bytes = nb::cast<nb::bytes>(piece);
               texts.emplace_back(bytes.c_str(), bytes.size());
             }
             for (const int32_t token : eog)
               if (token < 0 || size_t(token) >= texts.size())
                 throw ParameterError("eog",
                                      "an end-of-generation token is outside the vocabulary");
             return std::make_shared<TokenTrie>(std::move(texts), eog);
           }),
           "pieces"_a, "eog"_a)
      .def_prop_ro("bytes", &TokenTrie::bytes);

  m.attr("GRAMMAR_ELEMENTS") = kMaxElements;
  m.def(
      "compile_gbnf",
      [](const std::string& text, const std::string& root, std::shared_ptr<const TokenTrie> trie,
         const nb::callable& token_of, const std::vector<std::string>& trigger_patterns,
         std::vector<int32_t> trigger_tokens) -> std::unique_ptr<Constraint> {
        nb::gil_scoped_release release;  // a million elements take a good part of a second
        Gbnf grammar = parse_gbnf(text, root, trie->n_vocab(), [&](std::string_view token) {
          const nb::gil_scoped_acquire acquire;
          return nb::cast<int32_t>(token_of(nb::str(token.data(), token.size())));
        });
        std::vector<TriggerPattern> patterns(trigger_patterns.begin(), trigger_patterns.end());
        return std::make_unique<GbnfConstraint>(
            std::make_shared<const GbnfProgram>(std::move(grammar), std::move(trie)),
            std::move(patterns), std::move(trigger_tokens));
      },
      "text"_a, "root"_a, "trie"_a, "token_of"_a, "trigger_patterns"_a, "trigger_tokens"_a);
}

}  // namespace aleator
