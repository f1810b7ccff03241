// Contract: docs/llama-cpp.md.  Gone from llama.cpp; its behaviour lives on inside other samplers.
#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void softmax(Row& row) { row.softmax(true); }

ALEATOR_BIND(llama_softmax) { bind_stateless<softmax, LlamaSampler>(m, "LlamaSoftmax"); }

}  // namespace aleator::llama
