// Python's side of SSMStep: every size and index is checked here, and the memory kept alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <list>
#include <optional>
#include <string>

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
    kept_.push_back({in,
                     select,
                     time_step,
                     out,
                     norm,
                     conv,
                     conv_bias,
                     a,
                     d,
                     conv_rows,
                     state_rows,
                     norm_eps_,
                     {}});
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    try {
      step_.add_layer(kept_.back().checked(at, embedding_.weights.in, n_rows_));
    } catch (...) {
      kept_.pop_back();
      throw;
    }
    n_rows_ = int64_t(conv_rows.shape(0));
    n_layers_++;
  }

  void add_head_space(const HeadMemory& space) {
    space.memory.fits("blk." + std::to_string(n_layers_) + ".", embedding_.weights.in, n_rows_);
    require(bool(space.memory.norm), "attn_norm is missing");
    heads_.push_back(space);
    step_.add_layer(space.layer);
    n_rows_ = space.memory.n_rows();
    n_layers_++;
  }

  void run(Pool& pool, std::optional<Indices> ids, std::optional<Matrix> embeddings, Indices starts,
           Indices sources, Indices order, Indices stores, Indices out_rows,
           Array<float, 2> logits) {
    SSMBatch b;
    b.tokens = int64_t(order.size());
    require(bool(ids) != bool(embeddings), "either token ids or embeddings");
    require(n_layers_ > 0 && b.tokens > 0, "no layers or no tokens");
    require(ids ? int64_t(ids->size()) == b.tokens
                : int64_t(embeddings->shape(0)) == b.tokens &&
                      int64_t(embeddings->shape(1)) == embedding_.weights.in,
            "tokens or embeddings do not match the runs");
    b.runs = checked_runs(starts, sources, order, stores, b.tokens, n_rows_);
    b.n_out = int64_t(out_rows.size());
    require(
        int64_t(logits.shape(0)) == b.n_out &&
            int64_t(logits.shape(1)) == (output_ ? output_->weights.out : embedding_.weights.in) &&
            b.n_out <= b.tokens,
        "logits must be [out_rows, n_vocab], hidden states [out_rows, n_embd]");
    for (int64_t i = 0; i < b.tokens; i++)
      require(!ids || ((*ids)(i) >= 0 && (*ids)(i) < embedding_.weights.out),
              "token " + std::to_string(ids ? (*ids)(i) : 0) + " is outside the vocabulary");
    for (int64_t i = 0; i < b.n_out; i++)
      require(out_rows(i) >= 0 && out_rows(i) < b.tokens, "row " + std::to_string(out_rows(i)));
    b.ids = ids ? ids->data() : nullptr;
    b.embeddings = embeddings ? embeddings->data() : nullptr;
    b.out_rows = out_rows.data();
    b.logits = logits.data();
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

}  // namespace aleator

ALEATOR_BIND(ssm_step) {
  using namespace aleator;
  nb::class_<BoundSSMStep>(m, "SSMStep",
                           "A decoder of the mamba kind, run for a micro-batch at a time on the "
                           "processor.")
      .def(nb::init<const StoredMatrix&, std::optional<StoredMatrix>, Floats, float,
                    std::optional<float>>(),
           nb::arg("embedding"), nb::arg("output").none(), nb::arg("output_norm"), nb::arg("eps"),
           nb::arg("norm_eps").none(),
           "output: None: hidden states after the last norm in place of logits; norm_eps: time "
           "step, B and C are RMS-normalised with it.")
      .def(
          "add_layer", &BoundSSMStep::add_layer, nb::arg("projection"), nb::arg("select"),
          nb::arg("time_step"), nb::arg("output"), nb::arg("norm"), nb::arg("conv"),
          nb::arg("conv_bias"), nb::arg("a"), nb::arg("d"), nb::arg("conv_rows").noconvert(),
          nb::arg("state_rows").noconvert(),
          "Appends a layer. conv [width, channels]; a [channels, state]; rows of the cache: "
          "float32 [rows, channels, width - 1] and [rows, channels, state]. ValueError, naming the "
          "tensor, when shapes disagree.")
      .def("add_head_space", &BoundSSMStep::add_head_space, nb::arg("space"),
           "Appends a layer whose heads have one decay each.")
      .def(
          "run", &BoundSSMStep::run, nb::arg("pool"), nb::arg("ids").none(),
          nb::arg("embeddings").none(), nb::arg("starts"), nb::arg("sources"), nb::arg("order"),
          nb::arg("stores"), nb::arg("out_rows"), nb::arg("logits").noconvert(),
          "T tokens: ids int64 [T] or embeddings float32 [T, n_embd], in runs: order [T] lists the "
          "tokens run by run, starts [runs + 1] where each begins, sources [runs] the row of "
          "states "
          "it starts from or -1, stores [T] the row that keeps the state after the token or -1 "
          "(int64); writes logits float32 [R, n_vocab] of out_rows. ValueError, with nothing "
          "changed, for an index out of range.");
}
