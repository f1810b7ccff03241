// Contract: docs/llama-cpp.md
#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class Greedy : public LlamaCloned<Greedy> {
 public:
  void apply(Row& row, const History&) override {
    if (row.top() == -infinity) nothing_finite();
    row.selected = row.argmax();
  }
};

ALEATOR_BIND(llama_greedy) { nb::class_<Greedy, LlamaSampler>(m, "LlamaGreedy").def(nb::init<>()); }

}  // namespace aleator::llama
