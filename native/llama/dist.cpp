// Contract: docs/llama-cpp.md
#include "bind.hpp"
#include "llama/draws.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class Dist : public LlamaCloned<Dist> {
 public:
  explicit Dist(uint32_t seed) : draws_(seed) {}

  // Draws for a single candidate too.
  void apply(Row& row, const History&) override {
    row.selected = row.draw(draws_.uniform_double());
  }

  void reset() override { draws_.reset(); }
  bool has_state() const override { return true; }
  State state() const override { return {.words = draws_.words()}; }
  void restore(const State& s) override { draws_.rewind(s.words); }

 private:
  Draws draws_;
};

ALEATOR_BIND(llama_dist) {
  nb::class_<Dist, LlamaSampler>(m, "LlamaDist").def(nb::init<uint32_t>(), nb::arg("seed"));
}

}  // namespace aleator::llama
