// GBNF in Python: src/aleator/grammar/gbnf.py.
#include "bind.hpp"
#include "errors.hpp"
#include "grammar/gbnf_constraint.hpp"

namespace aleator {

ALEATOR_BIND(gbnf) {
  nb::class_<TokenTrie>(m, "TokenTrie",
                        "A vocabulary as grammars read it: built once, then shared.")
      .def(
          "__init__",
          [](TokenTrie* self, const nb::list& pieces, const std::vector<int32_t>& eog) {
            std::vector<std::string> texts;
            texts.reserve(pieces.size());
            for (const nb::handle piece : pieces) {
              const auto bytes = nb::cast<nb::bytes>(piece);
              texts.emplace_back(bytes.c_str(), bytes.size());
            }
            for (const int32_t token : eog)
              if (token < 0 || static_cast<size_t>(token) >= texts.size())
                throw ParameterError("eog", "an end-of-generation token is outside the vocabulary");
            new (self) TokenTrie(std::move(texts), eog);
          },
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
