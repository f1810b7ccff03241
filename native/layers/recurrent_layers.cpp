#include "layers/recurrent_layers.hpp"

#include <algorithm>
#include <cmath>

#include "layers/rows.hpp"

namespace aleator {

constexpr int64_t channels_together = 32;    // that a thread takes at a time
constexpr int64_t state_rows_together = 32;  // of a head's state

void RecurrentLayers::prepare(int64_t tokens, const RecurrentLayer& layer) {
  tokens_ = tokens;
  std::visit([&](const auto& l) { reserve(l); }, layer);
}

void RecurrentLayers::run(int thread, Products& products, const RecurrentLayer& layer,
                          const Runs& runs) {
  std::visit([&](const auto& l) { run_layer(thread, products, l, runs); }, layer);
}

// --- selective state spaces ---

void RecurrentLayers::reserve(const SSMLayer& l) {
  const StateSpace& s = l.space;
  grow(projected_, tokens_ * 2 * s.inner), grow(selected_, tokens_ * s.selected());
  for (auto* v : {&convolved_, &dt_, &y_}) grow(*v, tokens_ * s.inner);
  ones_.resize(std::max({ones_.size(), size_t(s.rank), size_t(s.state)}), 1.0f);
}

void RecurrentLayers::run_layer(int thread, Products& products, const SSMLayer& l,
                                const Runs& runs) {
  const StateSpace& s = l.space;
  Pool& pool = products.pool();
  const int64_t tokens = tokens_, wide = s.selected();
  // A thread convolves the channels whose values it has just computed.
  products.run(thread, products.normed(thread, l.norm, forms_of({&l.in})),
               {{&l.in, projected_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
                 for (; begin < std::min(end, s.inner); begin += most_channels)
                   convolve_(s.conv, runs, begin, std::min({begin + most_channels, end, s.inner}),
                             projected_.data(), 2 * s.inner, true, convolved_.data());
               });
  products.run(thread, l.select, convolved_.data(), selected_.data());
  if (l.normed) {
    pool.each(thread, tokens, [&](int64_t t) {
      float* part = &selected_[t * wide];
      for (int i = 0; i < 3; i++) {
        const int64_t n = i ? s.state : s.rank;
        const float* weight = l.state_norms[i] ? l.state_norms[i] : ones_.data();
        rms_norm_(part, weight, n, l.norm_eps.value_or(products.eps()), part);
        part += n;
      }
    });
  }
  const Input steps =
      products.input(thread, selected_.data(), wide, s.rank, forms_of({&l.time_step}));
  products.lower(thread, steps, {{&l.time_step, dt_.data()}});
  pool.split_pieces(thread, s.inner, channels_together, [&](int64_t begin, int64_t end) {
    products.product(thread, 0, l.time_step, 1, begin, end, steps, dt_.data());
    scan_(s, runs, tokens, begin, end, convolved_.data(), dt_.data(), selected_.data(),
          projected_.data(), y_.data());
  });
  pool.barrier();
  products.add_rows(thread, l.out, y_.data());
}

// --- state spaces whose heads have one decay each ---

void RecurrentLayers::reserve(const HeadLayer& l) {
  grow(projected_, tokens_ * l.space.projected());
  grow(convolved_, tokens_ * l.space.conv.channels), grow(y_, tokens_ * l.space.inner);
}

void RecurrentLayers::run_layer(int thread, Products& products, const HeadLayer& l,
                                const Runs& runs) {
  project(thread, products, l, runs, products.normed(thread, l.norm, forms_of({&l.in})));
  finish(thread, products, l, runs);
}

void RecurrentLayers::project(int thread, Products& products, const HeadLayer& l, const Runs& runs,
                              const Input& x) {
  const HeadSpace& s = l.space;
  const int64_t first = s.inner, last = first + s.conv.channels;
  // A thread convolves the channels whose values it has just computed.
  products.run(thread, x, {{&l.in, projected_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
    begin = std::max(begin, first) - first, end = std::min(end, last) - first;
    for (; begin < end; begin += most_channels)
      convolve_(s.conv, runs, begin, std::min(begin + most_channels, end),
                projected_.data() + first, s.projected(), true, convolved_.data());
  });
}

void RecurrentLayers::finish(int thread, Products& products, const HeadLayer& l, const Runs& runs) {
  const HeadSpace& s = l.space;
  Pool& pool = products.pool();
  pool.each(thread, s.heads, [&](int64_t head) {
    scan_head_(s, runs, tokens_, head, projected_.data(), convolved_.data(), y_.data());
  });
  if (s.norm) {
    const int64_t n = s.inner / s.norm_groups;
    pool.each(thread, tokens_ * s.norm_groups, [&](int64_t unit) {
      float* part = &y_[unit * n];
      rms_norm_(part, s.norm + unit % s.norm_groups * n, n, products.eps(), part);
    });
  }
  products.add_rows(thread, l.out, y_.data());
}

// --- short convolutions ---

void RecurrentLayers::reserve(const ShortLayer& l) {
  grow(projected_, tokens_ * 3 * l.conv.channels), grow(y_, tokens_ * l.conv.channels);
}

void RecurrentLayers::run_layer(int thread, Products& products, const ShortLayer& l,
                                const Runs& runs) {
  Pool& pool = products.pool();
  const int64_t n = l.conv.channels;
  products.run(thread, products.normed(thread, l.norm, forms_of({&l.in})),
               {{&l.in, projected_.data()}});
  pool.split_pieces(thread, n, channels_together, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens_; t++) {
      float* row = &projected_[t * 3 * n];
      for (int64_t i = begin; i < end; i++) row[i] *= row[2 * n + i];
    }
    convolve_(l.conv, runs, begin, end, projected_.data(), 3 * n, false, y_.data());
    for (int64_t t = 0; t < tokens_; t++)
      for (int64_t i = begin; i < end; i++) y_[t * n + i] *= projected_[(3 * t + 1) * n + i];
  });
  pool.barrier();
  products.add_rows(thread, l.out, y_.data());
}

// --- gated delta nets ---

void RecurrentLayers::reserve(const DeltaNetLayer& l) {
  const DeltaNet& d = l.net;
  for (auto* v : {&projected_, &convolved_}) grow(*v, tokens_ * d.channels());
  for (auto* v : {&gate_, &y_}) grow(*v, tokens_ * d.heads * d.dim_v);
  grow(beta_, tokens_ * d.heads), grow(decay_, tokens_ * d.decays());
  if (d.by_channel) grow(few_gate_, tokens_ * l.gate.out), grow(few_decay_, tokens_ * l.decay.out);
}

void RecurrentLayers::project(int thread, Products& products, const DeltaNetLayer& l,
                              const Runs& runs) {
  const DeltaNet& d = l.net;
  // Of the three matrices that are convolved: the channels before it, whose results come before its
  // own, and how many it has.
  const int64_t first[] = {0, d.keys_at(), d.values_at()};
  const int64_t wide[] = {l.qkv.out, l.k.out, l.v.out};
  const Forms forms = forms_of({&l.qkv, &l.k, &l.v, &l.gate, &l.beta, &l.decay});
  products.run(thread, products.normed(thread, l.norm, forms),
               {{&l.qkv, projected_.data()},
                {&l.k, &projected_[tokens_ * first[1]]},
                {&l.v, &projected_[tokens_ * first[2]]},
                {&l.gate, d.by_channel ? few_gate_.data() : gate_.data()},
                {&l.beta, beta_.data()},
                {&l.decay, d.by_channel ? few_decay_.data() : decay_.data()}},
               [&](int64_t product, int64_t begin, int64_t end) {
                 if (product > 2) return;
                 const float* values = projected_.data() + (tokens_ - 1) * first[product];
                 // A thread convolves the channels whose values it has just computed.
                 for (begin += first[product], end += first[product]; begin < end;
                      begin += most_channels)
                   convolve_(d.conv, runs, begin, std::min(begin + most_channels, end), values,
                             wide[product], true, convolved_.data());
               });
  if (!d.by_channel) return;
  products.run(thread, l.gate_up, few_gate_.data(), gate_.data());
  products.run(thread, l.decay_up, few_decay_.data(), decay_.data());
}

void RecurrentLayers::run_layer(int thread, Products& products, const DeltaNetLayer& l,
                                const Runs& runs) {
  const DeltaNet& d = l.net;
  Pool& pool = products.pool();
  const int64_t tokens = tokens_, channels = d.channels();
  project(thread, products, l, runs);
  const int64_t units = 2 * d.key_heads + 1;
  const float shorter = 1.0f / std::sqrt(float(d.dim));
  pool.each(thread, tokens * units, [&](int64_t unit) {
    const int64_t t = unit / units, head = unit % units;
    if (head == 2 * d.key_heads)
      return delta_rates_(d, &beta_[t * d.heads], &decay_[t * d.decays()]);
    unit_length_(&convolved_[t * channels + head * d.dim], d.dim, d.eps,
                 head < d.key_heads ? shorter : 1.0f);
  });
  const int64_t parts = (d.dim_v + state_rows_together - 1) / state_rows_together;
  pool.each(thread, d.heads * parts, [&](int64_t unit) {
    const int64_t begin = unit % parts * state_rows_together;
    delta_scan_(d, runs, unit / parts, begin, std::min(d.dim_v, begin + state_rows_together),
                convolved_.data(), beta_.data(), decay_.data(), y_.data());
  });
  pool.each(thread, tokens * d.heads, [&](int64_t unit) {
    float *y = &y_[unit * d.dim_v], *gate = &gate_[unit * d.dim_v];
    if (!d.by_channel) return gated_norm_(y, d.norm, gate, d.dim_v, products.eps());
    rms_norm_(y, d.norm, d.dim_v, products.eps(), y);
    sigmoid_gate_(y, gate, d.dim_v);
  });
  products.add_rows(thread, l.out, y_.data());
}

}  // namespace aleator
