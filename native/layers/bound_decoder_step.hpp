// Python's side of DecoderStep: every size and index is checked here, and the memory kept alive.
#pragma once

#include <list>

#include "bind.hpp"
#include "layers/cache_memory.hpp"
#include "layers/decoder_step.hpp"
#include "layers/delta_net_memory.hpp"
#include "layers/head_memory.hpp"
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
                 std::optional<Floats> v_norm, float output_scale);

  // values: none where keys are compressed.
  void add_latent_layer(const StoredMatrix& query, std::optional<StoredMatrix> query_up,
                        const StoredMatrix& compress, std::optional<StoredMatrix> expand,
                        std::vector<StoredMatrix> key_up, std::vector<StoredMatrix> value_up,
                        std::optional<Floats> query_norm, Floats norm, int64_t heads, int64_t plain,
                        int64_t dim_v, const StoredMatrix& o, std::optional<StoredMatrix> gate,
                        std::optional<StoredMatrix> up, std::optional<StoredMatrix> down,
                        Floats attention_norm, Floats ffn_norm, const CacheMemory& keys,
                        std::optional<CacheMemory> values);

  // state_norms: of time step, B and C, or none.
  void add_recurrent_layer(const StoredMatrix& in, const StoredMatrix& select,
                           const StoredMatrix& time_step, const StoredMatrix& out, Floats norm,
                           Matrix conv, Floats conv_bias, Matrix a, Floats d, StateRows conv_rows,
                           StateRows state_rows, std::optional<nb::tuple> state_norms,
                           std::optional<nb::tuple> feed_forward);

  void add_head_space(const HeadMemory& space, std::optional<nb::tuple> feed_forward) {
    require(bool(space.norm), next_layer() + "attn_norm is missing");
    add_convolution(space, heads_, feed_forward);
  }

  void add_space_beside(const HeadMemory& space) {
    require(n_layers_ > 0 && last_attends_ && !shape_.parallel,
            "a state space stands beside the attention of the layer before");
    space.fits(last_layer(), shape_.n_embd(), n_rows_);
    step_.add_beside(space.layer);
    n_rows_ = space.n_rows();
    heads_.push_back(space);
    last_attends_ = false;
  }

  void add_short_convolution(const ShortMemory& space, std::optional<nb::tuple> feed_forward) {
    add_convolution(space, shorts_, feed_forward);
  }

  void add_delta_net(const DeltaNetMemory& net, std::optional<nb::tuple> feed_forward) {
    add_convolution(net, nets_, feed_forward);
  }

  // A layer of nothing else: gate, up, down and norm.
  void add_feed_forward(const nb::tuple& parts) {
    Kept kept{};
    const std::string at = next_layer();
    step_.add_layer(feed_forward_layer(at, parts, kept));
    added(std::move(kept));
  }

  // The feed-forward part of the last layer, which has been added without one but its norm.
  void add_mixture(const StoredMatrix& router, nb::list experts, std::optional<nb::tuple> shared,
                   std::optional<Floats> bias, std::optional<Floats> shared_router, int64_t n_used,
                   const std::string& scores, bool normalised, float scale, int64_t n_groups,
                   int64_t n_groups_used, int64_t n_group_best, bool weighs_input,
                   const std::string& gate, std::optional<Floats> scales,
                   std::vector<Floats> beside);

  void set_per_layer(const StoredMatrix& embedding, const StoredMatrix& projection, Floats norm);

  void add_per_layer(const StoredMatrix& in, const StoredMatrix& out, Floats norm);

  void run(Pool& pool, std::optional<Array<const int64_t, 1>> ids,
           std::optional<Array<const float, 2>> embeddings, Array<const int32_t, 1> positions,
           Array<const int64_t, 1> cells, Array<const int32_t, 1> seen,
           Array<const int64_t, 1> list_start, Array<const int32_t, 1> seen_list,
           Array<const int64_t, 1> seen_count, std::optional<Array<const int32_t, 1>> seen_deltas,
           Array<const int64_t, 1> out_rows, Array<float, 2> logits,
           std::optional<nb::tuple> window, std::optional<nb::tuple> recurrent,
           std::optional<Array<const int32_t, 1>> seen_positions,
           std::optional<Array<const float, 1>> query_scales);

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
                         const std::optional<StoredMatrix>& down);
  // A layer that keeps a state, and its feed-forward part.
  void add_stateful(const std::string& at, const RecurrentLayer& layer,
                    const std::optional<nb::tuple>& feed_forward) {
    Kept kept{};
    step_.add_layer(layer,
                    feed_forward ? feed_forward_layer(at, *feed_forward, kept) : DecoderLayer{});
    added(std::move(kept));
  }
  // The same of a layer that has a convolution, which `kept` keeps.
  template <class Space>
  void add_convolution(const Space& space, std::list<Space>& kept,
                       const std::optional<nb::tuple>& feed_forward) {
    const std::string at = next_layer();
    space.fits(at, shape_.n_embd(), n_rows_);
    add_stateful(at, space.layer, feed_forward);
    n_rows_ = space.n_rows();
    kept.push_back(space);
  }
  // parts: gate, up, down and norm; the first three None where add_mixture follows.
  DecoderLayer feed_forward_layer(const std::string& at, const nb::tuple& parts, Kept& kept) const;
  void added(Kept&& kept) {
    n_layers_++;
    last_attends_ = false;
    kept_.push_back(std::move(kept));
  }
  static void feed_forward_sizes(const std::string& at, int64_t e,
                                 const std::optional<StoredMatrix>& gate,
                                 const std::optional<StoredMatrix>& up,
                                 const std::optional<StoredMatrix>& down);
  static HeadNorm head_norm_named(const std::string& name);
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

  std::string next_layer() const { return "blk." + std::to_string(n_layers_) + "."; }
  std::string last_layer() const { return "blk." + std::to_string(n_layers_ - 1) + "."; }
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
