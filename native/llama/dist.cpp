// Contract: docs/llama-cpp.md
#include "bind.hpp"
#include "llama/draws.hpp"

namespace aleator::llama {

class Dist : public Drawing<Dist> {
 public:
  using Drawing::Drawing;

  // Draws for a single candidate too.
  void apply(Row& row, const History&) override {
    row.selected = row.draw(draws_.uniform_double());
  }
};

ALEATOR_BIND(llama_dist) {
  nb::class_<Dist, LlamaSampler>(m, "LlamaDist").def(nb::init<uint32_t>(), "seed"_a);
}

}  // namespace aleator::llama
