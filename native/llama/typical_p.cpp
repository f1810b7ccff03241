// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

class TypicalP : public LlamaCloned<TypicalP> {
 public:
  TypicalP(float typical_p, int64_t min_keep) : typical_p_(typical_p), min_keep_(min_keep) {}

  void apply(Row& row, const History&) override {
    if (typical_p_ >= 1) return;
    row.softmax(true);
    const Candidate* c = row.list();
    // A probability of zero makes llama.cpp's entropy NaN; here such candidates are left out.  They
    // come last.
    int64_t n = row.size();
    while (c[n - 1].p == 0) --n;
    float entropy = 0;
    for (int64_t i = 0; i < n; ++i) entropy += -c[i].p * std::log(c[i].p);
    ranked_.resize(n);
    for (int64_t i = 0; i < n; ++i) ranked_[i] = {std::abs(-std::log(c[i].p) - entropy), c[i]};
    std::sort(ranked_.begin(), ranked_.end(),
              [](const Ranked& a, const Ranked& b) { return a.score < b.score; });
    float sum = 0;
    int64_t kept = 0;
    while (kept < n) {
      sum += ranked_[kept++].candidate.p;
      if (sum > typical_p_ && kept >= min_keep_) break;
    }
    Candidate* out = row.list();
    for (int64_t i = 0; i < kept; ++i) out[i] = ranked_[i].candidate;
    row.truncate(kept);
    row.sorted = false;
  }

 private:
  struct Ranked {
    float score;
    Candidate candidate;
  };
  float typical_p_;
  int64_t min_keep_;
  std::vector<Ranked> ranked_;
};

ALEATOR_BIND(llama_typical_p) {
  bind_sampler<TypicalP(float, int64_t)>(m, "LlamaTypicalP", "typical_p"_a, "min_keep"_a);
}

}  // namespace aleator::llama
