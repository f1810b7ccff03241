// llama.cpp's array of candidates as Python sees it: with its own copy of the logits, or, in a
// user's sampler, the row of the step under way.
#pragma once

#include "llama/row.hpp"
#include "samplers/binding.hpp"

namespace aleator::llama {

class LlamaCandidates : public Shown<Row> {
 public:
  explicit LlamaCandidates(PyCandidates& from) {
    bytes = from.bytes;
    own_.wants_p = true;
    own_.load(bytes.data(), from.get().n_vocab(), from.dtype);
  }
  explicit LlamaCandidates(Row& borrowed) : Shown(borrowed) {}
};

}  // namespace aleator::llama
