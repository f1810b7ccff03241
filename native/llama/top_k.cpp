// Contract: docs/llama-cpp.md
#include <algorithm>

#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class TopK : public LlamaCloned<TopK> {
 public:
  explicit TopK(int64_t top_k) : top_k_(top_k) {}
  void apply(Row& row, const History&) override {
    if (top_k_ <= 0) return;
    const int64_t k = std::min(top_k_, row.size());
    if (row.sorted)
      row.truncate(k);
    else
      row.sort(k);
  }

 private:
  int64_t top_k_;
};

ALEATOR_BIND(llama_top_k) {
  nb::class_<TopK, LlamaSampler>(m, "LlamaTopK").def(nb::init<int64_t>(), "top_k"_a);
}

}  // namespace aleator::llama
