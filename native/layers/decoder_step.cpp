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
static const auto store_row_ = ALEATOR_PICK(store_row);
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
  scratch_.resize(pool_->size());
  for (Scratch& s : scratch_) {
    s.normed.resize(t * e);
    s.scores.resize(batch.n_cells + attention_slack);
  }
  if (batch.embeddings)
    std::copy_n(batch.embeddings, t * e, x_.data());
  else
    for (int64_t i = 0; i < t; i++) read_row_(shape_.embedding, batch.ids[i], &x_[i * e]);

  const int64_t pairs = shape_.rotated_pairs;
  cos_sin_.resize(t * pairs * 2);
  for (int64_t i = 0; i < t; i++)
    for (int64_t p = 0; p < pairs; p++) {
      const double angle = batch.positions[i] * shape_.frequencies[p];
      cos_sin_[(i * pairs + p) * 2] = float(shape_.rotation_magnitude * std::cos(angle));
      cos_sin_[(i * pairs + p) * 2 + 1] = float(shape_.rotation_magnitude * std::sin(angle));
    }

  seen_.clear();
  seen_start_.assign(1, 0);
  for (int64_t i = 0; i < t; i++) {
    const bool* row = batch.visible + i * batch.n_cells;
    for (int64_t c = 0; c < batch.n_cells; c++)
      if (row[c]) seen_.push_back(int32_t(c));
    seen_start_.push_back(int64_t(seen_.size()));
  }
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
    store_row_(key, dim, l.keys.type, l.keys.row(batch.cells[t], head));
    store_row_(&v_[t * l.v.out + head * dim_v], dim_v, l.values.type,
               l.values.row(batch.cells[t], head));
  });
}

void DecoderStep::attention(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const int64_t heads = l.heads(), group = heads / l.keys.heads;
  pool_->split(thread, heads * batch.tokens, [&](int64_t unit) {
    const int64_t head = unit / batch.tokens, t = unit % batch.tokens;
    const int64_t first = seen_start_[t], n = seen_start_[t + 1] - first;
    float* out = &attended_[t * l.o.in + head * l.values.dim];
    if (n == 0)
      std::fill_n(out, l.values.dim, 0.0f);
    else
      attend_(&q_[t * l.q.out + head * l.keys.dim], l.keys, l.values, head / group, &seen_[first],
              n, shape_.attention_scale, scratch_[thread].scores.data(), out);
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
