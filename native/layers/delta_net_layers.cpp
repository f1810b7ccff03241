#include "layers/delta_net_layers.hpp"

#include <algorithm>
#include <cmath>

namespace aleator {

// Rows of a head's state that a thread takes at a time.
constexpr int64_t rows_together = 32;

void DeltaNetLayers::reserve(const DeltaNetLayer& l) {
  const DeltaNet& d = l.net;
  for (auto* v : {&values_, &convolved_}) grow(*v, tokens_ * d.channels());
  for (auto* v : {&gate_, &y_}) grow(*v, tokens_ * d.heads * d.dim_v);
  for (auto* v : {&beta_, &decay_}) grow(*v, tokens_ * d.heads);
}

void DeltaNetLayers::run(int thread, Products& products, const DeltaNetLayer& l, const Runs& runs,
                         float eps, float scale) {
  const DeltaNet& d = l.net;
  Pool& pool = products.pool();
  const int64_t tokens = tokens_, channels = d.channels();
  const Forms forms = forms_of({&l.qkv, &l.gate, &l.beta, &l.decay});
  // A thread convolves the channels whose values it has just computed.
  products.run(thread, products.normed(thread, l.norm, eps, forms),
               {{&l.qkv, values_.data()},
                {&l.gate, gate_.data()},
                {&l.beta, beta_.data()},
                {&l.decay, decay_.data()}},
               [&](int64_t product, int64_t begin, int64_t end) {
                 for (; product == 0 && begin < end; begin += most_channels)
                   convolve_(d.conv, runs, begin, std::min(begin + most_channels, end),
                             values_.data(), channels, true, convolved_.data());
               });
  pool.barrier();
  const int64_t units = 2 * d.key_heads + 1;
  const float shorter = 1.0f / std::sqrt(float(d.dim));
  pool.split(thread, tokens * units, [&](int64_t unit) {
    const int64_t t = unit / units, head = unit % units;
    if (head == 2 * d.key_heads)
      return delta_rates_(d, &beta_[size_t(t * d.heads)], &decay_[size_t(t * d.heads)]);
    unit_length_(&convolved_[size_t(t * channels + head * d.dim)], d.dim, d.eps,
                 head < d.key_heads ? shorter : 1.0f);
  });
  pool.barrier();
  const int64_t parts = (d.dim_v + rows_together - 1) / rows_together;
  pool.split(thread, d.heads * parts, [&](int64_t unit) {
    const int64_t begin = unit % parts * rows_together;
    delta_scan_(d, runs, unit / parts, begin, std::min(d.dim_v, begin + rows_together),
                convolved_.data(), beta_.data(), decay_.data(), y_.data());
  });
  pool.barrier();
  pool.split(thread, tokens * d.heads, [&](int64_t unit) {
    gated_norm_(&y_[size_t(unit * d.dim_v)], d.norm, &gate_[size_t(unit * d.dim_v)], d.dim_v, eps);
  });
  pool.barrier();
  products.add_rows(thread, l.out, y_.data(), tokens, scale);
}

}  // namespace aleator
