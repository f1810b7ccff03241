#include "layers/latent.hpp"

#include <algorithm>

namespace aleator {

void LatentHeads::prepare(int64_t tokens, const LatentLayer& l) {
  tokens_ = tokens;
  grow(low_, tokens * l.query.out), grow(queries_, tokens * l.heads * l.dim());
  grow(compressed_, tokens * l.compress.out), grow(normed_, tokens * l.rank);
  grow(expanded_, tokens * l.expand.out), grow(outputs_, tokens * l.heads * l.dim_v);
}

void LatentHeads::project(int thread, Products& products, const LatentLayer& l,
                          const float* attention_norm, float* q, float* k, float* v) {
  Pool& pool = products.pool();
  const int64_t key = l.key_dim();
  const bool low = l.query_up.data;
  // Where nothing comes in between, queries are already what is asked for.
  float* queries = l.compressed() ? queries_.data() : q;
  const Input x = products.normed(thread, attention_norm, forms_of({&l.query, &l.compress}));
  products.run(thread, x,
               {{&l.query, low ? low_.data() : queries}, {&l.compress, compressed_.data()}});
  pool.each(thread, tokens_, [&](int64_t t) {
    if (low) {
      float* row = &low_[t * l.query.out];
      products.norm(row, l.query_norm, l.query.out, row);
    }
    const float* from = &compressed_[t * l.compress.out];
    float* to = l.compressed() ? k + t * key : &normed_[t * l.rank];
    products.norm(from, l.norm, l.rank, to);
    if (l.compressed()) std::copy_n(from + l.rank, l.rotated, to + l.rank);
  });
  if (low) products.run(thread, l.query_up, low_.data(), queries);
  if (l.compressed()) return compare_compressed(thread, products, l, q);
  products.run(thread, l.expand, normed_.data(), expanded_.data());
  pool.each(thread, tokens_, [&](int64_t t) {
    const float* rotated = &compressed_[t * l.compress.out + l.rank];
    for (int64_t h = 0; h < l.heads; h++) {
      const float* from = &expanded_[t * l.expand.out + h * (l.plain + l.dim_v)];
      float* to = k + (t * l.heads + h) * key;
      std::copy_n(from, l.plain, to);
      std::copy_n(rotated, l.rotated, to + l.plain);
      std::copy_n(from + l.plain, l.dim_v, v + (t * l.heads + h) * l.dim_v);
    }
  });
}

// Queries as they are compared with compressed keys.
void LatentHeads::compare_compressed(int thread, Products& products, const LatentLayer& l,
                                     float* q) {
  const int64_t dim = l.dim(), key = l.key_dim();
  each_head(thread, products, l.key_up, queries_.data(), dim, q, key);
  products.pool().each(thread, tokens_ * l.heads, [&](int64_t row) {
    std::copy_n(&queries_[row * dim + l.plain], l.rotated, q + row * key + l.rank);
  });
}

const float* LatentHeads::outputs(int thread, Products& products, const LatentLayer& l,
                                  const float* attended) {
  each_head(thread, products, l.value_up, attended, l.rank, outputs_.data(), l.dim_v);
  return outputs_.data();
}

// Each head's row [tokens, heads, from_dim], its first channels, times the head's own matrix.
void LatentHeads::each_head(int thread, Products& products, const std::vector<Weights>& matrices,
                            const float* from, int64_t from_dim, float* to, int64_t to_dim) {
  Pool& pool = products.pool();
  const Adapters& adapters = products.adapters();
  const std::vector<AdaptedRun>& runs = adapters.all().runs;
  const int64_t heads = int64_t(matrices.size()), in = matrices[0].in,
                n_runs = int64_t(runs.size());
  const int64_t apart = adapters.all().entries * adapters.rank();
  const Forms forms = forms_of({&matrices[0]});
  if (thread == 0 && forms.made()) formed_.resize(tokens_ * heads, in, forms);
  if (thread == 0 && n_runs) grow(lowered_, heads * apart);
  if (forms.made() || n_runs) pool.barrier();
  const auto input = [&](int64_t h) {
    return Input{.x = from + h * from_dim, .stride = heads * from_dim, .tokens = tokens_};
  };
  if (forms.made())
    pool.each(thread, tokens_ * heads, [&](int64_t row) {
      const int64_t h = row / tokens_, t = row % tokens_;
      formed_.round(row, from + (t * heads + h) * from_dim);
    });
  if (n_runs)
    pool.each(thread, heads * n_runs * adapters.blocks(), [&](int64_t unit) {
      const int64_t h = unit / adapters.blocks() / n_runs, block = unit % adapters.blocks();
      const AdaptedRun& run = runs[unit / adapters.blocks() % n_runs];
      if (const LowRank* given = Adapters::one(adapters.of(matrices[h]), run.adapter))
        adapters.lower(*given, run, block * Adapters::rows_at_once, input(h), &lowered_[h * apart]);
    });
  const int64_t per_head = units(matrices[0], tokens_);
  pool.each(thread, heads * per_head, [&](int64_t unit) {
    const int64_t h = unit / per_head, rows = rows_per_unit(matrices[h], tokens_);
    const Weights& w = matrices[h];
    const int64_t begin = unit % per_head * rows, end = std::min(w.out, begin + rows);
    Input x = input(h);
    if (forms.made()) formed_.give(x, h * tokens_);
    product_rows(w, begin, end, x, to + h * to_dim, heads * to_dim);
    const Adapters::OfMatrix* adapted = n_runs ? adapters.of(w) : nullptr;
    for (const AdaptedRun& run : runs)
      if (const LowRank* given = Adapters::one(adapted, run.adapter))
        adapters.add(*given, run, w, begin, end, &lowered_[h * apart], to + h * to_dim,
                     heads * to_dim);
  });
}

}  // namespace aleator
