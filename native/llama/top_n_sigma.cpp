// Contract: docs/llama-cpp.md
#include <cmath>

#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class TopNSigma : public LlamaCloned<TopNSigma> {
 public:
  explicit TopNSigma(float n) : n_(n) {}

  void apply(Row& row, const History&) override {
    if (n_ <= 0 || row.size() <= 1) return;
    float sum = 0;
    int64_t count = 0;
    row.each([&](float z) {
      if (z != -infinity) sum += z, ++count;
    });
    if (!count) nothing_finite();
    const float mean = sum / static_cast<float>(count);
    float squares = 0;  // each square in float64, each sum rounded to float32
    row.each([&](float z) {
      if (z == -infinity) return;
      const double d = z - mean;
      squares = static_cast<float>(squares + d * d);
    });
    row.mask_below(row.top() - n_ * std::sqrt(squares / static_cast<float>(count)));
  }

 private:
  float n_;
};

ALEATOR_BIND(llama_top_n_sigma) {
  nb::class_<TopNSigma, LlamaSampler>(m, "LlamaTopNSigma").def(nb::init<float>(), "top_n_sigma"_a);
}

}  // namespace aleator::llama
