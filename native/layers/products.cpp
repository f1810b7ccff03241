#include "layers/products.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace aleator {

void Products::prepare(Pool& pool, int64_t tokens, int64_t n_embd, Norm norm, float eps,
                       float scale) {
  pool_ = &pool, tokens_ = tokens, n_embd_ = n_embd, norm_ = norm, eps_ = eps, scale_ = scale;
  x_.resize(tokens * n_embd), sum_.resize(tokens * n_embd);
  own_.resize(pool.size());
  for (Own& own : own_) own.normed.resize(tokens * apart(n_embd));
}

// `row(t)` finishes row t of `rows`, and is called once for each before it is read.
template <class Row>
Input Products::forms(int thread, int64_t in, int64_t tokens, Forms forms, const float* rows,
                      int64_t stride, Row&& row) {
  const bool few = tokens <= few_rounded;
  forms = forms.of(tokens);
  FormedRows& formed = few ? own_[thread].formed : formed_;
  const auto finish = [&](int64_t t) {
    row(t);
    if (forms.made()) formed.round(t, rows + t * stride);
  };
  if (few) {
    if (forms.made()) formed.resize(tokens, in, forms);
    for (int64_t t = 0; t < tokens; t++) finish(t);
  } else {
    if (forms.made()) {
      if (thread == 0) formed.resize(tokens, in, forms);
      pool_->barrier();
    }
    pool_->each(thread, tokens, finish);
    const LaneTiles tiles{tokens};
    if (forms.lanes)
      pool_->each(thread, tiles.n,
                  [&](int64_t tile) { formed.take_apart(tiles, tile, rows, stride); });
  }
  Input x{.x = rows, .stride = stride, .tokens = tokens};
  if (forms.made()) formed.give(x);
  return x;
}

Input Products::input(int thread, const float* x, int64_t stride, int64_t in, Forms forms) {
  forms = forms.of(tokens_);
  if (forms.floats && !forms.lanes && tokens_ > few_rounded && stride != apart(stride)) {
    if (thread == 0) apart_.resize(tokens_ * apart(in));
    pool_->barrier();
    return this->forms(thread, in, tokens_, forms, apart_.data(), apart(in),
                       [&](int64_t t) { std::copy_n(x + t * stride, in, &apart_[t * apart(in)]); });
  }
  if (!forms.made()) return {.x = x, .stride = stride, .tokens = tokens_};
  return this->forms(thread, in, tokens_, forms, x, stride, [](int64_t) {});
}

void Products::norm(const float* x, const float* weight, int64_t n, float* y) const {
  if (!weight)
    std::copy_n(x, x == y ? 0 : n, y);
  else if (norm_ == Norm::layer)
    layer_norm_(x, weight, n, eps_, y);
  else
    rms_norm_(x, weight, n, eps_, y);
}

Input Products::normed(int thread, const float* weight, Forms forms) {
  const int64_t e = n_embd_, stride = apart(e);
  // Of up to few_rounded every thread keeps its own rows, of more they are shared.
  float* y = own_[tokens_ <= few_rounded ? thread : 0].normed.data();
  return this->forms(thread, e, tokens_, forms, y, stride,
                     [&](int64_t t) { norm(x(t), weight, e, y + t * stride); });
}

void Products::add_rows(int thread, const Weights& w, const float* from, const float* norm,
                        bool of_sums) {
  const Input in = input(thread, from, w.in, w.in, forms_of({&w}));
  if (!norm)
    return run(thread, in, {{&w, sum_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t t = 0; t < tokens_; t++)
        for (int64_t row = begin; row < end; row++)
          x_[t * w.out + row] += scale_ * sum_[t * w.out + row];
    });
  run(thread, in, {{&w, sum_.data()}});
  pool_->each(thread, tokens_, [&](int64_t t) {
    float *y = &sum_[t * w.out], *to = x(t);
    if (!of_sums) this->norm(y, norm, w.out, y);
    for (int64_t i = 0; i < w.out; i++) to[i] += y[i];
    if (of_sums) this->norm(to, norm, w.out, to);
  });
}

void Products::logits(int thread, const Weights& w, const float* norm, const int64_t* rows,
                      int64_t n, float* out) {
  if (n == 0) return;
  if (!w.data)
    return pool_->split(
        thread, n, [&](int64_t i) { this->norm(x(rows[i]), norm, n_embd_, out + i * n_embd_); });
  float* y = own_[n <= few_rounded ? thread : 0].normed.data();
  const int64_t stride = apart(n_embd_);
  const Input in = forms(thread, n_embd_, n, forms_of({&w}), y, stride,
                         [&](int64_t i) { this->norm(x(rows[i]), norm, n_embd_, y + i * stride); });
  multiply(thread, in, {{&w, out}}, adapters_.wanted(), nothing_after);
}

}  // namespace aleator
