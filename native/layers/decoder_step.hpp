// One micro-batch through a whole decoder, on the processor: llama and its kind, with mixtures of
// experts, layers that keep a state, and layers of a feed-forward part alone where the model has
// them; or mamba and its kind, whose layers all keep a state.
//
// One call does everything from the embedding's rows to the logits, on all threads of the pool,
// with weights in their stored types and keys and values written straight into the cache.
// Everything is computed in float32.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "layers/angles.hpp"
#include "layers/attention_step.hpp"
#include "layers/experts.hpp"
#include "layers/latent.hpp"
#include "layers/per_layer.hpp"
#include "layers/products.hpp"
#include "layers/recurrent_layers.hpp"
#include "layers/two_ways.hpp"

namespace aleator {

// Norms are weights, or weights and then biases, as DecoderShape::norm says; none: there is no such
// norm.
struct DecoderLayer {
  // Without `up` the feed-forward part has no gate: its first matrix is `gate`.
  // Without `v` values are the keys before their norm; without `k` the layer stores nothing, and
  // `keys` and `values` are those of a layer before it.
  Weights q, k, v, o, gate, up, down;
  const float *attention_norm = nullptr, *ffn_norm = nullptr;  // of [n_embd]
  const float *q_norm = nullptr, *k_norm = nullptr;            // see HeadNorm
  const float* v_norm = nullptr;                               // of each value head
  CacheSide keys, values;
  // Of what attention and feed-forward give, of [n_embd].
  const float *attention_post_norm = nullptr, *ffn_post_norm = nullptr;
  const float* sinks = nullptr;  // of attention, [heads] or none
  int64_t group = 0;  // of layers that share a pool of cells and a rotation: see DecoderShape
  std::optional<RecurrentLayer> state;      // instead of attention, or beside it
  std::optional<LatentLayer> latent;        // gives queries, keys and values in place of q, k and v
  std::optional<Mixture> mixture;           // instead of gate, up and down, or beside them
  std::optional<LayerEmbedding> embedding;  // what the tokens' embeddings of this layer add
  bool wide = false;    // queries, keys and values are made of what follows x in embeddings
  bool rotated = true;  // positions rotate its queries and keys
  bool scaled = true;   // MicroBatch::query_scales multiply its queries
  int64_t n_heads = 0;  // of queries; 0 without attention
  bool attends() const { return n_heads > 0; }
  int64_t q_width() const { return n_heads * keys.dim; }
  int64_t k_width() const { return keys.heads * keys.dim; }
  int64_t v_width() const { return values.heads * values.dim; }
  bool gated = false;      // q gives each head's query and then a gate of what the head gives
  float output_scale = 1;  // of what the layer gives
};

// What of queries and keys is normalised: each head, before or after the rotation, or all heads
// together; `each` has weights of its own for every head.
enum class HeadNorm : int { none, head, rotated_head, each, all };

constexpr int64_t most_groups = 2;

struct DecoderShape {
  Weights embedding, output;           // [n_vocab, n_embd]; no output: hidden states are given
  const float* output_norm = nullptr;  // [n_embd]; none: layers follow elsewhere
  Rotation rotation[most_groups];
  float eps = 0, attention_scale = 0;
  float embedding_scale = 1;
  Gate gate = Gate::silu;
  bool raw_keys = false;  // keys are stored unrotated
  Norm norm = Norm::rms;
  HeadNorm head_norm = HeadNorm::none;
  float residual_scale = 1;  // of what attention and feed-forward give
  float softcap = 0;         // of attention's scores
  float clamp = 0;           // queries, keys and values are kept within it; 0: as they are
  bool parallel = false;     // feed-forward has attention's input, not its output
  bool norm_sums = false;    // post-norms are of the sums, not of what is added
  const float* embedding_norm = nullptr;  // [n_embd]
  const float* slopes = nullptr;          // of ALiBi, [heads]
  Weights position_embedding;             // [positions, n_embd], added to the tokens'
  int64_t n_embd() const { return embedding.in; }
};

// What layers take: x before each of n layers; after the last for the number of layers.
struct Taps {
  const int64_t* layers = nullptr;  // [n]
  int64_t n = 0;
  float* out = nullptr;  // [T, n, n_embd]
};

// T tokens.  All pointers are to arrays that outlive the call.
struct MicroBatch {
  int64_t tokens = 0;
  const int64_t* ids = nullptr;       // [T], or
  const float* embeddings = nullptr;  // [T, stride], whose first n_embd numbers are x
  int64_t stride = 0;                 // n_embd, and what layers take in place of x, see `wide`
  const int64_t* out_rows = nullptr;  // [n_out] the tokens whose logits are wanted
  int64_t n_out = 0;
  float* logits = nullptr;              // [n_out, n_vocab]
  const int32_t* positions = nullptr;   // [T]
  const float* query_scales = nullptr;  // [T] that queries are multiplied by, or none
  int64_t n_groups = 1;
  Seen groups[most_groups];
  Runs runs;  // of decoders with recurrent layers
  Adapted adapted;
  Taps taps;
  bool keys_only = false;  // of one layer: tokens store their keys and values, and that is all
};

class DecoderStep {
 public:
  explicit DecoderStep(const DecoderShape& shape) : shape_(shape) {}
  void add_layer(DecoderLayer layer) { layers_.push_back(std::move(layer)); }
  DecoderLayer& last_layer() { return layers_.back(); }
  // The tokens' embeddings of each layer.
  void set_per_layer(const LayerEmbeddings& all) { per_layer_.set(all); }
  Adapters& adapters() { return products_.adapters(); }
  // The caller has checked every index.  Calls from several threads take turns.
  void run(Pool& pool, const MicroBatch& batch, Watch* watch = nullptr);

 private:
  void prepare(Pool& pool, const MicroBatch& batch);
  void layer(int thread, const DecoderLayer& l, const MicroBatch& batch);
  const HeadLayer* beside(const DecoderLayer& l) const;
  void project(int thread, const DecoderLayer& l, const MicroBatch& batch);
  void attend(int thread, const DecoderLayer& l, const MicroBatch& batch);
  void place_keys(int thread, const DecoderLayer& l, const MicroBatch& batch);
  AttentionShape attention(const DecoderLayer& l) const;
  void normalise_heads(int thread, const DecoderLayer& l, int64_t tokens);
  void gate(int thread, const DecoderLayer& l, const Input& x, int64_t tokens);
  void mix(int thread, const DecoderLayer& l, int64_t tokens);
  void mix_beside(int thread, const DecoderLayer& l, int64_t tokens);
  void scale(int thread, float by, int64_t tokens);
  void limit(float* x, int64_t n) const;
  void tap(int thread, int64_t layer, const MicroBatch& batch);
  void take(int64_t token, const float* norm);

  DecoderShape shape_;
  std::vector<DecoderLayer> layers_;
  PerLayer per_layer_;
  LatentHeads latent_;
  RecurrentLayers recurrent_;
  Experts experts_;
  std::mutex turn_;
  Products products_;
  TwoWays ways_;  // of reading a token's matrices: in several streams, or in order
  std::vector<float> q_, k_, v_, attended_, gate_, up_, ones_;
  std::vector<float> queries_;  // without the gates between them
  std::vector<float> dense_;    // what dense parts beside experts give, [tokens, n_embd]
  std::vector<float> angles_[most_groups];
  AttentionStep attention_[most_groups];
};

}  // namespace aleator
