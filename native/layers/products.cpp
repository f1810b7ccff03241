#include "layers/products.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace aleator {

void RoundedRows::resize(int64_t tokens, int64_t in, int64_t block) {
  in_ = in, block_ = block;
  const size_t n = size_t(tokens * in);
  if (q_.size() < n) q_.resize(n), d_.resize(n / 32), sums_.resize(n / 16);
}
void RoundedRows::round(int64_t token, const float* x, const int32_t* order) {
  const int64_t at = token * in_;
  if (!order) return round_row_(x, in_, block_, &q_[at], &d_[at / block_], &sums_[at / 16]);
  float part[1024];  // whole blocks
  for (int64_t i = 0; i < in_; i += std::size(part)) {
    const int64_t n = std::min(int64_t(std::size(part)), in_ - i), to = at + i;
    for (int64_t j = 0; j < n; j++) part[j] = x[order[i + j]];
    round_row_(part, n, block_, &q_[to], &d_[to / block_], &sums_[to / 16]);
  }
}
void RoundedRows::copy(int64_t to, const Rounded& rows, int64_t from) {
  const int64_t there = from * in_, here = to * in_;
  std::copy_n(rows.q + there, in_, &q_[here]);
  std::copy_n(rows.d + there / block_, in_ / block_, &d_[here / block_]);
  std::copy_n(rows.sums + there / 16, in_ / 16, &sums_[here / 16]);
}

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
  RoundedRows& small = few ? own_[thread].small : small_;
  RoundedRows& large = few ? own_[thread].large : large_;
  const auto finish = [&](int64_t t) {
    row(t);
    if (forms.small) small.round(t, rows + t * stride, forms.order);
    if (forms.large) large.round(t, rows + t * stride, forms.order);
  };
  const auto make_room = [&] {
    if (forms.small) small.resize(tokens, in, 32);
    if (forms.large) large.resize(tokens, in, 256);
  };
  if (few) {
    make_room();
    for (int64_t t = 0; t < tokens; t++) finish(t);
  } else {
    if (forms.small || forms.large) {
      if (thread == 0) make_room();
      pool_->barrier();
    }
    pool_->each(thread, tokens, finish);
  }
  return {rows, stride, tokens, small.view(tokens), large.view(tokens)};
}

Input Products::input(int thread, const float* x, int64_t stride, int64_t in, Forms forms) {
  if (forms.floats && tokens_ > few_rounded && stride != apart(stride)) {
    if (thread == 0) apart_.resize(tokens_ * apart(in));
    pool_->barrier();
    return this->forms(thread, in, tokens_, forms, apart_.data(), apart(in),
                       [&](int64_t t) { std::copy_n(x + t * stride, in, &apart_[t * apart(in)]); });
  }
  if (!forms.small && !forms.large) return {.x = x, .stride = stride, .tokens = tokens_};
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
