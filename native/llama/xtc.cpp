// Contract: docs/llama-cpp.md
#include "llama/draws.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

class XTC : public Drawing<XTC> {
 public:
  XTC(float probability, float threshold, int64_t min_keep, uint32_t seed)
      : Drawing(seed), probability_(probability), threshold_(threshold), min_keep_(min_keep) {}

  void apply(Row& row, const History&) override {
    if (probability_ <= 0 || threshold_ > 0.5f || row.size() < 2) return;
    if (draws_.uniform_float() > probability_) return;
    row.softmax(true);
    const Candidate* c = row.list();
    const auto viable = [&](int64_t i) { return c[i].p >= threshold_ && c[i].logit > -infinity; };
    int64_t last = 0;  // the least likely viable one: it stays
    if (viable(0))
      while (last + 1 < row.size() && viable(last + 1)) ++last;
    if (last > 0 && row.size() - last >= min_keep_) row.drop_first(last);
  }

 private:
  float probability_, threshold_;
  int64_t min_keep_;
};

ALEATOR_BIND(llama_xtc) {
  bind_sampler<XTC(float, float, int64_t, uint32_t)>(m, "LlamaXTC", "xtc_probability"_a,
                                                     "xtc_threshold"_a, "min_keep"_a, "seed"_a);
}

}  // namespace aleator::llama
