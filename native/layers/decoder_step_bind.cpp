// Python's DecoderStep: how it is made and run.  Its layers: decoder_layers_bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "layers/bound_decoder_step.hpp"
#include "layers/interruptible.hpp"

namespace aleator {

BoundDecoderStep::BoundDecoderStep(
    const StoredMatrix& embedding, std::optional<StoredMatrix> output, Floats output_norm,
    float eps, float attention_scale, Array<const double, 1> frequencies, double magnitude,
    bool interleaved, float embedding_scale, const std::string& gate,
    std::optional<Array<const double, 1>> window_frequencies, double window_magnitude,
    bool raw_keys, bool layer_norm, const std::string& head_norm, float residual_scale,
    float softcap, float clamp, bool parallel, std::optional<Floats> embedding_norm,
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

void BoundDecoderStep::run(Pool& pool, std::optional<Array<const int64_t, 1>> ids,
                           std::optional<Array<const float, 2>> embeddings,
                           Array<const int32_t, 1> positions, Array<const int64_t, 1> cells,
                           Array<const int32_t, 1> seen, Array<const int64_t, 1> list_start,
                           Array<const int32_t, 1> seen_list, Array<const int64_t, 1> seen_count,
                           std::optional<Array<const int32_t, 1>> seen_deltas,
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

HeadNorm BoundDecoderStep::head_norm_named(const std::string& name) {
  if (name.empty()) return HeadNorm::none;
  if (name == "head") return HeadNorm::head;
  if (name == "rotated head") return HeadNorm::rotated_head;
  if (name == "each") return HeadNorm::each;
  require(name == "all", "head_norm must be head, rotated head, each or all, not " + name);
  return HeadNorm::all;
}

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
