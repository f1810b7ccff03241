// Python's side of DecoderStep: every size and index is checked here, and the memory kept alive.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

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
                   int64_t rotated_from);

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

  void add_head_space(const HeadMemory& space, std::optional<nb::tuple> feed_forward);

  void add_space_beside(const HeadMemory& space);

  void add_short_convolution(const ShortMemory& space, std::optional<nb::tuple> feed_forward);

  void add_delta_net(const DeltaNetMemory& net, std::optional<nb::tuple> feed_forward);

  // A layer of nothing else: gate, up, down and norm.
  void add_feed_forward(const nb::tuple& parts);

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
  void rotated_channels(bool window, int64_t dim, const std::string& at) const;
  // Of the layer that was kept last.
  void keep_feed_forward(DecoderLayer& layer, const std::optional<StoredMatrix>& gate,
                         const std::optional<StoredMatrix>& up,
                         const std::optional<StoredMatrix>& down);
  // A layer that keeps a state, and its feed-forward part.
  void add_stateful(const std::string& at, const RecurrentLayer& layer,
                    const std::optional<nb::tuple>& feed_forward);
  // parts: gate, up, down and norm; the first three None where add_mixture follows.
  DecoderLayer feed_forward_layer(const std::string& at, const nb::tuple& parts, Kept& kept) const;
  void added(Kept&& kept);
  static void matrix(const StoredMatrix& m, int64_t out, int64_t in, const std::string& name);
  static void feed_forward_sizes(const std::string& at, int64_t e,
                                 const std::optional<StoredMatrix>& gate,
                                 const std::optional<StoredMatrix>& up,
                                 const std::optional<StoredMatrix>& down);
  static HeadNorm head_norm_named(const std::string& name);
  static const float* pointer(const std::optional<Floats>& v) { return v ? v->data() : nullptr; }
  void head_norm(const Floats& weight, int64_t heads, int64_t dim, const std::string& name) const;
  void norm(const Floats& weight, int64_t n, const std::string& name) const;

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
