// Contract: docs/llama-cpp.md.  Gone from llama.cpp; its behaviour lives on inside other samplers.
#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class Softmax : public LlamaCloned<Softmax> {
 public:
  void apply(Row& row, const History&) override { row.softmax(true); }
};

ALEATOR_BIND(llama_softmax) {
  nb::class_<Softmax, LlamaSampler>(m, "LlamaSoftmax").def(nb::init<>());
}

}  // namespace aleator::llama
