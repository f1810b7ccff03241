#include "layers/adapters.hpp"

#include <algorithm>
namespace aleator {

constexpr int64_t most_products = 4;  // with one input
constexpr size_t found_ahead = 4;     // products whose matrices are asked for before they are found

// Asks for memory that is read soon.
static void ask(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(static_cast<const uint8_t*>(from) + i, 0, 2);
}

void Adapters::set(const uint8_t* data, int64_t adapter, const LowRank& given) {
  n_adapters_ = std::max(n_adapters_, adapter + 1), rank_ = std::max(rank_, given.a.out);
  OfMatrix& all = matrices_[data];
  all.resize(std::max(int64_t(all.size()), adapter + 1));
  all[adapter] = given, found_.clear();
}

void Adapters::prepare(Pool& pool, const Adapted& batch, int64_t tokens) {
  pool_ = &pool, batch_ = batch, runs_.clear(), found_.resize(pool.size());
  for (Step& step : found_) step.first = step.end = 0;
  if (!batch.starts) return;
  const int64_t* starts = batch.starts;
  entries_ = starts[tokens];
  for (int64_t t = 0; t < tokens;) {
    const int64_t first = starts[t], n = starts[t + 1] - first;
    const int32_t* own = batch.adapters + first;
    int64_t end = t + 1;
    while (end < tokens && end - t < most_tokens && starts[end + 1] - starts[end] == n &&
           std::equal(own, own + n, batch.adapters + starts[end]))
      end++;
    for (int64_t i = 0; i < n; i++) runs_.push_back({t, end - t, first + i, n, own[i]});
    t = end;
  }
  low_.resize(most_products * entries_ * rank_);
}

void Adapters::find(int thread, const Weights& w) {
  Step& step = found_[thread];
  const size_t at = step.end++;
  if (at == step.products.size() || step.products[at].data != w.data ||
      step.products[at].out != w.out) {
    const auto found = matrices_.find(w.data);
    const bool fits =
        found != matrices_.end() && std::all_of(found->second.begin(), found->second.end(),
                                                [&](const LowRank& each) { return each.fits(w); });
    const OfMatrix* all = fits ? &found->second : nullptr;
    step.products.resize(at);
    step.products.push_back(
        {w.data, w.out, all ? int64_t(all->size()) : 0, all ? all->data() : nullptr});
  }
  if (at + found_ahead < step.products.size())
    if (const Found& next = step.products[at + found_ahead]; runs_[0].adapter < next.adapters)
      ask(&next.of[runs_[0].adapter], sizeof(LowRank));
}

void Adapters::lower(int thread, const Input& x) {
  Step& step = found_[thread];
  const Found* found = &step.products[step.first];
  const int64_t n = int64_t(step.end - step.first), n_runs = int64_t(runs_.size());
  const int64_t blocks = (rank_ + rows_at_once - 1) / rows_at_once;
  if (std::none_of(found, found + n, [](const Found& each) { return each.of; })) return;
  // What products with the next input read lies behind what these do: by then it is near.
  int64_t bytes = 0;
  for (int64_t k = 0; k < n; k++)
    if (const LowRank* first = found[k].with(runs_[0].adapter))
      bytes += first->a.out * first->a.row_bytes;
  step.units = n * n_runs * blocks;
  pool_->split_ahead(thread, step.units, [&](int64_t unit) {
    const int64_t k = unit / (n_runs * blocks), begin = unit % blocks * rows_at_once;
    const Run& run = runs_[unit / blocks % n_runs];
    const LowRank* given = found[k].with(run.adapter);
    if (!given || begin >= given->a.out) return;
    const Weights& a = given->a;
    const int64_t end = std::min(begin + rows_at_once, a.out), apart = run.step * rank_;
    float* low = &low_[(k * entries_ + run.entry) * rank_];
    const Input own{.x = x.x + run.token * x.stride, .stride = x.stride, .tokens = run.tokens};
    linear_rows_(a, begin, end, own, low, apart);
    ask(a.data + begin * a.row_bytes + bytes, (end - begin) * a.row_bytes);
    for (int64_t t = 0; t < run.tokens; t++) {
      const float scale = batch_.scales[run.entry + t * run.step] * given->factor;
      for (int64_t j = begin; j < end; j++) low[t * apart + j] *= scale;
    }
  });
}

void Adapters::add(int thread, int64_t k, const Weights& w, int64_t begin, int64_t end,
                   float* y) const {
  if (runs_.empty()) return;
  const Step& step = found_[thread];
  const Found& found = step.products[step.first + k];
  if (!found.of) return;
  pool_->await_ahead(step.units);
  for (const Run& run : runs_) {  // those of a token in their order
    const LowRank* given = found.with(run.adapter);
    if (!given) continue;
    float* to = y + run.token * w.out;
    for (int64_t t = 0; given->grows && t < run.tokens; t++)
      for (int64_t i = begin; i < end; i++) {
        float& each = to[t * w.out + i];
        each += given->grows[i] * (w.bias ? each - w.bias[i] : each);
      }
    add_low_ranks_({&given->b, given->a.out, run.tokens, &low_[(k * entries_ + run.entry) * rank_],
                    run.step * rank_, to, w.out},
                   begin, end);
  }
}

}  // namespace aleator
