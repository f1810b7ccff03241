#include "layers/decoder_step.hpp"

#include <algorithm>

#include "layers/gelu.hpp"

namespace aleator {

static const auto read_row_ = ALEATOR_PICK(read_row);
static const auto rms_norm_ = ALEATOR_PICK(rms_norm);
static const auto rotate_ = ALEATOR_PICK(rotate);
static const auto swiglu_ = ALEATOR_PICK(swiglu);
static const auto geglu_ = ALEATOR_PICK(geglu);
static const auto geglu_rounded_ = ALEATOR_PICK(geglu_rounded);
static const auto store_head_ = ALEATOR_PICK(store_head);
static const auto hadamard_ = ALEATOR_PICK(hadamard);
static const auto attend_ = ALEATOR_PICK(attend);

void DecoderStep::run(Pool& pool, const MicroBatch& batch) {
  std::lock_guard lock(turn_);
  prepare(pool, batch);
  pool.run([&](int thread) {
    for (const DecoderLayer& l : layers_) layer(thread, l, batch);
    products_.logits(thread, shape_.output, shape_.output_norm, shape_.eps, batch.out_rows,
                     batch.n_out, batch.logits);
  });
}

static void angles(const Rotation& r, const int32_t* positions, int64_t n, double sign,
                   double magnitude, std::vector<float>& cos_sin) {
  cos_sin.resize(n * r.pairs * 2);
  rotary_angles(r, positions, n, sign, magnitude, cos_sin.data());
}

// Buffers, embeddings, angles and lists of cells: little enough for one thread.
void DecoderStep::prepare(Pool& pool, const MicroBatch& batch) {
  const int64_t t = batch.tokens, e = shape_.n_embd();
  int64_t q = 0, k = 0, v = 0, attended = 0, ff = 0;
  for (const DecoderLayer& l : layers_) {
    q = std::max(q, l.q.out), k = std::max(k, l.k.out), v = std::max(v, l.v.out);
    attended = std::max(attended, l.o.in), ff = std::max(ff, l.gate.out);
  }
  products_.prepare(pool, t, e);
  q_.resize(t * q), k_.resize(t * k), v_.resize(t * v), attended_.resize(t * attended);
  gate_.resize(t * ff), up_.resize(t * ff);
  scratch_.resize(pool.size());
  for (int64_t i = 0; i < t; i++) {
    float* x = products_.x(i);
    if (batch.embeddings) {
      std::copy_n(batch.embeddings + i * e, e, x);
      continue;
    }
    read_row_(shape_.embedding, batch.ids[i], x);
    if (shape_.embedding_scale != 1)
      for (int64_t j = 0; j < e; j++) x[j] *= shape_.embedding_scale;
  }
  for (int64_t g = 0; g < batch.n_groups; g++) {
    const Rotation& r = shape_.rotation[g];
    angles(r, batch.positions, t, 1, r.magnitude, turned_[g].cos_sin);
    find_parts(batch.groups[g], r, turned_[g]);
  }
}

// A key behind its position by d meets the query rotated back by d instead of being rotated itself:
// nothing stored is written, so shifts add no rounding however many there are.
void DecoderStep::find_parts(const Seen& seen, const Rotation& rotation, Turned& turned) {
  auto& deltas = turned.deltas;
  deltas.assign(1, 0);
  turned.parts.clear();
  turned.part_start.assign(1, 0);
  for (int64_t list = 0; list < seen.n_lists; list++) {
    const int64_t start = seen.list_start[list], n = seen.list_start[list + 1] - start;
    const int32_t* delta = seen.seen_deltas ? seen.seen_deltas + start : nullptr;
    for (int64_t j = 0; j < n;) {
      int64_t end = delta ? j + 1 : n;
      while (end < n && delta[end] == delta[j]) end++;
      const int32_t d = delta ? delta[j] : 0;
      const auto known = std::find(deltas.begin(), deltas.end(), d);
      turned.parts.push_back({end, known - deltas.begin()});
      if (known == deltas.end()) deltas.push_back(d);
      j = end;
    }
    turned.part_start.push_back(int64_t(turned.parts.size()));
  }
  angles(rotation, deltas.data(), int64_t(deltas.size()), -1, 1, turned.delta_cos_sin);
}

void DecoderStep::layer(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const int64_t tokens = batch.tokens;
  Pool& pool = products_.pool();
  const auto add = [&](const Weights& w, const float* from, const float* norm) {
    const Input in = products_.input(thread, from, w.in, w.in, tokens, forms_of({&w}));
    if (norm)
      products_.add_normed(thread, w, in, norm, shape_.eps);
    else
      products_.add(thread, w, in);
    pool.barrier();
  };
  products_.run(
      thread, products_.normed(thread, l.attention_norm, shape_.eps, forms_of({&l.q, &l.k, &l.v})),
      {{&l.q, q_.data()}, {&l.k, k_.data()}, {&l.v, v_.data()}});
  pool.barrier();
  place_keys(thread, l, batch);
  pool.barrier();
  attention(thread, l, batch);
  pool.barrier();
  add(l.o, attended_.data(), l.attention_post_norm);
  feed_forward(thread, l, tokens);
  pool.barrier();
  add(l.down, gate_.data(), l.ffn_post_norm);
}

void DecoderStep::place_keys(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const Rotation& r = shape_.rotation[l.group];
  const int64_t dim = l.keys.dim, dim_v = l.values.dim;
  const float* cos_sin = turned_[l.group].cos_sin.data();
  const auto turn = [&](float* head, const float* norm, int64_t t) {
    if (norm) rms_norm_(head, norm, dim, shape_.eps, head);
    rotate_(head, cos_sin + t * r.pairs * 2, r.pairs, r.interleaved);
  };
  products_.pool().split(thread, batch.tokens * (l.heads() + l.keys.heads), [&](int64_t unit) {
    const int64_t t = unit % batch.tokens, head = unit / batch.tokens - l.heads();
    if (head < 0) return turn(&q_[t * l.q.out + (head + l.heads()) * dim], l.q_norm, t);
    const int64_t cell = batch.groups[l.group].cells[t];
    float* key = &k_[t * l.k.out + head * dim];
    turn(key, l.k_norm, t);
    float* value = &v_[t * l.v.out + head * dim_v];
    if (l.keys.rotation) hadamard_(key, dim, l.keys.rotation);
    if (l.values.rotation) hadamard_(value, dim_v, l.values.rotation);
    store_head_(key, l.keys, cell, head);
    store_head_(value, l.values, cell, head);
  });
}

// How many query heads of a token one thread takes at a time.  All of a key-value head's at least,
// and where every token has cells of its own more, whose rows lie side by side; but no thread
// idles.
static int64_t heads_together(int64_t heads, int64_t group, int64_t tokens, bool own_cells,
                              int64_t threads) {
  int64_t together = own_cells ? heads : group;
  while (together > 1 &&
         (heads % together || (together > group && together % group) ||
          (together < group && group % together) || heads / together * tokens < threads))
    together--;
  return together;
}

void DecoderStep::attention(int thread, const DecoderLayer& l, const MicroBatch& batch) {
  const Rotation& r = shape_.rotation[l.group];
  const Turned& turned = turned_[l.group];
  const Seen& seen = batch.groups[l.group];
  const int64_t heads = l.heads(), group = heads / l.keys.heads, dim = l.keys.dim;
  const int64_t variants = int64_t(turned.deltas.size());
  const int64_t together = heads_together(heads, group, batch.tokens, batch.tokens <= seen.n_lists,
                                          products_.pool().size());
  Scratch& own = scratch_[thread];
  products_.pool().split(thread, heads / together * batch.tokens, [&](int64_t unit) {
    const int64_t head = unit / batch.tokens * together, t = unit % batch.tokens;
    const int64_t list = seen.seen_list[t], first = seen.seen_first ? seen.seen_first[t] : 0;
    const int64_t n = seen.seen_count[t] - first;
    float* out = &attended_[t * l.o.in + head * l.values.dim];
    if (n <= 0) return void(std::fill_n(out, together * l.values.dim, 0.0f));
    const int64_t stride = (n + attention_slack + 15) / 16 * 16;
    if (int64_t(own.scores.size()) < together * stride) own.scores.resize(2 * together * stride);
    const float* q = &q_[t * l.q.out + head * dim];
    int64_t apart = dim;  // from one head's queries to the next's
    if (variants > 1 || l.keys.rotation) {
      apart = variants * dim;
      own.queries.resize(together * apart);
      for (int64_t i = 0; i < together; i++)
        for (int64_t v = 0; v < variants; v++) {
          float* form = &own.queries[i * apart + v * dim];
          std::copy_n(q + i * dim, dim, form);
          if (v) rotate_(form, &turned.delta_cos_sin[v * r.pairs * 2], r.pairs, r.interleaved);
          if (l.keys.rotation) hadamard_(form, dim, l.keys.rotation);
        }
      q = own.queries.data();
    }
    own.parts.clear();
    for (int64_t p = turned.part_start[list]; p < turned.part_start[list + 1]; p++)
      if (turned.parts[p].end > first)
        own.parts.push_back({turned.parts[p].end - first, turned.parts[p].variant});
    const Attended queries{.cells = seen.seen + seen.list_start[list] + first,
                           .n = n,
                           .parts = own.parts.data(),
                           .q = q,
                           .q_stride = apart,
                           .first = head,
                           .n_queries = together,
                           .group = group};
    attend_(queries, l.keys, l.values, shape_.attention_scale, own.scores.data(), stride, out,
            l.values.dim);
    if (l.values.rotation) hadamard_(out, together * l.values.dim, l.values.rotation);
  });
}

void DecoderStep::feed_forward(int thread, const DecoderLayer& l, int64_t tokens) {
  const Input x = products_.normed(thread, l.ffn_norm, shape_.eps, forms_of({&l.gate, &l.up}));
  const int64_t rows = std::min(rows_per_unit(l.gate, tokens), rows_per_unit(l.up, tokens)),
                ff = l.gate.out;
  const uint16_t* table = shape_.gate == Gate::gelu_rounded ? gelu_table() : nullptr;
  products_.pool().split(thread, (ff + rows - 1) / rows, [&](int64_t unit) {
    const int64_t begin = unit * rows, end = std::min(ff, begin + rows), n = end - begin;
    Products::multiply(l.gate, begin, end, x, gate_.data());
    Products::multiply(l.up, begin, end, x, up_.data());
    for (int64_t t = 0; t < tokens; t++) {
      float* gate = &gate_[t * ff + begin];
      const float* up = &up_[t * ff + begin];
      if (shape_.gate == Gate::silu)
        swiglu_(gate, up, n);
      else if (table)
        geglu_rounded_(gate, up, n, table);
      else
        geglu_(gate, up, n);
    }
  });
}

}  // namespace aleator
