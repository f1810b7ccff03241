// The texts of a vocabulary's tokens, and what samplers read of them.
#pragma once

#include "bind.hpp"
#include "errors.hpp"

namespace aleator {

// One text after the other; read only, and shared by the samplers that are made from it.
struct TokenTexts {
  std::string texts;
  std::vector<int64_t> starts{0};  // one more than there are tokens

  explicit TokenTexts(const nb::list& pieces) {
    for (const nb::handle piece : pieces) {
      const auto bytes = nb::cast<nb::bytes>(piece);
      texts.append(bytes.c_str(), bytes.size());
      starts.push_back(int64_t(texts.size()));
    }
  }
  TokenTexts(const nb::bytes& all, const Array<const int64_t>& ends)
      : texts(all.c_str(), all.size()) {
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends(i) < starts.back() || ends(i) > int64_t(texts.size()))
        throw ParameterError("vocabulary", "the ends of the tokens' texts are out of order");
      starts.push_back(ends(i));
    }
  }
  int32_t size() const { return int32_t(starts.size() - 1); }
  std::string_view text(int32_t token) const {
    if (token >= size()) return {};
    return std::string_view(texts).substr(starts[token], starts[token + 1] - starts[token]);
  }
};

// The same with the tokens that end generation.
struct InfillVocabulary : TokenTexts {
  std::vector<uint8_t> ends_generation;
  int32_t end_of_turn;  // what is left when no text survives

  InfillVocabulary(const nb::list& pieces, const std::vector<int32_t>& eog, int32_t end)
      : TokenTexts(pieces), ends_generation(pieces.size()), end_of_turn(end) {
    for (const int32_t token : eog) {
      check(token, "an end-of-generation token");
      ends_generation[token] = 1;
    }
    check(end, "the end-of-turn token");
  }

  bool ends(int32_t token) const { return token < size() && ends_generation[token]; }

 private:
  void check(int32_t token, const char* what) const {
    if (token < 0 || token >= size())
      throw ParameterError("vocabulary", what, " is ", token, ", but the vocabulary has ", size(),
                           " tokens");
  }
};

}  // namespace aleator
