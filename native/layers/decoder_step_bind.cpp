// Python's side of DecoderStep: every size and index is checked here, and the memory kept alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "layers/cache_memory.hpp"
#include "layers/decoder_step.hpp"
#include "layers/delta_net_memory.hpp"
#include "layers/head_memory.hpp"
#include "layers/interruptible.hpp"
#include "layers/latent_memory.hpp"
#include "layers/mixture_memory.hpp"
#include "layers/ssm_memory.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

class BoundDecoderStep {
 public:
  BoundDecoderStep(const StoredMatrix& embedding, std::optional<StoredMatrix> output,
                   Floats output_norm, float eps, float attention_scale,
                   Array<const double, 1> frequencies, double magnitude, bool interleaved,
                   float embedding_scale, const std::string& gate,
                   std::optional<Array<const double, 1>> window_frequencies,
                   double window_magnitude, bool raw_keys, bool layer_norm,
                   const std::string& head_norm, float residual_scale, float softcap, float clamp,
                   bool parallel, std::optional<Floats> embedding_norm,
                   std::optional<Floats> slopes, std::optional<StoredMatrix> position_embedding,
                   int64_t rotated_from)
      : embedding_(embedding),
        output_(std::move(output)),
        output_norm_(std::move(output_norm)),
        frequencies_(std::move(frequencies)),
        window_frequencies_(std::move(window_frequencies)),
        embedding_norm_(std::move(embedding_norm)),
        slopes_(std::move(slopes)),
        position_embedding_(std::move(position_embedding)),
        shape_{embedding_.weights,
               output_ ? output_->weights : Weights{},
               output_norm_.data(),
               {{frequencies_.data(), int64_t(frequencies_.size()), magnitude, interleaved,
                 rotated_from},
                {window_frequencies_ ? window_frequencies_->data() : nullptr,
                 window_frequencies_ ? int64_t(window_frequencies_->size()) : 0, window_magnitude,
                 interleaved, rotated_from}},
               eps,
               attention_scale,
               embedding_scale,
               gate_named(gate),
               raw_keys,
               layer_norm ? Norm::layer : Norm::rms,
               head_norm_named(head_norm),
               residual_scale,
               softcap,
               clamp,
               parallel,
               pointer(embedding_norm_),
               pointer(slopes_),
               position_embedding_ ? position_embedding_->weights : Weights{}},
        step_(shape_) {
    require(!output_ || embedding_.weights.in == output_->weights.in,
            "token_embd and output differ in width");
    norm(output_norm_, shape_.n_embd(), "output_norm");
    if (embedding_norm_) norm(*embedding_norm_, shape_.n_embd(), "token_embd_norm");
    require(!position_embedding_ || position_embedding_->weights.in == shape_.n_embd(),
            "position_embd differs from token_embd in width");
    require(rotated_from >= 0 && rotated_from < int64_t(1) << 20, "rotated_from");
    require(!raw_keys || shape_.head_norm != HeadNorm::rotated_head,
            "raw keys, and norms after the rotation");
  }

  void add_layer(const StoredMatrix& q, std::optional<StoredMatrix> k,
                 std::optional<StoredMatrix> v, const StoredMatrix& o,
                 std::optional<StoredMatrix> gate, std::optional<StoredMatrix> up,
                 std::optional<StoredMatrix> down, std::optional<Floats> attention_norm,
                 std::optional<Floats> ffn_norm, std::optional<Floats> q_norm,
                 std::optional<Floats> k_norm, const CacheMemory& keys, const CacheMemory& values,
                 std::optional<Floats> attention_post_norm, std::optional<Floats> ffn_post_norm,
                 bool window, bool rotated, std::optional<Floats> sinks, bool gated, bool scaled,
                 std::optional<Floats> v_norm, float output_scale) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    const int64_t e = shape_.n_embd(), dim = keys.side.dim, dim_v = values.side.dim;
    const int64_t groups = keys.side.heads, heads = q.weights.out / dim / (gated ? 2 : 1);
    require(heads >= groups && heads % groups == 0,
            at + "attn_q: " + std::to_string(heads) + " query heads for " + std::to_string(groups) +
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
    matrix(q, heads * dim * (gated ? 2 : 1), e, at + "attn_q");
    if (k) matrix(*k, groups * dim, e, at + "attn_k");
    require(k || (!v && !k_norm && !v_norm),
            at + "a layer that stores nothing has no attn_v or norms of keys");
    if (v) matrix(*v, groups * dim_v, e, at + "attn_v");
    require(v || (dim == dim_v && shape_.head_norm != HeadNorm::all),
            at + "keys as values need values as wide as keys, and norms of single heads");
    require(!v_norm || (shape_.norm == Norm::rms && int64_t(v_norm->size()) == dim_v),
            at + "v_norm: a weight for each channel of a value");
    matrix(o, e, heads * dim_v, at + "attn_output");
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

  // values: none where keys are compressed.
  void add_latent_layer(const StoredMatrix& query, std::optional<StoredMatrix> query_up,
                        const StoredMatrix& compress, std::optional<StoredMatrix> expand,
                        std::vector<StoredMatrix> key_up, std::vector<StoredMatrix> value_up,
                        std::optional<Floats> query_norm, Floats norm, int64_t heads, int64_t plain,
                        int64_t dim_v, const StoredMatrix& o, std::optional<StoredMatrix> gate,
                        std::optional<StoredMatrix> up, std::optional<StoredMatrix> down,
                        Floats attention_norm, Floats ffn_norm, const CacheMemory& keys,
                        std::optional<CacheMemory> values) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
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
    matrix(o, e, heads * dim_v, at + "attn_output");
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

  // state_norms: of time step, B and C, or none.
  void add_recurrent_layer(const StoredMatrix& in, const StoredMatrix& select,
                           const StoredMatrix& time_step, const StoredMatrix& out, Floats norm,
                           Matrix conv, Floats conv_bias, Matrix a, Floats d, StateRows conv_rows,
                           StateRows state_rows, std::optional<nb::tuple> state_norms,
                           std::optional<nb::tuple> feed_forward) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
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

  void add_head_space(const HeadMemory& space, std::optional<nb::tuple> feed_forward) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    space.memory.fits(at, shape_.n_embd(), n_rows_);
    require(bool(space.memory.norm), at + "attn_norm is missing");
    add_stateful(at, space.layer, feed_forward);
    n_rows_ = space.memory.n_rows();
    heads_.push_back(space);
  }

  void add_space_beside(const HeadMemory& space) {
    require(n_layers_ > 0 && last_attends_ && !shape_.parallel,
            "a state space stands beside the attention of the layer before");
    space.memory.fits("blk." + std::to_string(n_layers_ - 1) + ".", shape_.n_embd(), n_rows_);
    step_.add_beside(space.layer);
    n_rows_ = space.memory.n_rows();
    heads_.push_back(space);
    last_attends_ = false;
  }

  void add_short_convolution(const ShortMemory& space, std::optional<nb::tuple> feed_forward) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    space.memory.fits(at, shape_.n_embd(), n_rows_);
    add_stateful(at, space.layer, feed_forward);
    n_rows_ = space.memory.n_rows();
    shorts_.push_back(space);
  }

  void add_delta_net(const DeltaNetMemory& net, std::optional<nb::tuple> feed_forward) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    net.fits(at, shape_.n_embd(), n_rows_);
    add_stateful(at, net.layer, feed_forward);
    n_rows_ = net.n_rows();
    nets_.push_back(net);
  }

  // A layer of nothing else: gate, up, down and norm.
  void add_feed_forward(const nb::tuple& parts) {
    Kept kept{};
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    step_.add_layer(feed_forward_layer(at, parts, kept));
    added(std::move(kept));
  }

  // The feed-forward part of the last layer, which has been added without one but its norm.
  void add_mixture(const StoredMatrix& router, nb::list experts, std::optional<nb::tuple> shared,
                   std::optional<Floats> bias, std::optional<Floats> shared_router, int64_t n_used,
                   const std::string& scores, bool normalised, float scale, int64_t n_groups,
                   int64_t n_groups_used, int64_t n_group_best, bool weighs_input,
                   const std::string& gate, std::optional<Floats> scales,
                   std::vector<Floats> beside) {
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
    step_.add_mixture(
        memory.checked("blk." + std::to_string(n_layers_ - 1) + ".", shape_.n_embd()));
    mixtures_.push_back(std::move(memory));
  }

  void set_per_layer(const StoredMatrix& embedding, const StoredMatrix& projection, Floats norm) {
    const int64_t width = int64_t(norm.size()), n = projection.weights.out;
    require(width > 0 && n % width == 0 && shape_.norm == Norm::rms,
            "per_layer_proj_norm does not fit per_layer_model_proj");
    matrix(projection, n, shape_.n_embd(), "per_layer_model_proj");
    matrix(embedding, embedding.weights.out, n, "per_layer_token_embd");
    require(embedding.weights.out >= embedding_.weights.out,
            "per_layer_token_embd has less tokens than token_embd");
    kept_.push_back({{embedding, projection}, {norm}, {}});
    per_layer_ = {embedding.weights, projection.weights, norm.data(), width};
    step_.set_per_layer(per_layer_);
  }

  void add_per_layer(const StoredMatrix& in, const StoredMatrix& out, Floats norm) {
    require(n_layers_ > 0 && n_layers_ <= per_layer_.layers(),
            "embeddings of a layer that has none");
    const std::string at = "blk." + std::to_string(n_layers_ - 1) + ".";
    matrix(in, per_layer_.width, shape_.n_embd(), at + "inp_gate");
    matrix(out, shape_.n_embd(), per_layer_.width, at + "proj");
    BoundDecoderStep::norm(norm, shape_.n_embd(), at + "post_norm");
    kept_.push_back({{in, out}, {norm}, {}});
    step_.add_per_layer({in.weights, out.weights, norm.data(), n_layers_ - 1});
  }

  void run(Pool& pool, std::optional<Array<const int64_t, 1>> ids,
           std::optional<Array<const float, 2>> embeddings, Array<const int32_t, 1> positions,
           Array<const int64_t, 1> cells, Array<const int32_t, 1> seen,
           Array<const int64_t, 1> list_start, Array<const int32_t, 1> seen_list,
           Array<const int64_t, 1> seen_count, std::optional<Array<const int32_t, 1>> seen_deltas,
           Array<const int64_t, 1> out_rows, Array<float, 2> logits,
           std::optional<nb::tuple> window, std::optional<nb::tuple> recurrent,
           std::optional<Array<const int32_t, 1>> seen_positions,
           std::optional<Array<const float, 1>> query_scales) {
    MicroBatch b;
    std::vector<Indices> states;
    b.tokens = int64_t(positions.size());
    require(bool(ids) != bool(embeddings), "either token ids or embeddings");
    require(n_layers_ > 0 && b.tokens > 0, "no layers or no tokens");
    require(ids ? int64_t(ids->size()) == b.tokens
                : int64_t(embeddings->shape(0)) == b.tokens &&
                      int64_t(embeddings->shape(1)) == shape_.n_embd(),
            "tokens or embeddings do not match the positions");
    b.n_out = int64_t(out_rows.size());
    require(int64_t(logits.shape(0)) == b.n_out && int64_t(logits.shape(1)) == n_out() &&
                b.n_out <= b.tokens,
            "logits must be [out_rows, n_vocab], hidden states [out_rows, n_embd]");
    Pooled pools[most_groups] = {
        {cells, seen, list_start, seen_list, seen_count, seen_deltas, std::nullopt, std::nullopt}};
    require(bool(window) == (n_cells_[1] > 0), "window is for a decoder with window layers");
    if (window) {
      require(window->size() == 8, "window must have eight parts");
      const auto get = [&](size_t i) { return (*window)[i]; };
      pools[1] = {nb::cast<Array<const int64_t, 1>>(get(0)),
                  nb::cast<Array<const int32_t, 1>>(get(1)),
                  nb::cast<Array<const int64_t, 1>>(get(2)),
                  nb::cast<Array<const int32_t, 1>>(get(3)),
                  nb::cast<Array<const int64_t, 1>>(get(4)),
                  nb::cast<std::optional<Array<const int32_t, 1>>>(get(5)),
                  nb::cast<std::optional<Array<const int64_t, 1>>>(get(6)),
                  nb::cast<std::optional<Array<const int64_t, 1>>>(get(7))};
      b.n_groups = 2;
    }
    for (int64_t g = 0; g < b.n_groups; g++) b.groups[g] = checked(pools[g], b.tokens, n_cells_[g]);
    require(bool(seen_positions) == bool(slopes_) &&
                (!seen_positions || (!window && seen_positions->size() == seen.size())),
            "seen_positions are for slopes, one of each listed cell");
    if (seen_positions)
      b.groups[0].seen_positions = seen_positions->data(), b.groups[0].positions = positions.data();
    require(!query_scales || int64_t(query_scales->size()) == b.tokens,
            "query_scales do not match the positions");
    b.query_scales = query_scales ? query_scales->data() : nullptr;
    const int64_t places = position_embedding_ ? position_embedding_->weights.out : INT64_MAX;
    for (int64_t i = 0; position_embedding_ && i < b.tokens; i++)
      require(positions(i) >= 0 && positions(i) < places,
              "position " + std::to_string(positions(i)) + " has no embedding");
    require(bool(recurrent) == (n_rows_ > 0), "recurrent is for a decoder with recurrent layers");
    if (recurrent) {
      require(recurrent->size() == 4, "recurrent must have four parts");
      const auto get = [&](size_t i) { return nb::cast<Indices>((*recurrent)[i]); };
      states = {get(0), get(1), get(2), get(3)};
      b.runs = checked_runs(states[0], states[1], states[2], states[3], b.tokens, n_rows_);
    }
    for (int64_t i = 0; i < b.tokens; i++)
      require(!ids || ((*ids)(i) >= 0 && (*ids)(i) < embedding_.weights.out),
              "token " + std::to_string(ids ? (*ids)(i) : 0) + " is outside the vocabulary");
    for (int64_t i = 0; i < b.n_out; i++)
      require(out_rows(i) >= 0 && out_rows(i) < b.tokens, "row " + std::to_string(out_rows(i)));
    b.ids = ids ? ids->data() : nullptr;
    b.embeddings = embeddings ? embeddings->data() : nullptr;
    b.positions = positions.data();
    b.out_rows = out_rows.data();
    b.logits = logits.data();
    interruptibly([&](Watch& watch) { step_.run(pool, b, &watch); });
  }

 private:
  struct Kept {
    std::vector<StoredMatrix> matrices;
    std::vector<std::optional<Floats>> norms;
    std::vector<CacheBytes> memory;
  };
  void rotated_channels(bool window, int64_t dim, const std::string& at) const {
    const Rotation& r = shape_.rotation[window];
    require(r.offset + r.pairs * 2 <= dim, at + "more rotated channels than a head has");
  }
  // Of the layer that was kept last.
  void keep_feed_forward(DecoderLayer& layer, const std::optional<StoredMatrix>& gate,
                         const std::optional<StoredMatrix>& up,
                         const std::optional<StoredMatrix>& down) {
    if (!gate) return;
    layer.gate = gate->weights, layer.down = down->weights;
    kept_.back().matrices.insert(kept_.back().matrices.end(), {*gate, *down});
    if (up) layer.up = up->weights, kept_.back().matrices.push_back(*up);
  }
  // A layer that keeps a state, and its feed-forward part.
  void add_stateful(const std::string& at, const RecurrentLayer& layer,
                    const std::optional<nb::tuple>& feed_forward) {
    Kept kept{};
    step_.add_layer(layer,
                    feed_forward ? feed_forward_layer(at, *feed_forward, kept) : DecoderLayer{});
    added(std::move(kept));
  }
  // parts: gate, up, down and norm; the first three None where add_mixture follows.
  DecoderLayer feed_forward_layer(const std::string& at, const nb::tuple& parts, Kept& kept) const {
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
  void added(Kept&& kept) {
    n_layers_++;
    last_attends_ = false;
    kept_.push_back(std::move(kept));
  }
  static void matrix(const StoredMatrix& m, int64_t out, int64_t in, const std::string& name) {
    require(m.weights.out == out && m.weights.in == in,
            name + ".weight is [" + std::to_string(m.weights.out) + ", " +
                std::to_string(m.weights.in) + "], not [" + std::to_string(out) + ", " +
                std::to_string(in) + "]");
  }
  static void feed_forward_sizes(const std::string& at, int64_t e,
                                 const std::optional<StoredMatrix>& gate,
                                 const std::optional<StoredMatrix>& up,
                                 const std::optional<StoredMatrix>& down) {
    require(gate && down, at + "gate and down go together");
    matrix(*gate, gate->weights.out, e, at + (up ? "ffn_gate" : "ffn_up"));
    if (up) matrix(*up, gate->weights.out, e, at + "ffn_up");
    matrix(*down, e, gate->weights.out, at + "ffn_down");
  }
  static HeadNorm head_norm_named(const std::string& name) {
    if (name.empty()) return HeadNorm::none;
    if (name == "head") return HeadNorm::head;
    if (name == "rotated head") return HeadNorm::rotated_head;
    if (name == "each") return HeadNorm::each;
    require(name == "all", "head_norm must be head, rotated head, each or all, not " + name);
    return HeadNorm::all;
  }
  static const float* pointer(const std::optional<Floats>& v) { return v ? v->data() : nullptr; }
  void head_norm(const Floats& weight, int64_t heads, int64_t dim, const std::string& name) const {
    if (shape_.head_norm == HeadNorm::all || shape_.head_norm == HeadNorm::each) dim *= heads;
    norm(weight, dim, name);
  }
  void norm(const Floats& weight, int64_t n, const std::string& name) const {
    if (shape_.norm == Norm::layer) n *= 2;
    require(int64_t(weight.size()) == n, name + ".weight has " + std::to_string(weight.size()) +
                                             " elements, not " + std::to_string(n));
  }

  int64_t n_out() const { return output_ ? output_->weights.out : shape_.n_embd(); }

  StoredMatrix embedding_;
  std::optional<StoredMatrix> output_;
  Floats output_norm_;
  Array<const double, 1> frequencies_;
  std::optional<Array<const double, 1>> window_frequencies_;
  std::optional<Floats> embedding_norm_, slopes_;
  std::optional<StoredMatrix> position_embedding_;
  DecoderShape shape_;
  DecoderStep step_;
  std::list<Kept> kept_;
  std::list<SSMMemory> spaces_;
  std::list<LatentMemory> latents_;
  std::list<HeadMemory> heads_;
  std::list<ShortMemory> shorts_;
  std::list<DeltaNetMemory> nets_;
  std::list<MixtureMemory> mixtures_;
  LayerEmbeddings per_layer_;
  bool last_attends_ = false, last_is_dense_ = false;
  int64_t n_layers_ = 0, n_rows_ = 0, n_cells_[most_groups] = {};
};

}  // namespace aleator

ALEATOR_BIND(decoder_step) {
  using namespace aleator;
  nb::class_<BoundDecoderStep>(
      m, "DecoderStep",
      "A decoder with attention, run for a micro-batch at a time on the processor.")
      .def(
          nb::init<const StoredMatrix&, std::optional<StoredMatrix>, Floats, float, float,
                   Array<const double, 1>, double, bool, float, const std::string&,
                   std::optional<Array<const double, 1>>, double, bool, bool, const std::string&,
                   float, float, float, bool, std::optional<Floats>, std::optional<Floats>,
                   std::optional<StoredMatrix>, int64_t>(),
          nb::arg("embedding"), nb::arg("output").none(), nb::arg("output_norm"), nb::arg("eps"),
          nb::arg("attention_scale"), nb::arg("frequencies"), nb::arg("magnitude"),
          nb::arg("interleaved"), nb::arg("embedding_scale") = 1.0f, nb::arg("gate") = "silu",
          nb::arg("window_frequencies").none() = nb::none(), nb::arg("window_magnitude") = 1.0,
          nb::arg("raw_keys") = false, nb::arg("layer_norm") = false, nb::arg("head_norm") = "",
          nb::arg("residual_scale") = 1.0f, nb::arg("softcap") = 0.0f, nb::arg("clamp") = 0.0f,
          nb::arg("parallel") = false, nb::arg("embedding_norm").none() = nb::none(),
          nb::arg("slopes").none() = nb::none(), nb::arg("position_embedding").none() = nb::none(),
          nb::arg("rotated_from") = 0,
          "output: None: hidden states after the last norm in place of logits; frequencies: "
          "float64, radians per position of each rotated pair of channels, in window layers "
          "window_frequencies; gate: 'silu', 'silu_clamped', 'gelu', 'gelu_exact', 'relu_squared', "
          "or 'gelu_rounded' as llama.cpp does; raw_keys: the cache holds keys as if at position "
          "0; "
          "layer_norm: norms are layer norms, their weights followed by as many biases; head_norm: "
          "'' or which of queries and keys are normalised: 'head', 'rotated head' after the "
          "rotation, 'each' with weights of its own, or 'all' heads together; residual_scale: of "
          "what attention and feed-forward give; softcap: of scores; clamp: of queries, keys and "
          "values; parallel: feed-forward has attention's input; slopes: of ALiBi, [heads]; "
          "position_embedding: [positions, n_embd], added to the tokens'; rotated_from: "
          "the first rotated channel of a head.")
      .def(
          "add_layer", &BoundDecoderStep::add_layer, nb::arg("q"), nb::arg("k").none(),
          nb::arg("v").none(), nb::arg("o"), nb::arg("gate").none(), nb::arg("up").none(),
          nb::arg("down").none(), nb::arg("attention_norm").none(), nb::arg("ffn_norm").none(),
          nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("keys"), nb::arg("values"),
          nb::arg("attention_post_norm").none() = nb::none(),
          nb::arg("ffn_post_norm").none() = nb::none(), nb::arg("window") = false,
          nb::arg("rotated") = true, nb::arg("sinks").none() = nb::none(), nb::arg("gated") = false,
          nb::arg("scaled") = true, nb::arg("v_norm").none() = nb::none(),
          nb::arg("output_scale") = 1.0f,
          "Appends a layer; ValueError, naming the tensor, when shapes disagree. gate, up and down "
          "are None where add_mixture follows; without up, gate is the first matrix of a "
          "feed-forward part that has no gate. rotated: positions rotate its queries and keys; "
          "sinks [heads]: scores that no value goes with; gated: q gives each head's query and "
          "then "
          "as many numbers, whose sigmoids multiply what the head gives; scaled: query_scales of "
          "run "
          "multiply its queries; v: None: values are the keys before their norm; k: None: the "
          "layer "
          "stores nothing, keys and values are those of a layer before it; v_norm: weights of the "
          "values' RMS norm; output_scale: of what the layer gives.")
      .def("add_latent_layer", &BoundDecoderStep::add_latent_layer, nb::arg("query"),
           nb::arg("query_up").none(), nb::arg("compress"), nb::arg("expand").none(),
           nb::arg("key_up"), nb::arg("value_up"), nb::arg("query_norm").none(), nb::arg("norm"),
           nb::arg("heads"), nb::arg("plain"), nb::arg("dim_v"), nb::arg("o"),
           nb::arg("gate").none(), nb::arg("up").none(), nb::arg("down").none(),
           nb::arg("attention_norm"), nb::arg("ffn_norm"), nb::arg("keys"),
           nb::arg("values").none(),
           "Appends a layer whose keys and values are computed from compress [rank + rotated, "
           "n_embd] normalised. expand: keys' `plain` channels and values of every head, which "
           "the cache then holds; without it the cache holds the compressed ones and no values, "
           "and key_up and value_up take each head's queries there and its sums back. query_up: "
           "queries from what query and query_norm give. The rest as for add_layer.")
      .def("add_recurrent_layer", &BoundDecoderStep::add_recurrent_layer, nb::arg("projection"),
           nb::arg("select"), nb::arg("time_step"), nb::arg("output"), nb::arg("norm"),
           nb::arg("conv"), nb::arg("conv_bias"), nb::arg("a"), nb::arg("d"),
           nb::arg("conv_rows").noconvert(), nb::arg("state_rows").noconvert(),
           nb::arg("state_norms").none(), nb::arg("feed_forward").none(),
           "Appends a layer with a state space, see SSMStep.add_layer. state_norms: weights of the "
           "norms of time step, B and C; feed_forward: gate, up, down and norm, the first three "
           "None "
           "where add_mixture follows. ValueError, naming the tensor, when shapes disagree.")
      .def("add_head_space", &BoundDecoderStep::add_head_space, nb::arg("space"),
           nb::arg("feed_forward").none(),
           "Appends a layer whose heads have one decay each; feed_forward as in "
           "add_recurrent_layer.")
      .def("add_space_beside", &BoundDecoderStep::add_space_beside, nb::arg("space"),
           "The last layer's attention has this beside it; what both give is added.")
      .def("add_delta_net", &BoundDecoderStep::add_delta_net, nb::arg("net"),
           nb::arg("feed_forward").none(),
           "Appends a layer with a gated delta net; feed_forward as for add_recurrent_layer. "
           "ValueError, naming the tensor, when shapes disagree.")
      .def("add_short_convolution", &BoundDecoderStep::add_short_convolution, nb::arg("space"),
           nb::arg("feed_forward").none(),
           "Appends a layer with a short convolution; feed_forward as in add_recurrent_layer.")
      .def("add_feed_forward", &BoundDecoderStep::add_feed_forward, nb::arg("feed_forward"),
           "Appends a layer of nothing but a feed-forward part: gate, up, down and norm, the first "
           "three None where add_mixture follows.")
      .def(
          "add_mixture", &BoundDecoderStep::add_mixture, nb::arg("router"), nb::arg("experts"),
          nb::arg("shared").none(), nb::arg("bias").none(), nb::arg("shared_router").none(),
          nb::arg("n_used"), nb::arg("scores"), nb::arg("normalised"), nb::arg("scale"),
          nb::arg("n_groups"), nb::arg("n_groups_used"), nb::arg("n_group_best"),
          nb::arg("weighs_input"), nb::arg("gate"), nb::arg("scales").none() = nb::none(),
          nb::arg("beside") = nb::list(),
          "The feed-forward part of the last layer: experts, each gate, up and down, of which "
          "n_used take a token; shared: one more, which takes every token, its weight the sigmoid "
          "of the product with shared_router, or 1. scores: 'softmax', 'sigmoid', 'chosen softmax' "
          "or 'chosen sigmoid'; bias: added to them for the choice alone; scales [experts]: "
          "weights "
          "are multiplied by them; beside: the layer's gate, up and down stand beside the experts, "
          "and these are norms of what the router takes, of what experts take, of what the dense "
          "part gives and of what experts give. ValueError, naming the tensor, when shapes "
          "disagree.")
      .def(
          "set_per_layer", &BoundDecoderStep::set_per_layer, nb::arg("embedding"),
          nb::arg("projection"), nb::arg("norm"),
          "Tokens have embeddings for each layer: rows of embedding [n_vocab, layers * width], and "
          "projection [layers * width, n_embd] of the usual ones, normalised by norm [width].")
      .def("add_per_layer", &BoundDecoderStep::add_per_layer, nb::arg("projection"),
           nb::arg("output"), nb::arg("norm"),
           "The last layer adds the norm of output [n_embd, width] times its embeddings, which "
           "the gate of projection [width, n_embd] multiplies.")
      .def("run", &BoundDecoderStep::run, nb::arg("pool"), nb::arg("ids").none(),
           nb::arg("embeddings").none(), nb::arg("positions"), nb::arg("cells"), nb::arg("seen"),
           nb::arg("list_start"), nb::arg("seen_list"), nb::arg("seen_count"),
           nb::arg("seen_deltas").none(), nb::arg("out_rows"), nb::arg("logits").noconvert(),
           nb::arg("window").none() = nb::none(), nb::arg("recurrent").none() = nb::none(),
           nb::arg("seen_positions").none() = nb::none(),
           nb::arg("query_scales").none() = nb::none(),
           "T tokens: ids int64 [T] or embeddings float32 [T, n_embd]; positions int32 [T]; cells "
           "int64 [T], where keys and values go. seen int32 [N]: lists of cells, list i being "
           "seen[list_start[i]:list_start[i + 1]]; token t attends to the first seen_count[t] "
           "(int64) of list seen_list[t] (int32); none give zeros. seen_deltas int32 [N]: "
           "positions that the listed cells' stored keys are behind. out_rows int64 [R]; writes "
           "logits float32 [R, n_vocab]. window: the same from cells to seen_deltas for the cells "
           "of window layers, and seen_first int64 [T], how many leading cells of its list a token "
           "does not see, and seen_sinks int64 [T] or None, how many of those it does. recurrent: "
           "starts, sources, order and stores, see SSMStep.run. seen_positions int32 [N]: of the "
           "listed cells, where there are slopes; query_scales float32 [T]: queries of layers "
           "that are scaled are multiplied by them, after the rotation. ValueError, "
           "with nothing changed, for an index out of range.");
}
