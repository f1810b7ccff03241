#include "layers/products.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace aleator {

static const auto linear_rows_ = ALEATOR_PICK(linear_rows);
static const auto pack_ = ALEATOR_PICK(pack);
static const auto rms_norm_ = ALEATOR_PICK(rms_norm);

void Products::prepare(Pool& pool, int64_t tokens, int64_t n_embd, int64_t widest) {
  pool_ = &pool, tokens_ = tokens, n_embd_ = n_embd;
  x_.resize(tokens * n_embd), sum_.resize(tokens * n_embd);
  packed_.resize(packed_size(tokens, std::max(n_embd, widest)));
  normed_.resize(pool.size());
  for (auto& rows : normed_) rows.resize(tokens * n_embd);
}

Input Products::input(int thread, const float* x, int64_t stride, int64_t in, int64_t tokens) {
  if (tokens <= few_tokens) return {x, stride, tokens};
  pool_->split(thread, packs(tokens), [&](int64_t unit) {
    pack_(x, stride, tokens, in, unit * pack_tokens, packed_.data());
  });
  pool_->barrier();
  return {packed_.data(), 0, tokens, true};
}

// Few tokens each thread normalises for itself: less work than waiting for another.
Input Products::normed(int thread, const float* weight, float eps) {
  const int64_t e = n_embd_, tokens = tokens_;
  float* y = normed_[thread].data();
  const auto norm = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) rms_norm_(x(t), weight, e, eps, y + t * e);
  };
  if (tokens <= few_tokens) {
    norm(0, tokens);
    return {y, e, tokens};
  }
  pool_->split(thread, packs(tokens), [&](int64_t unit) {
    const int64_t first = unit * pack_tokens;
    norm(first, std::min(tokens, first + pack_tokens));
    pack_(y, e, tokens, e, first, packed_.data());
  });
  pool_->barrier();
  return {packed_.data(), 0, tokens, true};
}

void Products::multiply(const Weights& w, int64_t begin, int64_t end, const Input& x, float* out) {
  linear_rows_(w, begin, end, x, out, w.out);
}

void Products::add(int thread, const Weights& w, const Input& input) {
  run(thread, input, {{&w, sum_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t t = 0; t < input.tokens; t++)
      for (int64_t row = begin; row < end; row++) x_[t * w.out + row] += sum_[t * w.out + row];
  });
}

void Products::add_normed(int thread, const Weights& w, const Input& input, const float* norm,
                          float eps) {
  run(thread, input, {{&w, sum_.data()}});
  pool_->barrier();
  pool_->split(thread, input.tokens, [&](int64_t t) {
    float *y = &sum_[t * w.out], *to = x(t);
    rms_norm_(y, norm, w.out, eps, y);
    for (int64_t i = 0; i < w.out; i++) to[i] += y[i];
  });
}

void Products::logits(int thread, const Weights& w, const float* norm, float eps,
                      const int64_t* rows, int64_t n, float* out) {
  if (n == 0) return;
  float* y = normed_[thread].data();
  for (int64_t i = 0; i < n; i++) rms_norm_(x(rows[i]), norm, n_embd_, eps, y + i * n_embd_);
  run(thread, input(thread, y, n_embd_, n_embd_, n), {{&w, out}});
}

}  // namespace aleator
