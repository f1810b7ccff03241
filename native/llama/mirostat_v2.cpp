// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "llama/draws.hpp"

namespace aleator::llama {

class MirostatV2 : public MirostatSampler<MirostatV2> {
 public:
  using MirostatSampler::MirostatSampler;

  void apply(Row& row, const History&) override {
    row.softmax(true);
    const Candidate* c = row.list();
    int64_t kept = 0;
    while (kept < row.size() && !(-std::log2(c[kept].p) > mu())) ++kept;
    select(row, std::max<int64_t>(kept, 1));
  }
};

ALEATOR_BIND(llama_mirostat_v2) {
  nb::class_<MirostatV2, LlamaSampler>(m, "LlamaMirostatV2")
      .def(nb::init<float, float, uint32_t>(), "mirostat_tau"_a, "mirostat_eta"_a, "seed"_a)
      .def_prop_ro("mu", &MirostatV2::mu);
}

}  // namespace aleator::llama
