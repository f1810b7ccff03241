// One micro-batch of a few tokens through a whole decoder of the llama, qwen2 or qwen3 kind, on the
// processor.
//
// One call does everything from the embedding's rows to the logits, on all threads of the pool,
// with weights in their stored types and keys and values written straight into the cache.
// Everything is computed in float32.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "layers/linear.hpp"
#include "layers/rows.hpp"
#include "threads/pool.hpp"

namespace aleator {

struct DecoderLayer {
  Weights q, k, v, o, gate, up, down;
  const float *attention_norm = nullptr, *ffn_norm = nullptr;  // [n_embd]
  const float *q_norm = nullptr, *k_norm = nullptr;            // [head_dim] or none
  CacheSide keys, values;
  int64_t heads() const { return q.out / keys.dim; }
};

struct DecoderShape {
  Weights embedding, output;            // [n_vocab, n_embd]
  const float* output_norm = nullptr;   // [n_embd]
  const double* frequencies = nullptr;  // radians per position of each rotated pair
  int64_t rotated_pairs = 0;            // at most head_dim / 2
  double rotation_magnitude = 1;
  bool rotation_interleaved = false;  // channels (2i, 2i + 1), else (i, i + pairs)
  float eps = 0, attention_scale = 0;
  int64_t n_embd() const { return output.in; }
};

// T tokens.  All pointers are to arrays that outlive the call.
struct MicroBatch {
  int64_t tokens = 0;
  const int64_t* ids = nullptr;        // [T], or
  const float* embeddings = nullptr;   // [T, n_embd]
  const int32_t* positions = nullptr;  // [T]
  const int64_t* cells = nullptr;      // [T] where each token's key and value go
  // Token t attends to the first seen_count[t] cells of list seen_list[t]; 0 cells give zeros.
  const int32_t* seen = nullptr;        // the lists one after the other
  const int64_t* list_start = nullptr;  // [n_lists + 1]
  int64_t n_lists = 0;
  const int32_t* seen_list = nullptr;    // [T]
  const int64_t* seen_count = nullptr;   // [T]
  const int32_t* seen_deltas = nullptr;  // how far each listed cell's stored key is behind its
                                         // position; none: nowhere
  const int64_t* out_rows = nullptr;     // [n_out] the tokens whose logits are wanted
  int64_t n_out = 0;
  float* logits = nullptr;  // [n_out, n_vocab]
};

class DecoderStep {
 public:
  explicit DecoderStep(const DecoderShape& shape) : shape_(shape) {}
  void add_layer(const DecoderLayer& layer) { layers_.push_back(layer); }
  // The caller has checked every index.  Calls from several threads take turns.
  void run(Pool& pool, const MicroBatch& batch);

 private:
  struct Scratch {  // one thread's own
    std::vector<float> normed, scores, queries;
    std::vector<Attended::Part> parts;
  };
  // Neighbours in a list of cells whose keys are equally far behind.
  struct Part {
    int64_t end;      // counted from the list's start
    int64_t variant;  // index into deltas_
  };
  struct Product {
    const Weights* weights;
    float* out;
  };
  void prepare(const MicroBatch& batch);
  void angles(const int32_t* positions, int64_t n, double sign, double magnitude,
              std::vector<float>& cos_sin);
  void find_parts(const MicroBatch& batch);
  Input input(int thread, const float* x, int64_t in, int64_t tokens);
  Input normed(int thread, const float* weight, int64_t tokens);
  void products(int thread, const Input& x, std::initializer_list<Product> list);
  void add_product(int thread, const Weights& w, const Input& x);
  void layer(int thread, const DecoderLayer& l, const MicroBatch& batch);
  void place_keys(int thread, const DecoderLayer& l, const MicroBatch& batch);
  void attention(int thread, const DecoderLayer& l, const MicroBatch& batch);
  void feed_forward(int thread, const DecoderLayer& l, int64_t tokens);
  void logits(int thread, const MicroBatch& batch);

  Pool* pool_ = nullptr;  // of the run under way
  DecoderShape shape_;
  std::vector<DecoderLayer> layers_;
  std::mutex turn_;
  std::vector<float> x_, q_, k_, v_, attended_, gate_, up_, sum_, cos_sin_, packed_;
  std::vector<int32_t> deltas_;  // the distinct ones, 0 first
  std::vector<float> delta_cos_sin_;
  std::vector<Part> parts_;          // of list 0, of list 1, ...
  std::vector<int64_t> part_start_;  // [n_lists + 1]
  std::vector<Scratch> scratch_;
};

}  // namespace aleator
