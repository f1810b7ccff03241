// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "llama/draws.hpp"

namespace aleator::llama {

class Mirostat : public MirostatSampler<Mirostat> {
 public:
  Mirostat(float tau, float eta, int64_t m, uint32_t seed)
      : MirostatSampler(tau, eta, seed), m_(m) {}

  void apply(Row& row, const History&) override {
    row.softmax(true);
    select(row, std::min(count(row), row.size()));
  }

 private:
  // How many candidates the estimate of Zipf's exponent from the first m keeps.  llama.cpp's
  // conversion turns a number too large for an int into 1; here it keeps everything.
  int64_t count(Row& row) const {
    const Candidate* c = row.list();
    float products = 0, squares = 0;
    for (int64_t i = 0; i < std::min(m_, row.size()) - 1; ++i) {
      const float t = std::log(float(i + 2) / float(i + 1));
      const float b = std::log(c[i].p / c[i + 1].p);
      products += t * b;
      squares += t * t;
    }
    const float s = products / squares, epsilon = s - 1;
    const float n = float(row.n_vocab());
    const float k = std::pow(epsilon * std::pow(2.0f, mu()) / (1 - std::pow(n, -epsilon)), 1 / s);
    if (k >= 2147483648.0f) return row.size();
    return k >= 1 ? int64_t(k) : 1;  // NaN too
  }

  int64_t m_;
};

ALEATOR_BIND(llama_mirostat) {
  nb::class_<Mirostat, LlamaSampler>(m, "LlamaMirostat")
      .def(nb::init<float, float, int64_t, uint32_t>(), "mirostat_tau"_a, "mirostat_eta"_a,
           "mirostat_m"_a, "seed"_a)
      .def_prop_ro("mu", &Mirostat::mu);
}

}  // namespace aleator::llama
