#include "layers/experts.hpp"

#include <algorithm>

namespace aleator {

static int64_t rows_at_once(const Expert& e, int64_t tokens) {
  const int64_t rows = rows_per_unit(e.gate, tokens);
  return e.gated() ? units_in_turn(tokens) * std::min(rows, rows_per_unit(e.up, tokens)) : rows;
}

void Experts::prepare(int64_t tokens, int64_t n_embd, const Mixture& m) {
  tokens_ = tokens, n_embd_ = n_embd;
  const Routing& r = m.routing;
  const int64_t slots = tokens * r.n_used, shared = m.shared.gate.out;
  grow(logits_, tokens * r.n_experts), grow(keys_, tokens * (r.n_experts + r.n_groups));
  grow(weights_, slots), grow(chosen_, slots), grow(slot_, slots), grow(token_, slots);
  grow(shared_weight_, tokens), grow(counts_, r.n_experts), grow(out_, tokens * n_embd);
  grow(gate_, slots * m.n_ff()), grow(up_, slots * m.n_ff()), grow(down_, slots * n_embd);
  grow(shared_gate_, tokens * shared), grow(shared_up_, tokens * shared);
  ones_.resize(std::max({ones_.size(), size_t(m.n_ff()), size_t(shared)}), 1.0f);
  if (shared) grow(shared_down_, tokens * n_embd);
  if (gathers(m)) grow(gathered_, slots * n_embd);
}

void Experts::run(int thread, Products& products, const Mixture& m, const float* norm) {
  Pool& pool = products.pool();
  const Expert &any = m.experts[0], &shared = m.shared.gate.data ? m.shared : any;
  const Forms forms = forms_of({&m.router, &any.gate, &any.up, &shared.gate, &shared.up,
                                m.shared_router.data ? &m.shared_router : &m.router});
  if (m.beside()) {
    const Input own = products.normed(thread, m.router_norm, forms_of({&m.router}));
    products.run(thread, own, {{&m.router, logits_.data()}});
  }
  const Input x = products.normed(thread, m.beside() ? m.expert_norm : norm, forms);
  if (!m.beside())
    products.run(thread, x,
                 {{&m.router, logits_.data()}, {&m.shared_router, shared_weight_.data()}});
  choose(thread, products, m);
  gather(thread, pool, m, x);
  activate(thread, products, m, x);
  give_back(thread, products, m);
}

void Experts::choose(int thread, Products& products, const Mixture& m) {
  const Routing& r = m.routing;
  Pool& pool = products.pool();
  pool.each(thread, tokens_, [&](int64_t t) {
    route_(r, &logits_[t * r.n_experts], &keys_[t * (r.n_experts + r.n_groups)],
           &chosen_[t * r.n_used], &weights_[t * r.n_used]);
    shared_weight_[t] = m.shared_router.data ? sigmoid_of_(shared_weight_[t]) : 1.0f;
  });
  if (thread == 0) group(m, products.adapters());
  pool.barrier();
}

// Gives the choices slots, those of one expert side by side and in the order of their tokens.
void Experts::group(const Mixture& m, const Adapters& adapters) {
  const Routing& r = m.routing;
  const int64_t n = tokens_ * r.n_used;
  std::fill_n(counts_.begin(), r.n_experts, 0);
  for (int64_t i = 0; i < n; i++) counts_[chosen_[i]]++;
  groups_.clear(), adapted_ = {}, group_of_run_.clear();
  units_ = units_down_ = 0;
  const auto add = [&](const Expert& e, int64_t first, int64_t tokens) {
    groups_.push_back({&e, first, tokens, units_, units_down_, 0, 0, {}});
    const int64_t rows = rows_at_once(e, tokens);
    units_ += (e.gate.out + rows - 1) / rows;
    units_down_ += units(e.down, tokens);
  };
  int64_t first = 0;
  for (int64_t e = 0; e < r.n_experts; e++) {
    const int64_t tokens = counts_[e];
    if (tokens) add(m.experts[e], first, tokens);
    counts_[e] = first;
    first += tokens;
  }
  for (int64_t i = 0; i < n; i++) {
    slot_[i] = counts_[chosen_[i]]++;
    token_[slot_[i]] = i;
  }
  if (m.shared.gate.data) add(m.shared, 0, tokens_);
  if (adapters.any())
    for (Group& g : groups_) adapt(g, m, adapters);
  const Expert& any = m.experts[0];
  if (gathers(m)) gathered_forms_.resize(n, any.gate.in, forms_of({&any.gate, &any.up}));
  hidden_.resize(n, any.down.in, forms_of({&any.down}));
  const Weights& last = m.shared.down;
  if (last.data) shared_hidden_.resize(tokens_, last.in, forms_of({&last}));
}

// The adapters of a group's rows, if they change its expert.
void Experts::adapt(Group& g, const Mixture& m, const Adapters& adapters) {
  const Expert& e = *g.expert;
  int which = 0;
  for (const Weights* w : {&e.gate, &e.up, &e.down}) g.adapted[which++] = adapters.of(*w);
  if (!g.adapted[0] && !g.adapted[1] && !g.adapted[2]) return;
  std::vector<int64_t> tokens(g.tokens);
  for (int64_t i = 0; i < g.tokens; i++)
    tokens[i] = &e == &m.shared ? i : token_[g.first + i] / m.routing.n_used;
  g.run = adapted_.runs.size();
  adapters.add_runs(tokens.data(), g.tokens, adapted_);
  g.last_run = adapted_.runs.size();
  group_of_run_.resize(g.last_run, &g - groups_.data());
  grow(low_, 2 * adapted_.entries * adapters.rank());
}

void Experts::lower(int thread, Products& products, const Mixture& m, const Input& x, bool down) {
  if (adapted_.runs.empty()) return;
  const Adapters& adapters = products.adapters();
  const int64_t n = int64_t(adapted_.runs.size()), blocks = adapters.blocks();
  products.pool().each(thread, n * blocks * (down ? 1 : 2), [&](int64_t unit) {
    const int64_t run = unit / blocks % n, which = unit / blocks / n;
    const AdaptedRun& of = adapted_.runs[run];
    const Group& g = groups_[group_of_run_[run]];
    if (const LowRank* given = g.with(down ? 2 : int(which), of.adapter))
      adapters.lower(*given, of, unit % blocks * Adapters::rows_at_once,
                     down ? hidden(m, g) : input(m, g, x),
                     &low_[which * adapted_.entries * adapters.rank()]);
  });
}

void Experts::add(const Adapters& adapters, const Group& g, int which, int64_t begin, int64_t end,
                  float* y) const {
  const Expert& e = *g.expert;
  const Weights& w = which == 2 ? e.down : which ? e.up : e.gate;
  const float* low = low_.data() + (which == 1) * adapted_.entries * adapters.rank();
  for (size_t run = g.run; run < g.last_run; run++)
    if (const LowRank* given = g.with(which, adapted_.runs[run].adapter))
      adapters.add(*given, adapted_.runs[run], w, begin, end, low, y, w.out);
}

// The rows that experts take, in the order of the slots.
void Experts::gather(int thread, Pool& pool, const Mixture& m, const Input& x) {
  if (!gathers(m)) return;
  const Forms forms = forms_of({&m.experts[0].gate, &m.experts[0].up});
  pool.each(thread, tokens_ * m.routing.n_used, [&](int64_t slot) {
    const int64_t choice = token_[slot], t = choice / m.routing.n_used;
    float* row = &gathered_[slot * n_embd_];
    if (forms.floats || m.weighs_input || !adapted_.runs.empty() || InputSquares::active)
      std::copy_n(x.x + t * x.stride, n_embd_, row);
    if (m.weighs_input) {
      for (int64_t i = 0; i < n_embd_; i++) row[i] *= weights_[choice];
      return gathered_forms_.round(slot, row);
    }
    gathered_forms_.copy(slot, x, t);
  });
}

// gate and up of every expert, and their product.
void Experts::activate(int thread, Products& products, const Mixture& m, const Input& x) {
  Pool& pool = products.pool();
  lower(thread, products, m, x, false);
  size_t at = 0;
  pool.each(thread, units_, [&](int64_t unit) {
    if (unit < groups_[at].units) at = 0;
    while (at + 1 < groups_.size() && groups_[at + 1].units <= unit) at++;
    const Group& g = groups_[at];
    const bool shared = g.expert == &m.shared;
    const Expert& e = *g.expert;
    const Input in = input(m, g, x);
    const int64_t ff = e.gate.out, rows = rows_at_once(e, g.tokens);
    const int64_t begin = (unit - g.units) * rows, end = std::min(ff, begin + rows);
    float* gate = &(shared ? shared_gate_ : gate_)[g.first * ff];
    float* up = &(shared ? shared_up_ : up_)[g.first * ff];
    product_rows(e.gate, begin, end, in, gate, e.gate.out);
    add(products.adapters(), g, 0, begin, end, gate);
    if (e.gated()) {
      product_rows(e.up, begin, end, in, up, e.up.out);
      add(products.adapters(), g, 1, begin, end, up);
    }
    for (int64_t t = 0; t < g.tokens; t++)
      apply_gate(m.gate, gate + t * ff + begin, e.gated() ? up + t * ff + begin : ones_.data(),
                 end - begin);
  });
  const int64_t slots = tokens_ * m.routing.n_used, ff = m.n_ff(), wide = m.shared.gate.out;
  const bool own = forms_of({&m.experts[0].down}).made();
  const bool other = m.shared.down.data && forms_of({&m.shared.down}).made();
  if (!own && !other) return;
  pool.each(thread, slots + (other ? tokens_ : 0), [&](int64_t row) {
    if (row >= slots)
      shared_hidden_.round(row - slots, &shared_gate_[(row - slots) * wide]);
    else if (own)
      hidden_.round(row, &gate_[row * ff]);
  });
}

Input Experts::input(const Mixture& m, const Group& g, const Input& x) const {
  if (g.expert == &m.shared || !gathers(m)) return x;
  Input own{.x = &gathered_[g.first * n_embd_], .stride = n_embd_, .tokens = g.tokens};
  gathered_forms_.give(own, g.first);
  return own;
}

Input Experts::hidden(const Mixture& m, const Group& g) const {
  const bool shared = g.expert == &m.shared;
  const int64_t ff = g.expert->gate.out;
  const float* gate = &(shared ? shared_gate_ : gate_)[g.first * ff];
  Input x{.x = gate, .stride = ff, .tokens = g.tokens};
  (shared ? shared_hidden_ : hidden_).give(x, g.first);
  return x;
}

// Back to the width, and what a token's experts give, best first, in one sum.
void Experts::give_back(int thread, Products& products, const Mixture& m) {
  Pool& pool = products.pool();
  lower(thread, products, m, {}, true);
  size_t at = 0;
  pool.each(thread, units_down_, [&](int64_t unit) {
    if (unit < groups_[at].units_down) at = 0;
    while (at + 1 < groups_.size() && groups_[at + 1].units_down <= unit) at++;
    const Group& g = groups_[at];
    const Weights& down = g.expert->down;
    const int64_t rows = rows_per_unit(down, g.tokens);
    const int64_t begin = (unit - g.units_down) * rows, end = std::min(down.out, begin + rows);
    std::vector<float>& to = g.expert == &m.shared ? shared_down_ : down_;
    product_rows(down, begin, end, hidden(m, g), &to[g.first * n_embd_], down.out);
    add(products.adapters(), g, 2, begin, end, &to[g.first * n_embd_]);
  });
  constexpr int64_t at_once = 512;
  const int64_t pieces = (n_embd_ + at_once - 1) / at_once, used = m.routing.n_used;
  pool.each(thread, tokens_ * pieces, [&](int64_t unit) {
    const int64_t t = unit / pieces, begin = unit % pieces * at_once;
    const int64_t n = std::min(at_once, n_embd_ - begin);
    float* y = out(t) + begin;
    std::fill_n(y, n, 0.0f);
    for (int64_t k = t * used; k < (t + 1) * used; k++)
      add_weighted_(y, &down_[slot_[k] * n_embd_ + begin], m.weighs_input ? 1.0f : weights_[k], n);
    if (m.shared.gate.data)
      add_weighted_(y, &shared_down_[t * n_embd_ + begin], shared_weight_[t], n);
  });
}

}  // namespace aleator
