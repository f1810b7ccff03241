// Contract: src/aleator/samplers/mirostat.py
#include <cmath>

#include "bind.hpp"
#include "samplers/adapting.hpp"

namespace aleator {

class Mirostat : public MirostatBase<Mirostat> {
 public:
  Mirostat(double tau, double eta, int64_t m, uint64_t seed, uint32_t ordinal)
      : MirostatBase(tau, eta, seed, ordinal), m_(m) {}

  void apply(Candidates& c, const Step& step) override {
    c.keep_first(bound(c));
    select(c, Purpose::mirostat, step);
  }

 private:
  // The k of the paper's equation for a Zipf distribution, from its exponent s estimated on m
  // candidates.
  int64_t bound(Candidates& c) {
    const auto& best = c.first(m_);  // (key, weight)
    const auto used = int64_t(best.size());
    i128 numerator = 0, denominator = 0;
    for (int64_t i = 0; i + 1 < used; ++i) {
      if (!best[i + 1].second) break;
      const int64_t t = log2_q32(i + 2) - log2_q32(i + 1);
      const int64_t b = log2_q32(best[i].second) - log2_q32(best[i + 1].second);
      numerator += static_cast<i128>(t) * b;
      denominator += static_cast<i128>(t) * t;
    }
    if (!denominator) return 1;  // a single candidate with any weight
    const double s = double(numerator) / double(denominator);
    if (s < 0x1p-10) return c.count();  // flat: no power law, nothing to cut
    const double e = s - 1, vocabulary = log2_double(double(c.n_vocab()));
    double log_k;
    if (std::fabs(e) < 0x1p-20) {  // the limit: e / (1 - N^-e) is 1 / ln N
      log_k = mu() - log2_double(vocabulary / contract::log2_e);
    } else {
      log_k = log2_double(std::fabs(e)) + mu() -
              log2_double(std::fabs(1 - exp2_double(-e * vocabulary)));
    }
    const double k = exp2_double(std::clamp(log_k / s, -1.0, 40.0));
    return std::clamp(int64_t(k), int64_t{1}, int64_t{1} << 40);
  }

  int64_t m_;
};

ALEATOR_BIND(sampler_mirostat) {
  nb::class_<Mirostat, Sampler>(m, "Mirostat")
      .def(nb::init<double, double, int64_t, uint64_t, uint32_t>(), "mirostat_tau"_a,
           "mirostat_eta"_a, "mirostat_m"_a, "seed"_a, "ordinal"_a)
      .def_prop_ro("mu", &Mirostat::mu)
      .def_prop_ro("state_history", &Mirostat::state_history);
}

}  // namespace aleator
