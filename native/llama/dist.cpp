// Contract: docs/llama-cpp.md
#include "llama/draws.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

class Dist : public Drawing<Dist> {
 public:
  using Drawing::Drawing;

  // Draws for a single candidate too.
  void apply(Row& row, const History&) override {
    row.selected = row.draw(draws_.uniform_double());
  }
};

ALEATOR_BIND(llama_dist) { bind_sampler<Dist(uint32_t)>(m, "LlamaDist", "seed"_a); }

}  // namespace aleator::llama
