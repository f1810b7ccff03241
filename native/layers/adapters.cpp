#include "layers/adapters.hpp"

#include <algorithm>
namespace aleator {

constexpr int64_t most_products = 4;  // with one input

void Adapters::set(const uint8_t* data, int64_t adapter, const LowRank& given) {
  n_adapters_ = std::max(n_adapters_, adapter + 1), rank_ = std::max(rank_, given.a.out);
  OfMatrix& all = matrices_[data];
  all.resize(std::max(int64_t(all.size()), adapter + 1));
  all[adapter] = given;
}

void Adapters::prepare(const Adapted& batch, int64_t tokens, int threads) {
  batch_ = batch, runs_.clear(), found_.resize(threads);
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
  const auto at = matrices_.find(w.data);
  const bool fits =
      at != matrices_.end() && std::all_of(at->second.begin(), at->second.end(),
                                           [&](const LowRank& each) { return each.fits(w); });
  found_[thread].push_back(fits ? &at->second : nullptr);
}

void Adapters::lower(int thread, Pool& pool, const Input& x) {
  const std::vector<const OfMatrix*>& found = found_[thread];
  if (std::all_of(found.begin(), found.end(), [](const OfMatrix* each) { return !each; })) return;
  const int64_t n_runs = int64_t(runs_.size());
  const int64_t blocks = (rank_ + rows_at_once - 1) / rows_at_once;
  pool.split(thread, int64_t(found.size()) * n_runs * blocks, [&](int64_t unit) {
    const int64_t k = unit / (n_runs * blocks), begin = unit % blocks * rows_at_once;
    const Run& run = runs_[unit / blocks % n_runs];
    if (!found[k] || run.adapter >= int64_t(found[k]->size())) return;
    const LowRank& given = (*found[k])[run.adapter];
    const Weights& a = given.a;
    const int64_t end = std::min(begin + rows_at_once, a.out), step = run.step * rank_;
    if (begin >= end) return;
    float* low = &low_[(k * entries_ + run.entry) * rank_];
    const Input own{.x = x.x + run.token * x.stride, .stride = x.stride, .tokens = run.tokens};
    linear_rows_(a, begin, end, own, low, step);
    for (int64_t t = 0; t < run.tokens; t++) {
      const float scale = batch_.scales[run.entry + t * run.step] * given.factor;
      for (int64_t j = begin; j < end; j++) low[t * step + j] *= scale;
    }
  });
  pool.barrier();
}

void Adapters::add(int thread, int64_t k, const Weights& w, int64_t begin, int64_t end,
                   float* y) const {
  if (runs_.empty() || !found_[thread][k]) return;
  const OfMatrix& all = *found_[thread][k];
  for (const Run& run : runs_) {  // those of a token in their order
    if (run.adapter >= int64_t(all.size()) || !all[run.adapter].a.data) continue;
    const LowRank& given = all[run.adapter];
    float* to = y + run.token * w.out;
    for (int64_t t = 0; given.grows && t < run.tokens; t++)
      for (int64_t i = begin; i < end; i++) {
        float& each = to[t * w.out + i];
        each += given.grows[i] * (w.bias ? each - w.bias[i] : each);
      }
    add_low_ranks_({&given.b, given.a.out, run.tokens, &low_[(k * entries_ + run.entry) * rank_],
                    run.step * rank_, to, w.out},
                   begin, end);
  }
}

}  // namespace aleator
