// Python's side of SSMStep: every size and index is checked here, and the memory kept alive.
#include <list>

#include "bind.hpp"
#include "layers/head_memory.hpp"
#include "layers/interruptible.hpp"
#include "layers/ssm_memory.hpp"
#include "layers/ssm_step.hpp"

namespace aleator {

class BoundSSMStep {
 public:
  BoundSSMStep(const StoredMatrix& embedding, std::optional<StoredMatrix> output,
               Floats output_norm, float eps, std::optional<float> norm_eps)
      : embedding_(embedding),
        output_(std::move(output)),
        output_norm_(std::move(output_norm)),
        norm_eps_(norm_eps),
        shape_{embedding_.weights, output_ ? output_->weights : Weights{}, output_norm_.data(),
               eps},
        step_(shape_) {
    require(!output_ || embedding_.weights.in == output_->weights.in,
            "token_embd and output differ in width");
    require(int64_t(output_norm_.size()) == embedding_.weights.in,
            "output_norm.weight: wrong size");
  }

  void add_layer(const StoredMatrix& in, const StoredMatrix& select, const StoredMatrix& time_step,
                 const StoredMatrix& out, Floats norm, Matrix conv, Floats conv_bias, Matrix a,
                 Floats d, StateRows conv_rows, StateRows state_rows) {
    const SSMMemory memory{in, select, time_step, out,        norm,      conv, conv_bias,
                           a,  d,      conv_rows, state_rows, norm_eps_, {}};
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    step_.add_layer(memory.checked(at, embedding_.weights.in, n_rows_));
    kept_.push_back(memory);
    n_rows_ = int64_t(conv_rows.shape(0));
    n_layers_++;
  }

  void add_head_space(const HeadMemory& space) {
    space.fits("blk." + std::to_string(n_layers_) + ".", embedding_.weights.in, n_rows_);
    require(bool(space.norm), "attn_norm is missing");
    heads_.push_back(space);
    step_.add_layer(space.layer);
    n_rows_ = space.n_rows();
    n_layers_++;
  }

  void run(Pool& pool, std::optional<Indices> ids, std::optional<Matrix> embeddings, Indices starts,
           Indices sources, Indices order, Indices stores, Indices out_rows,
           Array<float, 2> logits) {
    const int64_t tokens = int64_t(order.size());
    const int64_t n_out = output_ ? output_->weights.out : embedding_.weights.in;
    const SSMBatch b{checked_ends(n_layers_, tokens, "runs", embedding_.weights, n_out, ids,
                                  embeddings, out_rows, logits),
                     checked_runs(starts, sources, order, stores, tokens, n_rows_)};
    interruptibly([&](Watch& watch) { step_.run(pool, b, &watch); });
  }

 private:
  StoredMatrix embedding_;
  std::optional<StoredMatrix> output_;
  Floats output_norm_;
  std::optional<float> norm_eps_;
  SSMShape shape_;
  SSMStep step_;
  std::list<SSMMemory> kept_;
  std::list<HeadMemory> heads_;
  int64_t n_layers_ = 0, n_rows_ = 0;
};

ALEATOR_BIND(ssm_step) {
  nb::class_<BoundSSMStep>(
      m, "SSMStep",
      "A decoder of the mamba kind, run for a micro-batch at a time on the processor.")
      .def(nb::init<const StoredMatrix&, std::optional<StoredMatrix>, Floats, float,
                    std::optional<float>>(),
           "embedding"_a, "output"_a.none(), "output_norm"_a, "eps"_a, "norm_eps"_a.none(),
           "output: None: hidden states after the last norm in place of logits; norm_eps: time "
           "step, B and C are RMS-normalised with it.")
      .def("add_layer", &BoundSSMStep::add_layer, "projection"_a, "select"_a, "time_step"_a,
           "output"_a, "norm"_a, "conv"_a, "conv_bias"_a, "a"_a, "d"_a, "conv_rows"_a.noconvert(),
           "state_rows"_a.noconvert(),
           "Appends a layer. conv [width, channels]; a [channels, state]; rows of the cache: "
           "float32 [rows, channels, width - 1] and [rows, channels, state]. ValueError, naming "
           "the tensor, when shapes disagree.")
      .def("add_head_space", &BoundSSMStep::add_head_space, "space"_a,
           "Appends a layer whose heads have one decay each.")
      .def("run", &BoundSSMStep::run, "pool"_a, "ids"_a.none(), "embeddings"_a.none(), "starts"_a,
           "sources"_a, "order"_a, "stores"_a, "out_rows"_a, "logits"_a.noconvert(),
           "T tokens: ids int64 [T] or embeddings float32 [T, n_embd], in runs: order [T] lists "
           "the tokens run by run, starts [runs + 1] where each begins, sources [runs] the row of "
           "states it starts from or -1, stores [T] the row that keeps the state after the token "
           "or -1 (int64); writes logits float32 [R, n_vocab] of out_rows. ValueError, with "
           "nothing changed, for an index out of range.");
}

}  // namespace aleator
