#include "layers/ssm_step.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace aleator {

static const auto convolve_ = ALEATOR_PICK(convolve);
static const auto scan_ = ALEATOR_PICK(scan);
static const auto read_row_ = ALEATOR_PICK(read_row);
static const auto rms_norm_ = ALEATOR_PICK(rms_norm);

void SSMStep::run(Pool& pool, const SSMBatch& batch) {
  std::lock_guard lock(turn_);
  prepare(pool, batch);
  pool.run([&](int thread) {
    for (const SSMLayer& l : layers_) layer(thread, l, batch);
    products_.logits(thread, shape_.output, shape_.output_norm, shape_.eps, batch.out_rows,
                     batch.n_out, batch.logits);
  });
}

void SSMStep::prepare(Pool& pool, const SSMBatch& batch) {
  const int64_t t = batch.tokens, e = shape_.output.in;
  int64_t inner = 0, selected = 0, small = 0;
  for (const SSMLayer& l : layers_) {
    inner = std::max(inner, l.space.inner), selected = std::max(selected, l.space.selected());
    small = std::max({small, l.space.rank, l.space.state});
  }
  products_.prepare(pool, t, e);
  xz_.resize(t * 2 * inner), u_.resize(t * inner), dt_.resize(t * inner), y_.resize(t * inner);
  selected_.resize(t * selected), ones_.assign(small, 1.0f);
  for (int64_t i = 0; i < t; i++)
    if (batch.embeddings)
      std::copy_n(batch.embeddings + i * e, e, products_.x(i));
    else
      read_row_(shape_.embedding, batch.ids[i], products_.x(i));
}

void SSMStep::layer(int thread, const SSMLayer& l, const SSMBatch& batch) {
  const StateSpace& s = l.space;
  Pool& pool = products_.pool();
  const int64_t tokens = batch.tokens, wide = s.selected();
  // A thread convolves the channels whose values it has just computed.
  products_.run(thread, products_.normed(thread, l.norm, shape_.eps, forms_of({&l.in})),
                {{&l.in, xz_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
                  for (; begin < std::min(end, s.inner); begin += most_channels)
                    convolve_(s, batch.runs, begin, std::min({begin + most_channels, end, s.inner}),
                              xz_.data(), u_.data());
                });
  pool.barrier();
  products_.run(thread,
                products_.input(thread, u_.data(), s.inner, s.inner, tokens, forms_of({&l.select})),
                {{&l.select, selected_.data()}});
  pool.barrier();
  if (shape_.norm_eps) {
    pool.split(thread, tokens, [&](int64_t t) {
      float* row = &selected_[t * wide];
      rms_norm_(row, ones_.data(), s.rank, *shape_.norm_eps, row);
      for (float* part : {row + s.rank, row + s.rank + s.state})
        rms_norm_(part, ones_.data(), s.state, *shape_.norm_eps, part);
    });
    pool.barrier();
  }
  const Input steps =
      products_.input(thread, selected_.data(), wide, s.rank, tokens, forms_of({&l.time_step}));
  constexpr int64_t channels = 32;
  pool.split(thread, (s.inner + channels - 1) / channels, [&](int64_t unit) {
    const int64_t begin = unit * channels, end = std::min(s.inner, begin + channels);
    Products::multiply(l.time_step, begin, end, steps, dt_.data());
    scan_(s, batch.runs, tokens, begin, end, u_.data(), dt_.data(), selected_.data(), xz_.data(),
          y_.data());
  });
  pool.barrier();
  products_.add(thread, l.out,
                products_.input(thread, y_.data(), s.inner, s.inner, tokens, forms_of({&l.out})));
  pool.barrier();
}

}  // namespace aleator
