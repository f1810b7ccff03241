#include "layers/recurrent_layers.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace aleator {

void RecurrentLayers::prepare(int64_t tokens, const std::vector<RecurrentLayer>& layers) {
  int64_t inner = 0, selected = 0, small = 0;
  heads_.prepare(tokens), delta_.prepare(tokens);
  for (const RecurrentLayer& any : layers) {
    if (const auto* l = std::get_if<HeadLayer>(&any)) heads_.reserve(*l);
    if (const auto* l = std::get_if<ShortLayer>(&any)) heads_.reserve(*l);
    if (const auto* l = std::get_if<DeltaNetLayer>(&any)) delta_.reserve(*l);
    const auto* l = std::get_if<SSMLayer>(&any);
    if (!l) continue;
    inner = std::max(inner, l->space.inner), selected = std::max(selected, l->space.selected());
    small = std::max({small, l->space.rank, l->space.state});
  }
  tokens_ = tokens;
  const size_t n = size_t(tokens * inner);
  xz_.resize(2 * n), u_.resize(n), dt_.resize(n), y_.resize(n);
  selected_.resize(size_t(tokens * selected)), ones_.assign(size_t(small), 1.0f);
}

void RecurrentLayers::run(int thread, Products& products, const RecurrentLayer& layer,
                          const Runs& runs, float eps, float scale) {
  if (const auto* l = std::get_if<HeadLayer>(&layer)) {
    heads_.project(thread, products, *l, runs,
                   products.normed(thread, l->norm, eps, forms_of({&l->in})));
    products.pool().barrier();
    heads_.finish(thread, products, *l, runs, eps, scale);
  } else if (const auto* l = std::get_if<ShortLayer>(&layer)) {
    heads_.run(thread, products, *l, runs, eps, scale);
  } else if (const auto* l = std::get_if<DeltaNetLayer>(&layer)) {
    delta_.run(thread, products, *l, runs, eps, scale);
  } else {
    run(thread, products, std::get<SSMLayer>(layer), runs, eps, scale);
  }
}

void RecurrentLayers::run(int thread, Products& products, const SSMLayer& l, const Runs& runs,
                          float eps, float scale) {
  const StateSpace& s = l.space;
  const Convolution conv = s.convolution();
  Pool& pool = products.pool();
  const int64_t tokens = tokens_, wide = s.selected();
  // A thread convolves the channels whose values it has just computed.
  products.run(thread, products.normed(thread, l.norm, eps, forms_of({&l.in})),
               {{&l.in, xz_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
                 for (; begin < std::min(end, s.inner); begin += most_channels)
                   convolve_(conv, runs, begin, std::min({begin + most_channels, end, s.inner}),
                             xz_.data(), 2 * s.inner, true, u_.data());
               });
  pool.barrier();
  products.run(thread,
               products.input(thread, u_.data(), s.inner, s.inner, tokens, forms_of({&l.select})),
               {{&l.select, selected_.data()}});
  pool.barrier();
  if (l.norm_eps) {
    pool.split(thread, tokens, [&](int64_t t) {
      float* part = &selected_[size_t(t * wide)];
      for (int i = 0; i < 3; i++) {
        const int64_t n = i ? s.state : s.rank;
        const float* weight = l.state_norms[i] ? l.state_norms[i] : ones_.data();
        rms_norm_(part, weight, n, *l.norm_eps, part);
        part += n;
      }
    });
    pool.barrier();
  }
  const Input steps =
      products.input(thread, selected_.data(), wide, s.rank, tokens, forms_of({&l.time_step}));
  constexpr int64_t channels = 32;
  pool.split(thread, (s.inner + channels - 1) / channels, [&](int64_t unit) {
    const int64_t begin = unit * channels, end = std::min(s.inner, begin + channels);
    Products::multiply(l.time_step, begin, end, steps, dt_.data());
    scan_(s, runs, tokens, begin, end, u_.data(), dt_.data(), selected_.data(), xz_.data(),
          y_.data());
  });
  pool.barrier();
  products.add_rows(thread, l.out, y_.data(), tokens, scale);
}

}  // namespace aleator
