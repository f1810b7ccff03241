// Contract: docs/llama-cpp.md
#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class TopP : public LlamaCloned<TopP> {
 public:
  TopP(float top_p, int64_t min_keep) : top_p_(top_p), min_keep_(min_keep) {}

  void apply(Row& row, const History&) override {
    if (top_p_ >= 1) return;
    row.softmax(false);
    row.keep_mass(top_p_, min_keep_);
  }

 private:
  float top_p_;
  int64_t min_keep_;
};

ALEATOR_BIND(llama_top_p) {
  nb::class_<TopP, LlamaSampler>(m, "LlamaTopP")
      .def(nb::init<float, int64_t>(), "top_p"_a, "min_keep"_a);
}

}  // namespace aleator::llama
