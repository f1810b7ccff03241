// Contract: docs/llama-cpp.md
#include <cmath>

#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class MinP : public LlamaCloned<MinP> {
 public:
  MinP(float min_p, int64_t min_keep)
      : min_p_(min_p), log_min_p_(std::log(min_p)), min_keep_(min_keep) {}

  void apply(Row& row, const History&) override {
    if (min_p_ <= 0) return;
    if (!row.sorted) {
      const float top = row.top();
      if (top == -infinity) nothing_finite();
      if (row.keep_at_least(top + log_min_p_, min_keep_)) return;
      row.sort(row.size());
    }
    const Candidate* c = row.list();
    const float threshold = c[0].logit + log_min_p_;
    int64_t kept = 1;
    while (kept < row.size() && (c[kept].logit >= threshold || kept < min_keep_)) ++kept;
    row.truncate(kept);
  }

 private:
  float min_p_, log_min_p_;
  int64_t min_keep_;
};

ALEATOR_BIND(llama_min_p) {
  nb::class_<MinP, LlamaSampler>(m, "LlamaMinP")
      .def(nb::init<float, int64_t>(), "min_p"_a, "min_keep"_a);
}

}  // namespace aleator::llama
