// Python's side of SSMStep: every size and index is checked here, and the memory kept alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <list>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "layers/ssm_step.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

template <class T, int n>
using Array = nb::ndarray<T, nb::ndim<n>, nb::c_contig, nb::device::cpu>;
using Matrix = Array<const float, 2>;
using StateRows = Array<float, 3>;
using Indices = Array<const int64_t, 1>;

static void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

class BoundSSMStep {
 public:
  BoundSSMStep(const StoredMatrix& embedding, const StoredMatrix& output, Floats output_norm,
               float eps, std::optional<float> norm_eps)
      : embedding_(embedding),
        output_(output),
        output_norm_(std::move(output_norm)),
        shape_{embedding_.weights, output_.weights, output_norm_.data(), eps, norm_eps},
        step_(shape_) {
    require(embedding_.weights.in == output_.weights.in, "token_embd and output differ in width");
    require(int64_t(output_norm_.size()) == output_.weights.in, "output_norm.weight: wrong size");
  }

  void add_layer(const StoredMatrix& in, const StoredMatrix& select, const StoredMatrix& time_step,
                 const StoredMatrix& out, Floats norm, Matrix conv, Floats conv_bias, Matrix a,
                 Floats d, StateRows conv_rows, StateRows state_rows) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    const int64_t e = output_.weights.in, inner = int64_t(a.shape(0)), state = int64_t(a.shape(1));
    const int64_t width = int64_t(conv.shape(0)), rank = time_step.weights.in;
    const auto matrix = [&](const StoredMatrix& m, int64_t rows, int64_t columns,
                            const char* name) {
      require(m.weights.out == rows && m.weights.in == columns,
              at + name + ".weight is [" + std::to_string(m.weights.out) + ", " +
                  std::to_string(m.weights.in) + "], not [" + std::to_string(rows) + ", " +
                  std::to_string(columns) + "]");
    };
    const auto rows = [&](const StateRows& r, int64_t last) {
      return r.shape(0) == conv_rows.shape(0) && r.shape(0) > 0 && int64_t(r.shape(1)) == inner &&
             int64_t(r.shape(2)) == last;
    };
    matrix(in, 2 * inner, e, "ssm_in");
    matrix(select, rank + 2 * state, inner, "ssm_x");
    matrix(time_step, inner, rank, "ssm_dt");
    matrix(out, e, inner, "ssm_out");
    require(width >= 2 && width <= widest_convolution && int64_t(conv.shape(1)) == inner,
            at + "ssm_conv1d: [" + std::to_string(width) + ", channels]");
    require(int64_t(norm.size()) == e && int64_t(conv_bias.size()) == inner &&
                int64_t(d.size()) == inner,
            at + "attn_norm, ssm_conv1d.bias or ssm_d: wrong size");
    require(rows(conv_rows, width - 1) && rows(state_rows, state), at + "rows of states");
    require(n_layers_ == 0 || n_rows_ == int64_t(conv_rows.shape(0)),
            at + "number of rows differs from layer 0");
    n_rows_ = int64_t(conv_rows.shape(0));
    n_layers_++;
    const StateSpace space{inner,
                           width,
                           state,
                           rank,
                           conv.data(),
                           conv_bias.data(),
                           a.data(),
                           d.data(),
                           conv_rows.data(),
                           state_rows.data()};
    step_.add_layer(
        {in.weights, select.weights, time_step.weights, out.weights, norm.data(), space});
    kept_.push_back(
        {{in, select, time_step, out}, {norm, conv_bias, d}, {conv, a}, {conv_rows, state_rows}});
  }

  void run(Pool& pool, std::optional<Indices> ids, std::optional<Matrix> embeddings, Indices starts,
           Indices sources, Indices order, Indices stores, Indices out_rows,
           Array<float, 2> logits) {
    SSMBatch b;
    b.tokens = int64_t(order.size());
    const int64_t runs = int64_t(sources.size());
    require(bool(ids) != bool(embeddings), "either token ids or embeddings");
    require(n_layers_ > 0 && b.tokens > 0 && runs > 0, "no layers or no tokens");
    require(ids ? int64_t(ids->size()) == b.tokens
                : int64_t(embeddings->shape(0)) == b.tokens &&
                      int64_t(embeddings->shape(1)) == output_.weights.in,
            "tokens or embeddings do not match the runs");
    require(int64_t(starts.size()) == runs + 1 && int64_t(stores.size()) == b.tokens &&
                starts(0) == 0 && starts(runs) == b.tokens,
            "runs do not match the tokens");
    b.n_out = int64_t(out_rows.size());
    require(int64_t(logits.shape(0)) == b.n_out &&
                int64_t(logits.shape(1)) == output_.weights.out && b.n_out <= b.tokens,
            "logits must be [out_rows, n_vocab]");
    std::vector<bool> seen(b.tokens);
    for (int64_t i = 0; i < runs; i++) {
      require(starts(i) < starts(i + 1), "an empty run");
      require(sources(i) >= -1 && sources(i) < n_rows_, "row " + std::to_string(sources(i)));
    }
    for (int64_t i = 0; i < b.tokens; i++) {
      require(order(i) >= 0 && order(i) < b.tokens && !seen[order(i)], "order is no permutation");
      seen[order(i)] = true;
      require(stores(i) >= -1 && stores(i) < n_rows_, "row " + std::to_string(stores(i)));
      require(!ids || ((*ids)(i) >= 0 && (*ids)(i) < embedding_.weights.out),
              "token " + std::to_string(ids ? (*ids)(i) : 0) + " is outside the vocabulary");
    }
    for (int64_t i = 0; i < b.n_out; i++)
      require(out_rows(i) >= 0 && out_rows(i) < b.tokens, "row " + std::to_string(out_rows(i)));
    b.ids = ids ? ids->data() : nullptr;
    b.embeddings = embeddings ? embeddings->data() : nullptr;
    b.runs = {runs, starts.data(), sources.data(), order.data(), stores.data()};
    b.out_rows = out_rows.data();
    b.logits = logits.data();
    nb::gil_scoped_release nogil;
    step_.run(pool, b);
  }

 private:
  struct Kept {
    std::vector<StoredMatrix> matrices;
    std::vector<Floats> vectors;
    std::vector<Matrix> tables;
    std::vector<StateRows> rows;
  };
  StoredMatrix embedding_, output_;
  Floats output_norm_;
  SSMShape shape_;
  SSMStep step_;
  std::list<Kept> kept_;
  int64_t n_layers_ = 0, n_rows_ = 0;
};

}  // namespace aleator

ALEATOR_BIND(ssm_step) {
  using namespace aleator;
  nb::class_<BoundSSMStep>(m, "SSMStep",
                           "A decoder of the mamba kind, run for a micro-batch at a time on the "
                           "processor.")
      .def(
          nb::init<const StoredMatrix&, const StoredMatrix&, Floats, float, std::optional<float>>(),
          nb::arg("embedding"), nb::arg("output"), nb::arg("output_norm"), nb::arg("eps"),
          nb::arg("norm_eps").none(), "norm_eps: time step, B and C are RMS-normalised with it.")
      .def(
          "add_layer", &BoundSSMStep::add_layer, nb::arg("projection"), nb::arg("select"),
          nb::arg("time_step"), nb::arg("output"), nb::arg("norm"), nb::arg("conv"),
          nb::arg("conv_bias"), nb::arg("a"), nb::arg("d"), nb::arg("conv_rows").noconvert(),
          nb::arg("state_rows").noconvert(),
          "Appends a layer. conv [width, channels]; a [channels, state]; rows of the cache: "
          "float32 [rows, channels, width - 1] and [rows, channels, state]. ValueError, naming the "
          "tensor, when shapes disagree.")
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
