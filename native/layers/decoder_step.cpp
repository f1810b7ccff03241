#include "layers/decoder_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

namespace aleator {

static const auto linear_rows_ = ALEATOR_PICK(linear_rows);
static const auto pack_ = ALEATOR_PICK(pack);
static const auto read_row_ = ALEATOR_PICK(read_row);
static const auto rms_norm_ = ALEATOR_PICK(rms_norm);
static const auto rotate_ = ALEATOR_PICK(rotate);
static const auto swiglu_ = ALEATOR_PICK(swiglu);
static const auto store_head_ = ALEATOR_PICK(store_head);
static const auto hadamard_ = ALEATOR_PICK(hadamard);
static const auto attend_ = ALEATOR_PICK(attend);

void DecoderStep::run(Pool& pool, const MicroBatch& batch) {
  std::lock_guard lock(turn_);
  pool_ = &pool;
  prepare(batch);
  pool_->run([&](int thread) {
    for (const DecoderLayer& l : layers_) layer(thread, l, batch);
    logits(thread, batch);
  });
}

// Buffers, embeddings, angles and lists of cells: little enough for one thread.
void DecoderStep::prepare(const MicroBatch& batch) {
  const int64_t t = batch.tokens, e = shape_.n_embd();
  int64_t q = 0, k = 0, v = 0, attended = 0, ff = 0;
  for (const DecoderLayer& l : layers_) {
    q = std::max(q, l.q.out), k = std::max(k, l.k.out), v = std::max(v, l.v.out);
    attended = std::max(attended, l.o.in), ff = std::max(ff, l.gate.out);
  }
  x_.resize(t * e), sum_.resize(t * e);
  q_.resize(t * q), k_.resize(t * k), v_.resize(t * v), attended_.resize(t * attended);
  gate_.resize(t * ff), up_.resize(t * ff);
  packed_.resize(packed_size(t, std::max({e, attended, ff})));
  int64_t most = 0;
  for (int64_t i = 0; i < t; i++) most = std::max(most, batch.seen_count[i]);
  scratch_.resize(pool_->size());
  for (Scratch& s : scratch_) {
    s.normed.resize(t * e);
    if (int64_t(s.scores.size()) < most + attention_slack)
      s.scores.resize(2 * most + attention_slack);
  }
  if (batch.embeddings)
    std::copy_n(batch.embeddings, t * e, x_.data());
  else
    for (int64_t i = 0; i < t; i++) read_row_(shape_.embedding, batch.ids[i], &x_[i * e]);
  angles(batch.positions, t, 1, shape_.rotation_magnitude, cos_sin_);
  find_parts(batch);
}

void DecoderStep::angles(const int32_t* positions, int64_t n, double sign, double magnitude,
                         std::vector<float>& cos_sin) {
  const int64_t pairs = shape_.rotated_pairs;
  cos_sin.resize(n * pairs * 2);
  for (int64_t i = 0; i < n; i++)
    for (int64_t p = 0; p < pairs; p++) {
      const double angle = sign * positions[i] * shape_.frequencies[p];
      cos_sin[(i * pairs + p) * 2] = float(magnitude * std::cos(angle));
      cos_sin[(i * pairs + p) * 2 + 1] = float(magnitude * std::sin(angle));
    }
}

// A key behind its position by d meets the query turned back by d instead of being turned itself:
// nothing stored is written, so shifts add no rounding however many there are.
void DecoderStep::find_parts(const MicroBatch& batch) {
  deltas_.assign(1, 0);
  parts_.clear();
  part_start_.assign(1, 0);
  for (int64_t list = 0; list < batch.n_lists; list++) {
    const int64_t start = batch.list_start[list], n = batch.list_start[list + 1] - start;
    const int32_t* delta = batch.seen_deltas ? batch.seen_deltas + start : nullptr;
    for (int64_t j = 0; j < n;) {
      int64_t end = delta ? j + 1 : n;
      while (end < n && delta[end] == delta[j]) end++;
      const int32_t d = delta ? delta[j] : 0;
      const auto known = std::find(deltas_.begin(), deltas_.end(), d);
      parts_.push_back({end, known - deltas_.begin()});
      if (known == deltas_.end()) deltas_.push_back(d);
      j = end;
    }
    part_start_.push_back(int64_t(parts_.size()));
  }
  angles(deltas_.data(), int64_t(deltas_.size()), -1, 1, delta_cos_sin_);
}

// Rows of x [tokens, in] for a product; every thread must call it.
Input DecoderStep::input(int thread, const float* x, int64_t in, int64_t tokens) {
  if (tokens <= few_tokens) return {x, in, tokens};
  pool_->split(thread, packs(tokens),
               [&](int64_t unit) { pack_(x, in, tokens, in, unit * pack_tokens, packed_.data()); });
  pool_->barrier();
  return {packed_.data(), 0, tokens, true};
}

// x_ normalised.  Few tokens each thread normalises for itself: less work than waiting for another.
Input DecoderStep::normed(int thread, const float* weight, int64_t tokens) {
  const int64_t e = shape_.n_embd();
  float* y = scratch_[thread].normed.data();
  const auto norm = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) rms_norm_(&x_[t * e], weight, e, shape_.eps, y + t * e);
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

// Several matrices with one input, as one list of units.
void DecoderStep::products(int thread, const Input& x, std::initializer_list<Product> list) {
  int64_t n = 0;
  for (const Product& p : list) n += units(*p.weights, x.tokens);
  pool_->split(thread, n, [&](int64_t unit) {
    const Product* p = list.begin();
    for (; unit >= units(*p->weights, x.tokens); p++) unit -= units(*p->weights, x.tokens);
    const Weights& w = *p->weights;
    const int64_t rows = rows_per_unit(w, x.tokens), begin = unit * rows;
    linear_rows_(w, begin, std::min(w.out, begin + rows), x, p->out, w.out);
  });
}

// x_ += W x, with each thread adding the rows it has computed.
void DecoderStep::add_product(int thread, const Weights& w, const Input& x) {
  const int64_t rows = rows_per_unit(w, x.tokens);
  pool_->split(thread, units(w, x.tokens), [&](int64_t unit) {
    const int64_t begin = unit * rows, end = std::min(w.out, begin + rows);
    linear_rows_(w, begin, end, x, sum_.data(), w.out);
    for (int64_t t = 0; t < x.tokens; t++)
      for (int64_t row = begin; row < end; row++) x_[t * w.out + row] += sum_[t * w.out + row];
  });
}

void DecoderStep::layer(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const int64_t tokens = batch.tokens;
  products(thread, normed(thread, l.attention_norm, tokens),
           {{&l.q, q_.data()}, {&l.k, k_.data()}, {&l.v, v_.data()}});
  pool_->barrier();
  place_keys(thread, l, batch);
  pool_->barrier();
  attention(thread, l, batch);
  pool_->barrier();
  add_product(thread, l.o, input(thread, attended_.data(), l.o.in, tokens));
  pool_->barrier();
  feed_forward(thread, l, tokens);
  pool_->barrier();
  add_product(thread, l.down, input(thread, gate_.data(), l.down.in, tokens));
  pool_->barrier();
}

void DecoderStep::place_keys(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const int64_t dim = l.keys.dim, dim_v = l.values.dim, pairs = shape_.rotated_pairs;
  const auto turn = [&](float* head, const float* norm, int64_t t) {
    if (norm) rms_norm_(head, norm, dim, shape_.eps, head);
    rotate_(head, &cos_sin_[t * pairs * 2], pairs, shape_.rotation_interleaved);
  };
  pool_->split(thread, batch.tokens * (l.heads() + l.keys.heads), [&](int64_t unit) {
    const int64_t t = unit % batch.tokens, head = unit / batch.tokens - l.heads();
    if (head < 0) return turn(&q_[t * l.q.out + (head + l.heads()) * dim], l.q_norm, t);
    float* key = &k_[t * l.k.out + head * dim];
    turn(key, l.k_norm, t);
    float* value = &v_[t * l.v.out + head * dim_v];
    if (l.keys.rotation) hadamard_(key, dim, l.keys.rotation);
    if (l.values.rotation) hadamard_(value, dim_v, l.values.rotation);
    store_head_(key, l.keys, batch.cells[t], head);
    store_head_(value, l.values, batch.cells[t], head);
  });
}

void DecoderStep::attention(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const int64_t heads = l.heads(), group = heads / l.keys.heads, dim = l.keys.dim;
  const int64_t pairs = shape_.rotated_pairs, variants = int64_t(deltas_.size());
  Scratch& own = scratch_[thread];
  pool_->split(thread, heads * batch.tokens, [&](int64_t unit) {
    const int64_t head = unit / batch.tokens, t = unit % batch.tokens, list = batch.seen_list[t];
    float* out = &attended_[t * l.o.in + head * l.values.dim];
    if (batch.seen_count[t] == 0) return void(std::fill_n(out, l.values.dim, 0.0f));
    const float* q = &q_[t * l.q.out + head * dim];
    if (variants > 1 || l.keys.rotation) {
      own.queries.resize(variants * dim);
      for (int64_t v = 0; v < variants; v++) {
        float* turned = &own.queries[v * dim];
        std::copy_n(q, dim, turned);
        if (v) rotate_(turned, &delta_cos_sin_[v * pairs * 2], pairs, shape_.rotation_interleaved);
        if (l.keys.rotation) hadamard_(turned, dim, l.keys.rotation);
      }
      q = own.queries.data();
    }
    own.parts.clear();
    for (int64_t p = part_start_[list]; p < part_start_[list + 1]; p++)
      own.parts.push_back({parts_[p].end, q + parts_[p].variant * dim});
    attend_({batch.seen + batch.list_start[list], batch.seen_count[t], own.parts.data()}, l.keys,
            l.values, head / group, shape_.attention_scale, own.scores.data(), out);
    if (l.values.rotation) hadamard_(out, l.values.dim, l.values.rotation);
  });
}

void DecoderStep::feed_forward(int thread, const DecoderLayer& l, int64_t tokens) {
  const Input x = normed(thread, l.ffn_norm, tokens);
  const int64_t rows = std::min(rows_per_unit(l.gate, tokens), rows_per_unit(l.up, tokens)),
                ff = l.gate.out;
  pool_->split(thread, (ff + rows - 1) / rows, [&](int64_t unit) {
    const int64_t begin = unit * rows, end = std::min(ff, begin + rows);
    linear_rows_(l.gate, begin, end, x, gate_.data(), ff);
    linear_rows_(l.up, begin, end, x, up_.data(), ff);
    for (int64_t t = 0; t < tokens; t++)
      swiglu_(&gate_[t * ff + begin], &up_[t * ff + begin], end - begin);
  });
}

void DecoderStep::logits(int thread, const MicroBatch& batch) {
  const int64_t e = shape_.n_embd();
  float* y = scratch_[thread].normed.data();
  for (int64_t i = 0; i < batch.n_out; i++)
    rms_norm_(&x_[batch.out_rows[i] * e], shape_.output_norm, e, shape_.eps, y + i * e);
  if (batch.n_out)
    products(thread, input(thread, y, e, batch.n_out), {{&shape_.output, batch.logits}});
}

}  // namespace aleator
