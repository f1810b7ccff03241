// The layers of a BoundDecoderStep: what Python gives is checked, kept, and added to the step.
#include "bind.hpp"
#include "layers/bound_decoder_step.hpp"

namespace aleator {

void BoundDecoderStep::add_layer(
    const StoredMatrix& q, std::optional<StoredMatrix> k, std::optional<StoredMatrix> v,
    const StoredMatrix& o, std::optional<StoredMatrix> gate, std::optional<StoredMatrix> up,
    std::optional<StoredMatrix> down, std::optional<Floats> attention_norm,
    std::optional<Floats> ffn_norm, std::optional<Floats> q_norm, std::optional<Floats> k_norm,
    const CacheMemory& keys, const CacheMemory& values, std::optional<Floats> attention_post_norm,
    std::optional<Floats> ffn_post_norm, bool window, bool rotated, std::optional<Floats> sinks,
    bool gated, bool scaled, std::optional<Floats> v_norm, float output_scale) {
  const std::string at = next_layer();
  const int64_t e = shape_.n_embd(), dim = keys.side.dim, dim_v = values.side.dim;
  const int64_t groups = keys.side.heads, heads = q.weights.out / dim / (gated ? 2 : 1);
  require(heads >= groups && heads % groups == 0, at + "attn_q: " + std::to_string(heads) +
                                                      " query heads for " + std::to_string(groups) +
                                                      " key-value heads");
  require(values.side.heads == groups && values.side.n_cells == keys.side.n_cells,
          at + "keys and values differ in heads or cells");
  int64_t& n_cells = n_cells_[window];
  require(n_cells == 0 || keys.side.n_cells == n_cells,
          at + "number of cells differs from the layers before");
  require(!keys.side.by_channel, at + "keys by channels");
  require(!window || window_frequencies_, at + "a window layer without frequencies for it");
  rotated_channels(window, dim, at);
  require(!gated || (dim == dim_v && shape_.head_norm != HeadNorm::all),
          at + "gates need values as wide as keys, and norms of single heads");
  require_size(q, heads * dim * (gated ? 2 : 1), e, at + "attn_q");
  if (k) require_size(*k, groups * dim, e, at + "attn_k");
  require(k || (!v && !k_norm && !v_norm),
          at + "a layer that stores nothing has no attn_v or norms of keys");
  if (v) require_size(*v, groups * dim_v, e, at + "attn_v");
  require(v || (dim == dim_v && shape_.head_norm != HeadNorm::all),
          at + "keys as values need values as wide as keys, and norms of single heads");
  require(!v_norm || (shape_.norm == Norm::rms && int64_t(v_norm->size()) == dim_v),
          at + "v_norm: a weight for each channel of a value");
  require_size(o, e, heads * dim_v, at + "attn_output");
  if (gate || up || down) feed_forward_sizes(at, e, gate, up, down);
  if (attention_norm) norm(*attention_norm, e, at + "attn_norm");
  if (ffn_norm) norm(*ffn_norm, e, at + "ffn_norm");
  require((bool(q_norm) == bool(k_norm) || !k) && (!q_norm || shape_.head_norm != HeadNorm::none),
          at + "attn_q_norm and attn_k_norm do not go with head_norm");
  if (q_norm) head_norm(*q_norm, heads, dim, at + "attn_q_norm");
  if (k_norm) head_norm(*k_norm, groups, dim, at + "attn_k_norm");
  require(!slopes_ || int64_t(slopes_->size()) == heads, at + "a slope for every head");
  if (attention_post_norm) norm(*attention_post_norm, e, at + "post_attention_norm");
  if (ffn_post_norm) norm(*ffn_post_norm, e, at + "post_ffw_norm");

  require(!sinks || int64_t(sinks->size()) == heads, at + "attn_sinks: a score for every head");

  n_layers_++;
  last_attends_ = true;
  n_cells = keys.side.n_cells;
  kept_.push_back({{q, o},
                   {attention_norm, ffn_norm, q_norm, k_norm, attention_post_norm, ffn_post_norm,
                    sinks, v_norm},
                   {keys.data, values.data}});
  for (const auto& each : {k, v})
    if (each) kept_.back().matrices.push_back(*each);
  DecoderLayer layer{.q = q.weights,
                     .k = k ? k->weights : Weights{},
                     .v = v ? v->weights : Weights{},
                     .o = o.weights,
                     .attention_norm = pointer(attention_norm),
                     .ffn_norm = pointer(ffn_norm),
                     .q_norm = pointer(q_norm),
                     .k_norm = pointer(k_norm),
                     .v_norm = pointer(v_norm),
                     .keys = keys.side,
                     .values = values.side,
                     .attention_post_norm = pointer(attention_post_norm),
                     .ffn_post_norm = pointer(ffn_post_norm),
                     .sinks = pointer(sinks),
                     .group = window,
                     .rotated = rotated,
                     .scaled = scaled,
                     .n_heads = heads,
                     .gated = gated,
                     .output_scale = output_scale};
  last_is_dense_ = bool(gate);
  keep_feed_forward(layer, gate, up, down);
  step_.add_layer(layer);
}

void BoundDecoderStep::add_latent_layer(
    const StoredMatrix& query, std::optional<StoredMatrix> query_up, const StoredMatrix& compress,
    std::optional<StoredMatrix> expand, std::vector<StoredMatrix> key_up,
    std::vector<StoredMatrix> value_up, std::optional<Floats> query_norm, Floats norm,
    int64_t heads, int64_t plain, int64_t dim_v, const StoredMatrix& o,
    std::optional<StoredMatrix> gate, std::optional<StoredMatrix> up,
    std::optional<StoredMatrix> down, Floats attention_norm, Floats ffn_norm,
    const CacheMemory& keys, std::optional<CacheMemory> values) {
  const std::string at = next_layer();
  const int64_t e = shape_.n_embd(), dim = keys.side.dim;
  require(shape_.norm == Norm::rms && !shape_.parallel && shape_.head_norm == HeadNorm::none,
          at + "compressed keys in a layer of another kind");
  LatentMemory memory{query, query_up, compress, expand, key_up, value_up, query_norm, norm};
  const LatentLayer latent = memory.checked(at, e, heads, plain, dim_v);
  require(dim == latent.key_dim() && bool(values) != latent.compressed() && !slopes_,
          at + "the cache does not fit the compressed keys");
  CacheSide side = values ? values->side : keys.side;
  if (!values) {
    side.dim = latent.rank, side.within = dim;
    const int64_t block = side.rotation > 1 ? side.rotation : block_shape(side.type).elements;
    require(latent.rank % block == 0, at + "type_k has blocks of " + std::to_string(block) +
                                          " channels, and of " + std::to_string(latent.rank) +
                                          " compressed ones the last would not be whole");
  }
  require(keys.side.heads == (values ? heads : 1) && side.heads == keys.side.heads &&
              side.n_cells == keys.side.n_cells && (!values || side.dim == dim_v),
          at + "the cache's heads, cells or channels");
  int64_t& n_cells = n_cells_[0];
  require(n_cells == 0 || keys.side.n_cells == n_cells,
          at + "number of cells differs from the layers before");
  require(!keys.side.by_channel, at + "keys by channels");
  rotated_channels(0, dim, at);
  require_size(o, e, heads * dim_v, at + "attn_output");
  if (gate || up || down) feed_forward_sizes(at, e, gate, up, down);
  BoundDecoderStep::norm(attention_norm, e, at + "attn_norm");
  BoundDecoderStep::norm(ffn_norm, e, at + "ffn_norm");
  n_layers_++;
  n_cells = keys.side.n_cells;
  kept_.push_back({{o}, {attention_norm, ffn_norm}, {keys.data}});
  if (values) kept_.back().memory.push_back(values->data);
  DecoderLayer layer{.o = o.weights,
                     .attention_norm = attention_norm.data(),
                     .ffn_norm = ffn_norm.data(),
                     .keys = keys.side,
                     .values = side,
                     .n_heads = heads};
  keep_feed_forward(layer, gate, up, down);
  last_attends_ = false;
  latents_.push_back(std::move(memory));
  step_.add_layer(latent, layer);
}

void BoundDecoderStep::add_recurrent_layer(const StoredMatrix& in, const StoredMatrix& select,
                                           const StoredMatrix& time_step, const StoredMatrix& out,
                                           Floats norm, Matrix conv, Floats conv_bias, Matrix a,
                                           Floats d, StateRows conv_rows, StateRows state_rows,
                                           std::optional<nb::tuple> state_norms,
                                           std::optional<nb::tuple> feed_forward) {
  const std::string at = next_layer();
  SSMMemory memory{in, select, time_step, out,        norm,         conv, conv_bias,
                   a,  d,      conv_rows, state_rows, std::nullopt, {}};
  if (state_norms) {
    memory.norm_eps = shape_.eps;
    for (const nb::handle weight : *state_norms)
      memory.state_norms.push_back(nb::cast<Floats>(weight));
  }
  const SSMLayer space = memory.checked(at, shape_.n_embd(), n_rows_);
  add_stateful(at, space, feed_forward);
  n_rows_ = int64_t(conv_rows.shape(0));
  spaces_.push_back(std::move(memory));
}

void BoundDecoderStep::add_mixture(const StoredMatrix& router, nb::list experts,
                                   std::optional<nb::tuple> shared, std::optional<Floats> bias,
                                   std::optional<Floats> shared_router, int64_t n_used,
                                   const std::string& scores, bool normalised, float scale,
                                   int64_t n_groups, int64_t n_groups_used, int64_t n_group_best,
                                   bool weighs_input, const std::string& gate,
                                   std::optional<Floats> scales, std::vector<Floats> beside) {
  require(n_layers_ > 0, "a mixture before the first layer");
  MixtureMemory memory(router, experts, shared);
  memory.bias = bias, memory.shared_router = shared_router;
  memory.scales = scales, memory.beside = std::move(beside);
  require(memory.beside.empty() || (last_attends_ && last_is_dense_),
          "experts beside the dense part of the layer before");
  Mixture& m = memory.mixture;
  m.routing.n_used = n_used, m.routing.scores = scores_named(scores);
  m.routing.normalised = normalised, m.routing.scale = scale;
  m.routing.n_groups = n_groups, m.routing.n_groups_used = n_groups_used;
  m.routing.n_group_best = n_group_best;
  m.weighs_input = weighs_input, m.gate = gate_named(gate);
  step_.add_mixture(memory.checked(last_layer(), shape_.n_embd()));
  mixtures_.push_back(std::move(memory));
}

void BoundDecoderStep::set_per_layer(const StoredMatrix& embedding, const StoredMatrix& projection,
                                     Floats norm) {
  const int64_t width = int64_t(norm.size()), n = projection.weights.out;
  require(width > 0 && n % width == 0 && shape_.norm == Norm::rms,
          "per_layer_proj_norm does not fit per_layer_model_proj");
  require_size(projection, n, shape_.n_embd(), "per_layer_model_proj");
  require_size(embedding, embedding.weights.out, n, "per_layer_token_embd");
  require(embedding.weights.out >= embedding_.weights.out,
          "per_layer_token_embd has less tokens than token_embd");
  kept_.push_back({{embedding, projection}, {norm}, {}});
  per_layer_ = {embedding.weights, projection.weights, norm.data(), width};
  step_.set_per_layer(per_layer_);
}

void BoundDecoderStep::add_per_layer(const StoredMatrix& in, const StoredMatrix& out, Floats norm) {
  require(n_layers_ > 0 && n_layers_ <= per_layer_.layers(), "embeddings of a layer that has none");
  const std::string at = last_layer();
  require_size(in, per_layer_.width, shape_.n_embd(), at + "inp_gate");
  require_size(out, shape_.n_embd(), per_layer_.width, at + "proj");
  BoundDecoderStep::norm(norm, shape_.n_embd(), at + "post_norm");
  kept_.push_back({{in, out}, {norm}, {}});
  step_.add_per_layer({in.weights, out.weights, norm.data(), n_layers_ - 1});
}

void BoundDecoderStep::keep_feed_forward(DecoderLayer& layer,
                                         const std::optional<StoredMatrix>& gate,
                                         const std::optional<StoredMatrix>& up,
                                         const std::optional<StoredMatrix>& down) {
  if (!gate) return;
  layer.gate = gate->weights, layer.down = down->weights;
  kept_.back().matrices.insert(kept_.back().matrices.end(), {*gate, *down});
  if (up) layer.up = up->weights, kept_.back().matrices.push_back(*up);
}

DecoderLayer BoundDecoderStep::feed_forward_layer(const std::string& at, const nb::tuple& parts,
                                                  Kept& kept) const {
  require(parts.size() == 4, "feed_forward must be gate, up, down and norm");
  const auto get = [&](size_t i) { return nb::cast<std::optional<StoredMatrix>>(parts[i]); };
  const auto gate = get(0), up = get(1), down = get(2);
  const auto ffn_norm = nb::cast<Floats>(parts[3]);
  DecoderLayer layer;
  kept.norms = {ffn_norm};
  norm(ffn_norm, shape_.n_embd(), at + "ffn_norm");
  layer.ffn_norm = ffn_norm.data();
  if (!gate && !up && !down) return layer;
  feed_forward_sizes(at, shape_.n_embd(), gate, up, down);
  kept.matrices = {*gate, *down};
  layer.gate = gate->weights, layer.down = down->weights;
  if (up) layer.up = up->weights, kept.matrices.push_back(*up);
  return layer;
}

void BoundDecoderStep::feed_forward_sizes(const std::string& at, int64_t e,
                                          const std::optional<StoredMatrix>& gate,
                                          const std::optional<StoredMatrix>& up,
                                          const std::optional<StoredMatrix>& down) {
  require(gate && down, at + "gate and down go together");
  require_size(*gate, gate->weights.out, e, at + (up ? "ffn_gate" : "ffn_up"));
  if (up) require_size(*up, gate->weights.out, e, at + "ffn_up");
  require_size(*down, e, gate->weights.out, at + "ffn_down");
}

}  // namespace aleator
