#include "layers/adapters.hpp"

#include <algorithm>
namespace aleator {

constexpr int64_t most_products = 6;  // with one input
constexpr size_t found_ahead = 4;     // products whose matrices are asked for before they are found

// Asks for memory that is read soon.
static void ask(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(static_cast<const uint8_t*>(from) + i, 0, 2);
}

static void put(std::vector<LowRank>& all, int64_t adapter, const LowRank& given) {
  all.resize(std::max(int64_t(all.size()), adapter + 1));
  all[adapter] = given;
}

void Adapters::set(const uint8_t* data, int64_t adapter, const LowRank& given) {
  n_adapters_ = std::max(n_adapters_, adapter + 1), rank_ = std::max(rank_, given.a.out);
  put(matrices_[data], adapter, given), found_.clear();
}

void Adapters::set_embedding(int64_t adapter, const LowRank& given) {
  n_adapters_ = std::max(n_adapters_, adapter + 1), rank_ = std::max(rank_, given.a.in);
  put(embedding_, adapter, given);
}

void Adapters::prepare(Pool& pool, const Adapted& batch, int64_t tokens, const int64_t* wanted,
                       int64_t n_wanted) {
  pool_ = &pool, batch_ = batch, all_ = {}, wanted_ = {}, found_.resize(pool.size());
  for (Step& step : found_) step.first = step.end = 0;
  if (!batch.starts) return;
  add_runs(nullptr, tokens, all_), add_runs(wanted, n_wanted, wanted_);
  low_.resize((most_products * std::max(all_.entries, wanted_.entries) + 1) * rank_);
}

void Adapters::add_runs(const int64_t* tokens, int64_t n, AdaptedRows& to) const {
  if (!batch_.starts) return;
  const auto first_of = [&](int64_t row) { return batch_.starts[tokens ? tokens[row] : row]; };
  const auto count = [&](int64_t row) {
    return batch_.starts[(tokens ? tokens[row] : row) + 1] - first_of(row);
  };
  for (int64_t row = 0; row < n;) {
    const int64_t first = first_of(row), own = count(row);
    const int32_t* adapters = batch_.adapters + first;
    const float* scales = batch_.scales + first;
    int64_t end = row + 1;
    while (end < n && end - row < most_rows && count(end) == own &&
           std::equal(adapters, adapters + own, batch_.adapters + first_of(end)) &&
           std::equal(scales, scales + own, batch_.scales + first_of(end)))
      end++;
    for (int64_t i = 0; i < own; i++)
      to.runs.push_back({row, end - row, to.entries + i, own, adapters[i], scales[i]});
    to.entries += own * (end - row), row = end;
  }
}

void Adapters::embed(int64_t token, int64_t id, float* x, int64_t n) {
  for (int64_t i = batch_.starts ? batch_.starts[token] : 0;
       batch_.starts && i < batch_.starts[token + 1]; i++) {
    const int32_t adapter = batch_.adapters[i];
    if (adapter >= int64_t(embedding_.size()) || !embedding_[adapter].a.data) continue;
    const LowRank& given = embedding_[adapter];
    const int64_t rank = given.a.in;
    read_row_(given.a, id, low_.data());
    for (int64_t j = 0; j < rank; j++) low_[j] *= batch_.scales[i] * given.factor;
    add_low_ranks_({&given.b, rank, 1, low_.data(), rank, x, n}, 0, n);
  }
}

const Adapters::OfMatrix* Adapters::of(const Weights& w) const {
  const auto found = matrices_.find(w.data);
  if (found == matrices_.end()) return nullptr;
  const OfMatrix& all = found->second;
  const auto fits = [&](const LowRank& each) { return each.fits(w); };
  return std::all_of(all.begin(), all.end(), fits) ? &all : nullptr;
}

void Adapters::lower(const LowRank& given, const AdaptedRun& run, int64_t begin, const Input& x,
                     float* low) const {
  const Weights& a = given.a;
  if (begin >= a.out) return;
  const int64_t end = std::min(begin + rows_at_once, a.out), apart = run.step * rank_;
  const Input own{.x = x.x + run.row * x.stride, .stride = x.stride, .tokens = run.rows};
  low += run.entry * rank_;
  float_rows_(a, begin, end, own, low, apart);
  const float scale = run.scale * given.factor;
  for (int64_t t = 0; t < run.rows; t++)
    for (int64_t j = begin; j < end; j++) low[t * apart + j] *= scale;
}

void Adapters::add(const LowRank& given, const AdaptedRun& run, const Weights& w, int64_t begin,
                   int64_t end, const float* low, float* y, int64_t stride) const {
  y += run.row * stride;
  for (int64_t t = 0; given.grows && t < run.rows; t++)
    for (int64_t i = begin; i < end; i++) {
      float& each = y[t * stride + i];
      each += given.grows[i] * (w.bias ? each - w.bias[i] : each);
    }
  add_low_ranks_(
      {&given.b, given.a.out, run.rows, low + run.entry * rank_, run.step * rank_, y, stride},
      begin, end);
}

void Adapters::find(int thread, const Weights& w) {
  Step& step = found_[thread];
  const size_t at = step.end++;
  if (at == step.products.size() || step.products[at].data != w.data ||
      step.products[at].out != w.out) {
    const OfMatrix* all = of(w);
    step.products.resize(at);
    step.products.push_back(
        {w.data, w.out, all ? int64_t(all->size()) : 0, all ? all->data() : nullptr});
  }
  if (at + found_ahead < step.products.size())
    if (const Found& next = step.products[at + found_ahead]; all_.runs[0].adapter < next.adapters)
      ask(&next.of[all_.runs[0].adapter], sizeof(LowRank));
}

void Adapters::lower(int thread, const Input& x) {
  Step& step = found_[thread];
  const Found* found = &step.products[step.first];
  const std::vector<AdaptedRun>& runs = step.rows->runs;
  const int64_t n = int64_t(step.end - step.first), n_runs = int64_t(runs.size());
  if (runs.empty() || std::none_of(found, found + n, [](const Found& each) { return each.of; }))
    return;
  step.units = n * n_runs * blocks();
  pool_->split_ahead(thread, step.units, [&](int64_t unit) {
    const int64_t k = unit / (n_runs * blocks()), begin = unit % blocks() * rows_at_once;
    const AdaptedRun& run = runs[unit / blocks() % n_runs];
    const LowRank* given = found[k].with(run.adapter);
    if (!given || begin >= given->a.out) return;
    lower(*given, run, begin, x, &low_[k * step.rows->entries * rank_]);
  });
}

void Adapters::add(int thread, int64_t k, const Weights& w, int64_t begin, int64_t end,
                   float* y) const {
  if (all_.runs.empty()) return;
  const Step& step = found_[thread];
  const Found& found = step.products[step.first + k];
  if (!found.of || step.rows->runs.empty()) return;
  pool_->await_ahead(step.units);
  for (const AdaptedRun& run : step.rows->runs)  // those of a token in their order
    if (const LowRank* given = found.with(run.adapter))
      add(*given, run, w, begin, end, &low_[k * step.rows->entries * rank_], y, w.out);
}

}  // namespace aleator
