#pragma once

#include "bind.hpp"
#include "errors.hpp"

namespace aleator {

// The texts of a vocabulary's tokens, one after the other, and which tokens end generation.  Read
// only, and shared by the samplers that are made from it.
struct InfillVocabulary {
  std::string texts;
  std::vector<int64_t> starts;  // one more than there are tokens
  std::vector<uint8_t> ends_generation;
  int32_t end_of_turn;  // what is left when no text survives

  InfillVocabulary(const nb::list& pieces, const std::vector<int32_t>& eog, int32_t end)
      : end_of_turn(end) {
    starts.push_back(0);
    for (const nb::handle piece : pieces) {
      const auto bytes = nb::cast<nb::bytes>(piece);
      texts.append(bytes.c_str(), bytes.size());
      starts.push_back(static_cast<int64_t>(texts.size()));
    }
    ends_generation.assign(pieces.size(), 0);
    for (const int32_t token : eog) {
      check(token, "an end-of-generation token");
      ends_generation[token] = 1;
    }
    check(end, "the end-of-turn token");
  }

  std::string_view text(int32_t token) const {
    if (token >= size()) return {};
    return std::string_view(texts).substr(starts[token], starts[token + 1] - starts[token]);
  }
  bool ends(int32_t token) const { return token < size() && ends_generation[token]; }
  int32_t size() const { return static_cast<int32_t>(ends_generation.size()); }

 private:
  void check(int32_t token, const char* what) const {
    if (token < 0 || token >= size())
      throw ParameterError("vocabulary", what, " is ", token, ", but the vocabulary has ", size(),
                           " tokens");
  }
};

}  // namespace aleator
