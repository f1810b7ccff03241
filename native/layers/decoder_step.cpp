#include "layers/decoder_step.hpp"

#include <algorithm>
#include <variant>

#include "threads/float_rules.hpp"

namespace aleator {

void DecoderStep::run(Pool& pool, const MicroBatch& batch, Watch* watch) {
  Pool::refuse_while_looking();
  std::lock_guard lock(turn_);
  const FloatRules rules;
  prepare(pool, batch);
  const bool alone = batch.tokens == 1 && batch.n_out == 1;
  products_.read_in_order(alone && ways_.second());
  pool.run_adapting(
      [&](int thread) {
        if (per_layer_.any()) per_layer_.project(thread, products_, batch.ids);
        for (const DecoderLayer& l : layers_) {
          tap(thread, &l - layers_.data(), batch);
          layer(thread, l, batch);
          if (l.embedding) per_layer_.add(thread, products_, *l.embedding, shape_.gate);
          if (l.output_scale != 1) scale(thread, l.output_scale, batch.tokens);
        }
        tap(thread, int64_t(layers_.size()), batch);
        products_.logits(thread, shape_.output, shape_.output_norm, batch.out_rows, batch.n_out,
                         batch.logits);
      },
      watch);
  if (alone) ways_.ended();
}

// Copies x where it is asked for: on thread 0 alone, without which no other goes on to change it.
void DecoderStep::tap(int thread, int64_t layer, const MicroBatch& batch) {
  const Taps& taps = batch.taps;
  const int64_t e = shape_.n_embd();
  for (int64_t i = 0; thread == 0 && i < taps.n; i++)
    for (int64_t t = 0; taps.layers[i] == layer && t < batch.tokens; t++)
      std::copy_n(products_.x(t), e, taps.out + (t * taps.n + i) * e);
}

// Buffers, embeddings, angles and plans of attention: little enough for one thread.
void DecoderStep::prepare(Pool& pool, const MicroBatch& batch) {
  const int64_t t = batch.tokens, e = shape_.n_embd();
  int64_t q = 0, queries = 0, k = 0, v = 0, attended = 0, ff = 0;
  for (const DecoderLayer& l : layers_) {
    q = std::max(q, l.q_width()), k = std::max(k, l.k_width()), v = std::max(v, l.v_width());
    attended = std::max(attended, l.n_heads * l.values.dim), ff = std::max(ff, l.gate.out);
    if (l.gated) q = std::max(q, 2 * l.q_width()), queries = std::max(queries, l.q_width());
    if (l.state) recurrent_.prepare(t, *l.state);
    if (l.latent) latent_.prepare(t, *l.latent);
    if (l.mixture) experts_.prepare(t, e, *l.mixture);
    if (l.mixture && l.mixture->beside()) dense_.resize(t * e);
  }
  products_.prepare(pool, t, e, shape_.norm, shape_.eps, shape_.residual_scale);
  products_.adapters().prepare(pool, batch.adapted, t, batch.out_rows, batch.n_out);
  per_layer_.prepare(t);
  q_.resize(t * q), k_.resize(t * k), v_.resize(t * v), attended_.resize(t * attended);
  queries_.resize(t * queries), gate_.resize(t * ff), up_.resize(t * ff);
  ones_.resize(size_t(ff), 1.0f);
  std::vector<float> place(shape_.position_embedding.data ? size_t(e) : 0);
  for (int64_t i = 0; i < t; i++) {
    float* x = products_.x(i);
    if (batch.embeddings) {
      std::copy_n(batch.embeddings + i * batch.stride, e, x);
    } else {
      read_row_(shape_.embedding, batch.ids[i], x);
      products_.adapters().embed(i, batch.ids[i], x, e);
      if (shape_.embedding_scale != 1)
        for (int64_t j = 0; j < e; j++) x[j] *= shape_.embedding_scale;
    }
    if (shape_.position_embedding.data) {
      read_row_(shape_.position_embedding, batch.positions[i], place.data());
      for (int64_t j = 0; j < e; j++) x[j] += place[j];
    }
    if (shape_.embedding_norm) products_.norm(x, shape_.embedding_norm, e, x);
  }
  for (int64_t g = 0; g < batch.n_groups; g++) {
    const Rotation& r = shape_.rotation[g];
    angles_[g].resize(t * r.pairs * 2);
    rotary_angles(r, batch.positions, t, 1, r.magnitude, angles_[g].data());
    int64_t kv_heads = INT64_MAX, group = 1;  // of the layers, those with the least to share out
    for (const DecoderLayer& l : layers_)
      if (l.attends() && l.group == g)
        kv_heads = std::min(kv_heads, l.keys.heads), group = std::max(group, attention(l).group());
    if (kv_heads == INT64_MAX) continue;
    attention_[g].prepare(batch.groups[g], t, r, shape_.raw_keys, pool.size(), kv_heads, group);
    for (const DecoderLayer& l : layers_)
      if (l.attends() && l.group == g) attention_[g].reserve(attention(l));
  }
}

AttentionShape DecoderStep::attention(const DecoderLayer& l) const {
  return {l.keys,         l.values,      l.n_heads, shape_.attention_scale,
          shape_.softcap, shape_.slopes, l.rotated, l.sinks};
}

void DecoderStep::layer(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  if (l.attends())
    attend(thread, l, batch);
  else if (l.state)
    recurrent_.run(thread, products_, *l.state, batch.runs);
  if (batch.keys_only) return;
  if (l.mixture)
    return l.mixture->beside() ? mix_beside(thread, l, batch.tokens) : mix(thread, l, batch.tokens);
  if (l.gate.out == 0) return;
  if (!l.attends() || !shape_.parallel)
    gate(thread, l, products_.normed(thread, l.ffn_norm, forms_of({&l.gate, &l.up})), batch.tokens);
  products_.add_rows(thread, l.down, gate_.data(), l.ffn_post_norm, shape_.norm_sums);
}

// The state space that takes what attention takes, or none.
const HeadLayer* DecoderStep::beside(const DecoderLayer& l) const {
  return l.state ? &std::get<HeadLayer>(*l.state) : nullptr;
}

// Queries, keys and values.
void DecoderStep::project(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  if (l.latent)
    return latent_.project(thread, products_, *l.latent, l.attention_norm, q_.data(), k_.data(),
                           v_.data());
  const HeadLayer* beside = this->beside(l);
  const bool shared = shape_.parallel && !l.ffn_norm;  // the input of both parts
  const Forms forms = shared   ? forms_of({&l.q, &l.k, &l.v, &l.gate, &l.up})
                      : beside ? forms_of({&l.q, &l.k, &l.v, &beside->in})
                               : forms_of({&l.q, &l.k, &l.v});
  const Input x = l.wide ? products_.input(thread, batch.embeddings + shape_.n_embd(), batch.stride,
                                           l.q.in, forms)
                         : products_.normed(thread, l.attention_norm, forms);
  const Weights none, &q = batch.keys_only ? none : l.q;
  products_.run(thread, x, {{&q, q_.data()}, {&l.k, k_.data()}, {&l.v, v_.data()}});
  if (shape_.parallel && l.mixture)
    experts_.run(thread, products_, *l.mixture, shared ? l.attention_norm : l.ffn_norm);
  else if (shape_.parallel)
    gate(thread, l, shared ? x : products_.normed(thread, l.ffn_norm, forms_of({&l.gate, &l.up})),
         batch.tokens);
  if (beside) recurrent_.project(thread, products_, *beside, batch.runs, x);
  if (shape_.head_norm == HeadNorm::all && l.q_norm) normalise_heads(thread, l, batch.tokens);
}

void DecoderStep::attend(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  Pool& pool = products_.pool();
  project(thread, l, batch);
  place_keys(thread, l, batch);
  if (batch.keys_only) return;
  attention_[l.group].run(thread, pool, attention(l), l.gated ? queries_.data() : q_.data(),
                          attended_.data());
  pool.barrier();
  if (l.gated) {
    const int64_t dim = l.values.dim;
    pool.each(thread, batch.tokens * l.n_heads, [&](int64_t unit) {
      sigmoid_gate_(&attended_[unit * dim], &q_[(2 * unit + 1) * dim], dim);
    });
  }
  const float* given = attended_.data();
  if (l.values.within) given = latent_.outputs(thread, products_, *l.latent, given);
  products_.add_rows(thread, l.o, given, l.attention_post_norm, shape_.norm_sums);
  if (const HeadLayer* beside = this->beside(l))
    recurrent_.finish(thread, products_, *beside, batch.runs);
}

// Queries, keys and values within the clamp.
void DecoderStep::limit(float* x, int64_t n) const {
  for (int64_t i = 0; shape_.clamp > 0 && i < n; i++)
    x[i] = std::clamp(x[i], -shape_.clamp, shape_.clamp);
}

// All heads of a token together.
void DecoderStep::normalise_heads(int thread, const DecoderLayer& l, int64_t tokens) {
  products_.pool().each(thread, 2 * tokens, [&](int64_t unit) {
    const bool key = unit >= tokens;
    const int64_t n = key ? l.k.out : l.q.out;
    float* row = key ? &k_[(unit - tokens) * n] : &q_[unit * n];
    limit(row, n);
    products_.norm(row, key ? l.k_norm : l.q_norm, n, row);
  });
}

void DecoderStep::place_keys(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const Rotation& r = shape_.rotation[l.group];
  const int64_t dim = l.keys.dim, dim_v = l.values.dim;
  const float* cos_sin = angles_[l.group].data();
  const HeadNorm kind = shape_.head_norm;
  const auto rotate = [&](float* x, int64_t t, bool raw) {
    if (!l.rotated) return;
    x += r.offset;
    if (!raw) return rotate_(x, cos_sin + t * r.pairs * 2, r.pairs, r.interleaved);
    for (int64_t i = 0; i < 2 * r.pairs; i++) x[i] *= float(r.magnitude);
  };
  const auto turn = [&](float* x, const float* norm, int64_t head, int64_t t, bool raw) {
    if (!norm || kind == HeadNorm::all) {
      if (!norm) limit(x, dim);
      return rotate(x, t, raw);
    }
    limit(x, dim);
    if (kind == HeadNorm::rotated_head) rotate(x, t, raw);
    const int64_t size = shape_.norm == Norm::layer ? 2 * dim : dim;
    products_.norm(x, norm + (kind == HeadNorm::each ? head * size : 0), dim, x);
    if (kind != HeadNorm::rotated_head) rotate(x, t, raw);
  };
  const int64_t stored = l.k.data || l.latent ? l.keys.heads : 0;
  const int64_t queries = batch.keys_only ? 0 : l.n_heads;
  products_.pool().each(thread, batch.tokens * (queries + stored), [&](int64_t unit) {
    const int64_t t = unit % batch.tokens, head = unit / batch.tokens - queries;
    if (head < 0) {
      const int64_t at = t * l.n_heads + head + l.n_heads;
      float* query = l.gated ? &queries_[at * dim] : &q_[at * dim];
      if (l.gated) std::copy_n(&q_[2 * at * dim], dim, query);
      turn(query, l.q_norm, head + l.n_heads, t, false);
      for (int64_t i = 0; l.scaled && batch.query_scales && i < dim; i++)
        query[i] *= batch.query_scales[t];
      return;
    }
    const int64_t cell = batch.groups[l.group].cells[t];
    float* key = &k_[t * l.k_width() + head * dim];
    float* value = l.values.within ? nullptr : &v_[t * l.v_width() + head * dim_v];
    if (value && !l.v.data && !l.latent) std::copy_n(key, dim_v, value);
    turn(key, l.k_norm, head, t, shape_.raw_keys);
    if (l.keys.rotation) hadamard_(key, dim, l.keys.rotation);
    store_head_(key, l.keys, cell, head);
    if (!value) return;
    limit(value, dim_v);
    if (l.v_norm) products_.norm(value, l.v_norm, dim_v, value);
    if (l.values.rotation) hadamard_(value, dim_v, l.values.rotation);
    store_head_(value, l.values, cell, head);
  });
}

// The activated part of feed-forward, into gate_.
void DecoderStep::gate(int thread, const DecoderLayer& l, const Input& x, int64_t tokens) {
  const bool gated = l.up.data;
  products_.lower(thread, x, {{&l.gate, gate_.data()}, {&l.up, up_.data()}});
  const auto shares_of = [&](const Weights& w) { return products_.shares(w, tokens); };
  Shares shares = shares_of(l.gate);
  if (gated) shares = std::min(shares, shares_of(l.up));
  // Two pieces for each thread at least.
  const int64_t most = shares.rows_of_part / (2 * shares.rows * products_.pool().size());
  const int64_t turns = shares.parts > 1 ? most : std::min(units_in_turn(tokens), most);
  if (gated) shares.rows *= std::max<int64_t>(turns, 1);
  const int64_t ff = l.gate.out, size = shares.rows_of_part;
  products_.pool().split_pieces(thread, size, shares.rows, [&](int64_t begin, int64_t end) {
    products_.product(thread, 0, l.gate, shares.parts, begin, end, x, gate_.data());
    if (gated) products_.product(thread, 1, l.up, shares.parts, begin, end, x, up_.data());
    shares.each_part(begin, end, [&](int64_t from, int64_t to) {
      for (int64_t t = 0; t < tokens; t++)
        apply_gate(shape_.gate, &gate_[t * ff + from], gated ? &up_[t * ff + from] : ones_.data(),
                   to - from);
    });
  });
  products_.pool().barrier();
}

// The running sum += rms_norm of a dense part and the mixture together, each normalised before.
void DecoderStep::mix_beside(int thread, const DecoderLayer& l, int64_t tokens) {
  const Mixture& m = *l.mixture;
  const int64_t e = shape_.n_embd();
  gate(thread, l, products_.normed(thread, l.ffn_norm, forms_of({&l.gate, &l.up})), tokens);
  products_.run(thread, l.down, gate_.data(), dense_.data());
  experts_.run(thread, products_, m, nullptr);
  products_.pool().each(thread, tokens, [&](int64_t t) {
    float *y = experts_.out(t), *dense = &dense_[t * e];
    products_.norm(dense, m.dense_post_norm, e, dense);
    products_.norm(y, m.expert_post_norm, e, y);
    for (int64_t i = 0; i < e; i++) y[i] = dense[i] + y[i];
    take(t, l.ffn_post_norm);
  });
}

void DecoderStep::scale(int thread, float by, int64_t tokens) {
  products_.pool().each(thread, tokens, [&](int64_t t) {
    float* x = products_.x(t);
    for (int64_t i = 0; i < shape_.n_embd(); i++) x[i] *= by;
  });
}

// A token's running sum += what the experts give, or += its norm, or is normalised then.
void DecoderStep::take(int64_t token, const float* norm) {
  float *y = experts_.out(token), *x = products_.x(token);
  const int64_t e = shape_.n_embd();
  if (!shape_.norm_sums) products_.norm(y, norm, e, y);
  for (int64_t i = 0; i < e; i++) x[i] += shape_.residual_scale * y[i];
  if (shape_.norm_sums) products_.norm(x, norm, e, x);
}

// The running sum += the mixture, or += rms_norm of what it gives.
void DecoderStep::mix(int thread, const DecoderLayer& l, int64_t tokens) {
  if (!l.attends() || !shape_.parallel) experts_.run(thread, products_, *l.mixture, l.ffn_norm);
  products_.pool().each(thread, tokens, [&](int64_t t) { take(t, l.ffn_post_norm); });
}

}  // namespace aleator
