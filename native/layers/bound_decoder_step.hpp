// Python's DecoderStep: sizes of matrices and layers are checked here, and the memory kept alive.
#pragma once

#include "layers/checked_inputs.hpp"
#include "layers/decoder_step.hpp"
#include "layers/given.hpp"
#include "layers/interruptible.hpp"

namespace aleator {

class BoundDecoderStep {
 public:
  // decoder: the fields of DecoderShape, with matrices in lists, and two rotations.
  explicit BoundDecoderStep(nb::object decoder)
      : shape_(shape_of({decoder, kept_})),
        step_(shape_),
        has_windows_(Given(decoder, kept_).has("window_rotation")),
        n_slopes_(Given(decoder, kept_).size("slopes")) {}

  // attention: an Attention of aleator/models/layers/parts.py; values: none where keys stay
  // compressed.
  void add_attention(nb::object attention, const CacheMemory& keys,
                     std::optional<CacheMemory> values) {
    const Given given(std::move(attention), kept_, next_layer());
    const int64_t e = shape_.n_embd();
    DecoderLayer layer{.attention_norm = norm(given, "attn_norm", e, "attn_norm"),
                       .ffn_norm = norm(given, "ffn_norm", e, "ffn_norm"),
                       .keys = keys.side};
    given.keep(keys.data);
    if (values) given.keep(values->data);
    if (given.has("latent")) {
      set_latent(layer, given, values);
    } else {
      given.require(bool(values), "no memory for values");
      set_attention(layer, given, values->side);
    }
    set_feed_forward(layer, given.part("ffn"));
    n_cells_[layer.group] = layer.keys.n_cells;
    if (layer.wide) n_wide_ = layer.q.in;
    add(std::move(layer));
  }

  // layer: one of aleator/models/layers/recurrent_parts.py; beside: the attention of the layer
  // before has this beside it, and what both give is added.
  void add_state(const std::string& kind, nb::object layer, StateRows conv, StateRows state,
                 bool beside) {
    const int64_t n_rows = int64_t(conv.shape(0));
    const GivenState given{{std::move(layer), kept_, beside ? last_layer() : next_layer()},
                           shape_.n_embd(),
                           conv,
                           state};
    given.layer.require(n_rows_ == 0 || n_rows_ == n_rows,
                        "number of rows differs from the layers before");
    given.layer.keep(conv), given.layer.keep(state);
    if (beside) {
      require(n_layers_ > 0 && attends_alone(step_.last_layer()) && !shape_.parallel,
              "a state space stands beside the attention of the layer before");
      step_.last_layer().state = given.heads();
    } else {
      given.layer.require(given.layer.has("norm"), "attn_norm is missing");
      add_feed_forward_layer(given.layer, "ffn_norm", given.made(kind));
    }
    n_rows_ = n_rows;
  }

  // alone: a FeedForwardAlone of recurrent_parts.py.
  void add_feed_forward(nb::object alone) {
    add_feed_forward_layer({std::move(alone), kept_, next_layer()}, "norm");
  }

  // all: LayerEmbeddings of parts.py; matrix: their table.
  void set_per_layer(const StoredMatrix& matrix, nb::object all) {
    const Given given(std::move(all), kept_);
    const Weights table = given.keep(matrix)->weights, projection = given.matrix("projection");
    const int64_t width = given.get<int64_t>("width"), n = projection.out;
    require(width > 0 && n % width == 0 && shape_.norm == Norm::rms,
            "per_layer_proj_norm does not fit per_layer_model_proj");
    require(table.out >= shape_.embedding.out,
            "per_layer_token_embd has less tokens than token_embd");
    per_layer_ = {given.sized(table, table.out, n, "per_layer_token_embd"),
                  given.sized(projection, n, shape_.n_embd(), "per_layer_model_proj"),
                  given.needed("norm", width, "per_layer_proj_norm.weight"), width};
    step_.set_per_layer(per_layer_);
  }

  // part: a LayerEmbedding of parts.py, of the last layer.
  void add_per_layer(nb::object part) {
    require(n_layers_ > 0 && n_layers_ <= per_layer_.layers(),
            "embeddings of a layer that has none");
    const Given given(std::move(part), kept_, last_layer());
    const int64_t e = shape_.n_embd(), width = per_layer_.width;
    step_.last_layer().embedding = {given.matrix("project", width, e, "inp_gate"),
                                    given.matrix("output", e, width, "proj"),
                                    given.needed("norm", e, "post_norm.weight"), n_layers_ - 1};
  }

  // W: the matrix whose bytes are `data`; the others: see LowRank.
  void adapt(Bytes data, int64_t adapter, const StoredMatrix& a, Bytes b, const std::string& type,
             float factor, std::optional<Floats> grows) {
    const int64_t rank = a.weights.out;
    require(data.size() > 0, "a matrix without bytes");
    LowRank given = low_rank(adapter, a, b, type, rank, factor);
    require(!grows || (int64_t(grows->size()) + 15) / 16 * rank == given.b.out,
            "a number for every row of W");
    const Given kept({}, kept_);
    if (grows) given.grows = kept.keep(*grows)->data();
    step_.adapters().set(kept.keep(data)->data(), adapter, given);
  }
  // The same of the tokens' embeddings, where A is [n_vocab, rank].
  void adapt_embedding(int64_t adapter, const StoredMatrix& a, Bytes b, const std::string& type,
                       float factor) {
    const Weights& w = shape_.embedding;
    const LowRank given = low_rank(adapter, a, b, type, a.weights.in, factor);
    require(a.weights.out == w.out && given.b.out == (w.in + 15) / 16 * a.weights.in,
            "A [n_vocab, rank] and B do not fit the embeddings");
    step_.adapters().set_embedding(adapter, given);
  }

  // The same for native code, which has checked every index.
  DecoderStep& step() { return step_; }
  const DecoderShape& shape() const { return shape_; }
  // Of what enters, see MicroBatch; of what leaves.
  int64_t stride() const { return shape_.n_embd() + n_wide_; }
  int64_t n_out() const { return shape_.output.data ? shape_.output.out : shape_.n_embd(); }
  int64_t n_layers() const { return n_layers_; }
  // Cells of its layers with attention, where it has no others.
  int64_t n_cells() const {
    const bool plain = n_rows_ == 0 && n_cells_[1] == 0 && n_slopes_ == 0;
    return plain && !shape_.position_embedding.data ? n_cells_[0] : 0;
  }

  void run(Pool& pool, std::optional<Indices> ids, std::optional<Matrix> embeddings,
           Numbers positions, Indices cells, Numbers seen, Indices list_start, Numbers seen_list,
           Indices seen_count, std::optional<Numbers> seen_deltas, Indices out_rows,
           Array<float, 2> logits, std::optional<GivenWindow> window,
           std::optional<GivenRuns> recurrent, std::optional<Numbers> seen_positions,
           std::optional<Floats> query_scales, std::optional<GivenAdapted> adapted,
           std::optional<GivenTaps> taps) {
    const int64_t tokens = int64_t(positions.size());
    require(n_layers_ > 0 && tokens > 0, "no layers or no tokens");
    MicroBatch b = checked_ends(tokens, shape_.embedding, stride(), n_out(), ids, embeddings,
                                out_rows, logits);
    b.groups[0] = checked({cells, seen, list_start, seen_list, seen_count, seen_deltas, {}, {}},
                          b.tokens, n_cells_[0]);
    require(bool(window) == (n_cells_[1] > 0), "window is for a decoder with window layers");
    if (window) {
      const auto pooled = [](const auto&... parts) { return Pooled{parts...}; };
      b.groups[1] = checked(std::apply(pooled, *window), b.tokens, n_cells_[1]);
      b.n_groups = 2;
    }
    require(bool(seen_positions) == (n_slopes_ > 0) &&
                (!seen_positions || (!window && seen_positions->size() == seen.size())),
            "seen_positions are for slopes, one of each listed cell");
    if (seen_positions)
      b.groups[0].seen_positions = seen_positions->data(), b.groups[0].positions = positions.data();
    require(!query_scales || int64_t(query_scales->size()) == b.tokens,
            "query_scales do not match the positions");
    b.query_scales = pointer(query_scales);
    const Weights& places = shape_.position_embedding;
    for (int64_t i = 0; places.data && i < b.tokens; i++)
      require(positions(i) >= 0 && positions(i) < places.out, "position ", positions(i),
              " has no embedding");
    require(bool(recurrent) == (n_rows_ > 0), "recurrent is for a decoder with recurrent layers");
    if (recurrent) b.runs = checked_runs(*recurrent, b.tokens, n_rows_);
    b.positions = positions.data();
    if (adapted) b.adapted = checked_adapted(*adapted, b.tokens, step_.adapters().size());
    if (taps) b.taps = checked_taps(*taps, b.tokens, n_layers_, shape_.n_embd());
    interruptibly([&](Watch& watch) { step_.run(pool, b, &watch); });
  }

 private:
  LowRank low_rank(int64_t adapter, const StoredMatrix& a, const Bytes& b, const std::string& type,
                   int64_t rank, float factor) {
    const Given given({}, kept_);
    const auto readable = [](Stored each) { return single(each) || each == Stored::q8_0; };
    const Stored of_b = stored_type(type);
    require(adapter >= 0 && adapter < 1 << 16, "adapter ", adapter);
    require(readable(a.weights.type) && readable(of_b), "A and B are not in floats or Q8_0");
    const int64_t size = int64_t(b.size()), sixteen = bytes_of_sixteen(of_b, rank);
    require(size % sixteen == 0, "A [rank, in] and B's columns [rank, 16] do not fit");
    return {
        given.keep(a)->weights, {given.keep(b)->data(), of_b, size / sixteen * rank, 16}, factor};
  }
  static Rotation rotation_of(const Given& given) {
    const auto* all = given.keep(given.get<Array<const double, 1>>("frequencies"));
    return {all->data(), int64_t(all->size()), given.get<double>("magnitude"),
            given.get<bool>("interleaved"), given.get<int64_t>("offset")};
  }
  static DecoderShape shape_of(const Given& given) {
    DecoderShape s{
        .embedding = given.matrix("embedding"),
        .output = given.matrix("output"),
        .rotation = {rotation_of(given.part("rotation"))},
        .eps = given.get<float>("eps"),
        .attention_scale = given.get<float>("attention_scale"),
        .embedding_scale = given.get<float>("embedding_scale"),
        .gate = gate_named(given.get<std::string>("gate")),
        .raw_keys = given.get<bool>("raw_keys"),
        .norm = given.get<bool>("layer_norm") ? Norm::layer : Norm::rms,
        .head_norm = value_named<HeadNorm>("head_norm", {"", "head", "rotated head", "each", "all"},
                                           given.get<std::string>("head_norm")),
        .residual_scale = given.get<float>("residual_scale"),
        .softcap = given.get<float>("softcap"),
        .clamp = given.get<float>("clamp"),
        .parallel = given.get<bool>("parallel"),
        .norm_sums = given.get<bool>("norm_sums"),
        .position_embedding = given.matrix("position_embedding")};
    const int64_t e = s.n_embd(), n = s.norm == Norm::layer ? 2 * e : e;
    s.output_norm = given.vector("output_norm", n, "output_norm.weight");
    s.embedding_norm = given.vector("embedding_norm", n, "token_embd_norm.weight");
    if (given.has("slopes")) s.slopes = given.keep(given.get<Values>("slopes"))->data();
    Rotation& far = s.rotation[1];
    if (given.has("window_rotation")) far = rotation_of(given.part("window_rotation"));
    far.interleaved = s.rotation[0].interleaved, far.offset = s.rotation[0].offset;
    require(!s.output.data || s.output.in == e, "token_embd and output differ in width");
    require(!s.position_embedding.data || s.position_embedding.in == e,
            "position_embd differs from token_embd in width");
    require(far.offset >= 0 && far.offset < int64_t(1) << 20, "offset of rotated channels");
    require(!s.norm_sums || (s.residual_scale == 1 && !s.parallel),
            "norms of sums go without parallel parts and without a residual scale");
    require(!s.raw_keys || s.head_norm != HeadNorm::rotated_head,
            "raw keys, and norms after the rotation");
    return s;
  }

  // Queries, keys and values, and what is done to them.
  void set_attention(DecoderLayer& layer, const Given& given, const CacheSide& values) {
    const std::vector<Weights> qkv = given.matrices("qkv");
    given.require(!qkv.empty() && qkv.size() <= 3,
                  "neither queries, nor with keys, nor with values");
    const Weights none, &k = qkv.size() > 1 ? qkv[1] : none, &v = qkv.size() > 2 ? qkv[2] : none;
    const CacheSide& keys = layer.keys;
    const bool gated = given.get<bool>("gated"), window = given.get<bool>("windowed");
    const int64_t e = shape_.n_embd(), dim = keys.dim, dim_v = values.dim;
    const int64_t groups = keys.heads, heads = qkv[0].out / dim / (gated ? 2 : 1);
    given.require(heads >= groups && heads % groups == 0, "attn_q: ", heads, " query heads for ",
                  groups, " key-value heads");
    given.require(values.heads == groups && values.n_cells == keys.n_cells,
                  "keys and values differ in heads or cells");
    given.require(!window || has_windows_, "a window layer without frequencies for it");
    check_keys(keys, window, given);
    given.require(!gated || (dim == dim_v && shape_.head_norm != HeadNorm::all),
                  "gates need values as wide as keys, and norms of single heads");
    given.require(v.data || (dim == dim_v && shape_.head_norm != HeadNorm::all),
                  "keys as values need values as wide as keys, and norms of single heads");
    given.require(!n_slopes_ || n_slopes_ == heads, "a slope for every head");
    const int64_t wide = given.knows("wide") ? given.get<int64_t>("wide") : 0, in = wide ? wide : e;
    given.require(
        !wide || (wide > 0 && wide < int64_t(1) << 32 && !shape_.parallel && n_layers_ == 0),
        "only the first layer takes something in place of x");
    layer.wide = wide;
    layer.q = given.sized(qkv[0], heads * dim * (gated ? 2 : 1), in, "attn_q");
    if (k.data) layer.k = given.sized(k, groups * dim, in, "attn_k");
    if (v.data) layer.v = given.sized(v, groups * dim_v, in, "attn_v");
    layer.o = given.matrix("output", e, heads * dim_v, "attn_output");
    layer.q_norm = head_norm(given, "q_norm", heads, dim, "attn_q_norm");
    layer.k_norm = head_norm(given, "k_norm", groups, dim, "attn_k_norm");
    layer.v_norm = given.vector("v_norm", dim_v, "v_norm");
    given.require(k.data || (!layer.k_norm && !layer.v_norm),
                  "a layer that stores nothing has no norms of keys or values");
    given.require(!layer.v_norm || shape_.norm == Norm::rms, "v_norm is an RMS norm");
    given.require((bool(layer.q_norm) == bool(layer.k_norm) || !k.data) &&
                      (!layer.q_norm || shape_.head_norm != HeadNorm::none),
                  "attn_q_norm and attn_k_norm do not go with head_norm");
    const std::vector<Given> post = given.parts("post_norms");
    if (!post.empty()) {
      given.require(post.size() == 2, "one norm of what attention gives, and one of feed-forward");
      layer.attention_post_norm = numbers(post[0], e, "post_attention_norm");
      layer.ffn_post_norm = numbers(post[1], e, "post_ffw_norm");
    }
    layer.values = values, layer.n_heads = heads, layer.gated = gated, layer.group = window;
    layer.sinks = given.vector("sinks", heads, "attn_sinks");
    layer.rotated = given.get<bool>("rotated"), layer.scaled = given.get<bool>("grows");
    const float* scale = given.vector("output_scale", 1, "layer_output_scale.weight");
    if (scale) layer.output_scale = *scale;
  }

  // The same where keys and values are compressed.
  void set_latent(DecoderLayer& layer, const Given& given,
                  const std::optional<CacheMemory>& values) {
    given.require(
        shape_.norm == Norm::rms && !shape_.parallel && shape_.head_norm == HeadNorm::none,
        "compressed keys in a layer of another kind");
    given.require(layer.attention_norm && layer.ffn_norm,
                  "compressed keys need attn_norm and ffn_norm");
    const CacheSide& keys = layer.keys;
    const int64_t e = shape_.n_embd(), heads = given.get<int64_t>("n_heads"), dim = keys.dim;
    const LatentLayer& latent = layer.latent.emplace(latent_layer(given.part("latent"), e, heads));
    given.require(dim == latent.key_dim() && bool(values) != latent.compressed() && !n_slopes_,
                  "the cache does not fit the compressed keys");
    CacheSide side = values ? values->side : keys;
    if (!values) {
      side.dim = latent.rank, side.within = dim;
      const int64_t block = side.rotation > 1 ? side.rotation : block_shape(side.type).elements;
      given.require(latent.rank % block == 0, "type_k has blocks of ", block, " channels, and of ",
                    latent.rank, " compressed ones the last would not be whole");
    }
    given.require(keys.heads == (values ? heads : 1) && side.heads == keys.heads &&
                      side.n_cells == keys.n_cells && (!values || side.dim == latent.dim_v),
                  "the cache's heads, cells or channels");
    check_keys(keys, false, given);
    layer.o = given.matrix("output", e, heads * latent.dim_v, "attn_output");
    layer.values = side, layer.n_heads = heads;
  }

  // Of a layer with attention, but for its heads.
  void check_keys(const CacheSide& keys, bool window, const Given& given) const {
    given.require(n_cells_[window] == 0 || keys.n_cells == n_cells_[window],
                  "number of cells differs from the layers before");
    given.require(!keys.by_channel, "keys by channels");
    const Rotation& r = shape_.rotation[window];
    given.require(r.offset + r.pairs * 2 <= keys.dim, "more rotated channels than a head has");
  }

  // A layer whose attention is elsewhere, or nowhere; `name`: of the norm before feed-forward.
  void add_feed_forward_layer(const Given& given, const char* name,
                              std::optional<RecurrentLayer> state = {}) {
    DecoderLayer layer{.ffn_norm = norm(given, name, shape_.n_embd(), "ffn_norm")};
    given.require(layer.ffn_norm || given.part("ffn").none(), "ffn_norm is missing");
    set_feed_forward(layer, given.part("ffn"));
    layer.state = std::move(state);
    add(std::move(layer));
  }
  // ffn: a FeedForward of parts.py, or a Mixture, which may have one beside its experts; or None.
  void set_feed_forward(DecoderLayer& layer, const Given& ffn) {
    if (ffn.knows("experts")) layer.mixture = mixture(ffn, shape_.n_embd());
    const Given dense = ffn.knows("dense") ? ffn.part("dense") : ffn;
    require(!layer.mixture || !layer.mixture->beside() ||
                (attends_alone(layer) && !dense.none() && !shape_.parallel),
            "experts beside the dense part of the layer before");
    if (dense.none()) return;
    const std::vector<Weights> up = dense.matrices("gate_up");
    ffn.require(up.size() == 1 || up.size() == 2, "neither ffn_gate and ffn_up, nor ffn_up alone");
    const int64_t e = shape_.n_embd(), ff = up[0].out;
    const bool gated = up.size() == 2;
    layer.gate = ffn.sized(up[0], ff, e, gated ? "ffn_gate" : "ffn_up");
    if (gated) layer.up = ffn.sized(up[1], ff, e, "ffn_up");
    layer.down = dense.matrix("down", e, ff, "ffn_down");
    require(!shape_.parallel || layer.gate.order == layer.q.order,
            "attn_q and ffn_up have one input, and columns in several orders");
  }

  // The weights of norms, if there are any, of the right size.
  const float* numbers(const Given& norm, int64_t n, const std::string& name) const {
    return norm.numbers(shape_.norm == Norm::layer ? 2 * n : n, name + ".weight");
  }
  const float* norm(const Given& given, const char* attribute, int64_t n,
                    const std::string& name) const {
    return given.has(attribute) ? numbers(given.part(attribute), n, name) : nullptr;
  }
  const float* head_norm(const Given& given, const char* attribute, int64_t heads, int64_t dim,
                         const std::string& name) const {
    if (shape_.head_norm == HeadNorm::all || shape_.head_norm == HeadNorm::each) dim *= heads;
    return norm(given, attribute, dim, name);
  }

  void add(DecoderLayer layer) { step_.add_layer(std::move(layer)), n_layers_++; }
  static bool attends_alone(const DecoderLayer& l) { return l.attends() && !l.latent && !l.state; }
  std::string next_layer() const { return message("blk.", n_layers_, "."); }
  std::string last_layer() const { return message("blk.", n_layers_ - 1, "."); }

  Kept kept_;
  DecoderShape shape_;
  DecoderStep step_;
  bool has_windows_;
  int64_t n_slopes_;  // of ALiBi, one for every head; 0: there are none
  LayerEmbeddings per_layer_;
  int64_t n_layers_ = 0, n_rows_ = 0, n_wide_ = 0, n_cells_[most_groups] = {};
};

}  // namespace aleator
