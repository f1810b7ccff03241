// Python's side of DecoderStep: every size and index is checked here, and the memory kept alive.
#pragma once

#include "bind.hpp"
#include "layers/cache_memory.hpp"
#include "layers/decoder_step.hpp"
#include "layers/latent_memory.hpp"
#include "layers/mixture_memory.hpp"
#include "layers/recurrent_memory.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

class BoundDecoderStep {
 public:
  BoundDecoderStep(const StoredMatrix& embedding, std::optional<StoredMatrix> output,
                   std::optional<Floats> output_norm, float eps, float attention_scale,
                   Array<const double, 1> frequencies, double magnitude, bool interleaved,
                   float embedding_scale, const std::string& gate,
                   std::optional<Array<const double, 1>> window_frequencies,
                   double window_magnitude, bool raw_keys, bool layer_norm,
                   const std::string& head_norm, float residual_scale, float softcap, float clamp,
                   bool parallel, std::optional<Floats> embedding_norm,
                   std::optional<Floats> slopes, std::optional<StoredMatrix> position_embedding,
                   int64_t rotated_from)
      : shape_{embedding.weights,
               weights_of(output),
               pointer(output_norm),
               {{frequencies.data(), int64_t(frequencies.size()), magnitude, interleaved,
                 rotated_from},
                {pointer(window_frequencies),
                 window_frequencies ? int64_t(window_frequencies->size()) : 0, window_magnitude,
                 interleaved, rotated_from}},
               eps,
               attention_scale,
               embedding_scale,
               gate_named(gate),
               raw_keys,
               layer_norm ? Norm::layer : Norm::rms,
               value_named<HeadNorm>("head_norm", {"", "head", "rotated head", "each", "all"},
                                     head_norm),
               residual_scale,
               softcap,
               clamp,
               parallel,
               pointer(embedding_norm),
               pointer(slopes),
               weights_of(position_embedding)},
        step_(shape_),
        slopes_(slopes),
        has_windows_(window_frequencies) {
    keep(std::tuple(embedding, output, output_norm, frequencies, window_frequencies, embedding_norm,
                    position_embedding));
    require(!output || embedding.weights.in == output->weights.in,
            "token_embd and output differ in width");
    norm(output_norm, shape_.n_embd(), "output_norm");
    norm(embedding_norm, shape_.n_embd(), "token_embd_norm");
    require(!position_embedding || position_embedding->weights.in == shape_.n_embd(),
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
    const std::string at = next_layer();
    const int64_t e = shape_.n_embd(), dim = keys.side.dim, dim_v = values.side.dim;
    const int64_t groups = keys.side.heads, heads = q.weights.out / dim / (gated ? 2 : 1);
    require(heads >= groups && heads % groups == 0, at, "attn_q: ", heads, " query heads for ",
            groups, " key-value heads");
    require(values.side.heads == groups && values.side.n_cells == keys.side.n_cells, at,
            "keys and values differ in heads or cells");
    require(!window || has_windows_, at, "a window layer without frequencies for it");
    check_keys(keys.side, window, at);
    require(!gated || (dim == dim_v && shape_.head_norm != HeadNorm::all), at,
            "gates need values as wide as keys, and norms of single heads");
    require(k || (!v && !k_norm && !v_norm), at,
            "a layer that stores nothing has no attn_v or norms of keys");
    require(v || (dim == dim_v && shape_.head_norm != HeadNorm::all), at,
            "keys as values need values as wide as keys, and norms of single heads");
    require(!v_norm || shape_.norm == Norm::rms, at, "v_norm is an RMS norm");
    require((bool(q_norm) == bool(k_norm) || !k) && (!q_norm || shape_.head_norm != HeadNorm::none),
            at, "attn_q_norm and attn_k_norm do not go with head_norm");
    require(!slopes_ || int64_t(slopes_->size()) == heads, at, "a slope for every head");
    DecoderLayer layer{
        .q = matrix(q, heads * dim * (gated ? 2 : 1), e, at + "attn_q"),
        .k = matrix(k, groups * dim, e, at + "attn_k"),
        .v = matrix(v, groups * dim_v, e, at + "attn_v"),
        .o = matrix(o, e, heads * dim_v, at + "attn_output"),
        .attention_norm = norm(attention_norm, e, at + "attn_norm"),
        .ffn_norm = norm(ffn_norm, e, at + "ffn_norm"),
        .q_norm = head_norm(q_norm, heads, dim, at + "attn_q_norm"),
        .k_norm = head_norm(k_norm, groups, dim, at + "attn_k_norm"),
        .v_norm = vector(v_norm, dim_v, at + "v_norm"),
        .keys = keys.side,
        .values = values.side,
        .attention_post_norm = norm(attention_post_norm, e, at + "post_attention_norm"),
        .ffn_post_norm = norm(ffn_post_norm, e, at + "post_ffw_norm"),
        .sinks = vector(sinks, heads, at + "attn_sinks"),
        .group = window,
        .rotated = rotated,
        .scaled = scaled,
        .n_heads = heads,
        .gated = gated,
        .output_scale = output_scale};
    set_feed_forward(layer, at, gate, up, down);
    keep(std::tuple(keys, values));
    step_.add_layer(layer);
    added(true);
    n_cells_[window] = keys.side.n_cells;
    last_is_dense_ = bool(gate);
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
    const std::string at = next_layer();
    const int64_t e = shape_.n_embd(), dim = keys.side.dim;
    require(shape_.norm == Norm::rms && !shape_.parallel && shape_.head_norm == HeadNorm::none, at,
            "compressed keys in a layer of another kind");
    LatentMemory memory{query, query_up, compress, expand, key_up, value_up, query_norm, norm};
    const LatentLayer latent = memory.checked(at, e, heads, plain, dim_v);
    require(dim == latent.key_dim() && bool(values) != latent.compressed() && !slopes_, at,
            "the cache does not fit the compressed keys");
    CacheSide side = values ? values->side : keys.side;
    if (!values) {
      side.dim = latent.rank, side.within = dim;
      const int64_t block = side.rotation > 1 ? side.rotation : block_shape(side.type).elements;
      require(latent.rank % block == 0, at, "type_k has blocks of ", block, " channels, and of ",
              latent.rank, " compressed ones the last would not be whole");
    }
    require(keys.side.heads == (values ? heads : 1) && side.heads == keys.side.heads &&
                side.n_cells == keys.side.n_cells && (!values || side.dim == dim_v),
            at, "the cache's heads, cells or channels");
    check_keys(keys.side, false, at);
    DecoderLayer layer{.o = matrix(o, e, heads * dim_v, at + "attn_output"),
                       .attention_norm = this->norm(attention_norm, e, at + "attn_norm"),
                       .ffn_norm = this->norm(ffn_norm, e, at + "ffn_norm"),
                       .keys = keys.side,
                       .values = side,
                       .n_heads = heads};
    set_feed_forward(layer, at, gate, up, down);
    keep(std::tuple(memory, keys, values));
    step_.add_layer(latent, layer);
    added(false);
    n_cells_[0] = keys.side.n_cells;
  }

  // One that has a convolution: SSMMemory, HeadMemory, ShortMemory or DeltaNetMemory.
  template <class Space>
  void add_convolution(const Space& space, std::optional<nb::tuple> feed_forward) {
    const std::string at = next_layer();
    require(bool(space.norm), at, "attn_norm is missing");
    space.fits(at, shape_.n_embd(), n_rows_);
    keep(space);
    step_.add_layer(space.layer,
                    feed_forward ? feed_forward_layer(at, *feed_forward) : DecoderLayer{});
    n_rows_ = space.n_rows();
    added(false);
  }

  void add_space_beside(const HeadMemory& space) {
    require(n_layers_ > 0 && last_attends_ && !shape_.parallel,
            "a state space stands beside the attention of the layer before");
    space.fits(last_layer(), shape_.n_embd(), n_rows_);
    step_.add_beside(space.layer);
    n_rows_ = space.n_rows();
    keep(space);
    last_attends_ = false;
  }

  // A layer of nothing else: gate, up, down and norm.
  void add_feed_forward(const nb::tuple& parts) {
    step_.add_layer(feed_forward_layer(next_layer(), parts));
    added(false);
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
    step_.add_mixture(memory.checked(last_layer(), shape_.n_embd()));
    keep(std::move(memory));
  }

  void set_per_layer(const StoredMatrix& embedding, const StoredMatrix& projection, Floats norm) {
    const int64_t width = int64_t(norm.size()), n = projection.weights.out;
    require(width > 0 && n % width == 0 && shape_.norm == Norm::rms,
            "per_layer_proj_norm does not fit per_layer_model_proj");
    require(embedding.weights.out >= shape_.embedding.out,
            "per_layer_token_embd has less tokens than token_embd");
    keep(norm);
    per_layer_ = {matrix(embedding, embedding.weights.out, n, "per_layer_token_embd"),
                  matrix(projection, n, shape_.n_embd(), "per_layer_model_proj"), norm.data(),
                  width};
    step_.set_per_layer(per_layer_);
  }

  void add_per_layer(const StoredMatrix& in, const StoredMatrix& out, Floats norm) {
    require(n_layers_ > 0 && n_layers_ <= per_layer_.layers(),
            "embeddings of a layer that has none");
    const std::string at = last_layer();
    const int64_t e = shape_.n_embd(), width = per_layer_.width;
    step_.add_per_layer({matrix(in, width, e, at + "inp_gate"), matrix(out, e, width, at + "proj"),
                         this->norm(norm, e, at + "post_norm"), n_layers_ - 1});
  }

  void run(Pool& pool, std::optional<Indices> ids, std::optional<Matrix> embeddings,
           Numbers positions, Indices cells, Numbers seen, Indices list_start, Numbers seen_list,
           Indices seen_count, std::optional<Numbers> seen_deltas, Indices out_rows,
           Array<float, 2> logits, std::optional<nb::tuple> window,
           std::optional<nb::tuple> recurrent, std::optional<Numbers> seen_positions,
           std::optional<Floats> query_scales);

 private:
  // Keeps alive what Python gave.
  template <class T>
  void keep(T given) {
    kept_.push_back(std::make_shared<T>(std::move(given)));
  }
  // The same of a matrix [out, in], or of n numbers, if there are any.
  Weights matrix(const std::optional<StoredMatrix>& m, int64_t out, int64_t in,
                 const std::string& name) {
    if (!m) return {};
    require_size(*m, out, in, name);
    keep(*m);
    return m->weights;
  }
  const float* vector(const std::optional<Floats>& v, int64_t n, const std::string& name) {
    if (!v) return nullptr;
    require(int64_t(v->size()) == n, name, " has ", v->size(), " elements, not ", n);
    keep(*v);
    return v->data();
  }
  void added(bool attends) { n_layers_++, last_attends_ = attends; }
  // Of a layer with attention, but for its heads.
  void check_keys(const CacheSide& keys, bool window, const std::string& at) const {
    require(n_cells_[window] == 0 || keys.n_cells == n_cells_[window], at,
            "number of cells differs from the layers before");
    require(!keys.by_channel, at, "keys by channels");
    const Rotation& r = shape_.rotation[window];
    require(r.offset + r.pairs * 2 <= keys.dim, at, "more rotated channels than a head has");
  }
  void set_feed_forward(DecoderLayer& layer, const std::string& at,
                        const std::optional<StoredMatrix>& gate,
                        const std::optional<StoredMatrix>& up,
                        const std::optional<StoredMatrix>& down) {
    if (!gate && !up && !down) return;
    const int64_t e = shape_.n_embd();
    require(gate && down, at, "gate and down go together");
    const int64_t ff = gate->weights.out;
    layer.gate = matrix(gate, ff, e, at + (up ? "ffn_gate" : "ffn_up"));
    layer.up = matrix(up, ff, e, at + "ffn_up"), layer.down = matrix(down, e, ff, at + "ffn_down");
  }
  // parts: gate, up, down and norm; the first three None where add_mixture follows.
  DecoderLayer feed_forward_layer(const std::string& at, const nb::tuple& parts) {
    require(parts.size() == 4, "feed_forward must be gate, up, down and norm");
    const auto get = [&](size_t i) { return nb::cast<std::optional<StoredMatrix>>(parts[i]); };
    const auto ffn_norm = nb::cast<Floats>(parts[3]);
    DecoderLayer layer{.ffn_norm = norm(ffn_norm, shape_.n_embd(), at + "ffn_norm")};
    set_feed_forward(layer, at, get(0), get(1), get(2));
    return layer;
  }
  // The weights of norms, if there are any, of the right size.
  const float* head_norm(const std::optional<Floats>& weight, int64_t heads, int64_t dim,
                         const std::string& name) {
    if (shape_.head_norm == HeadNorm::all || shape_.head_norm == HeadNorm::each) dim *= heads;
    return norm(weight, dim, name);
  }
  const float* norm(const std::optional<Floats>& weight, int64_t n, const std::string& name) {
    return vector(weight, shape_.norm == Norm::layer ? 2 * n : n, name + ".weight");
  }

  std::string next_layer() const { return message("blk.", n_layers_, "."); }
  std::string last_layer() const { return message("blk.", n_layers_ - 1, "."); }
  int64_t n_out() const { return shape_.output.data ? shape_.output.out : shape_.n_embd(); }

  DecoderShape shape_;
  DecoderStep step_;
  std::optional<Floats> slopes_;
  bool has_windows_;
  std::vector<std::shared_ptr<const void>> kept_;
  LayerEmbeddings per_layer_;
  bool last_attends_ = false, last_is_dense_ = false;
  int64_t n_layers_ = 0, n_rows_ = 0, n_cells_[most_groups] = {};
};

}  // namespace aleator
