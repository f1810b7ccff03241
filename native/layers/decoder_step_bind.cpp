// Python's DecoderStep: how it is made and run.
#include "bind.hpp"
#include "layers/bound_decoder_step.hpp"
#include "layers/interruptible.hpp"

namespace aleator {

// What enters a step of so many tokens, and what leaves it: n_out numbers of each row wanted.
static MicroBatch checked_ends(int64_t tokens, const Weights& embedding, int64_t n_out,
                               const std::optional<Indices>& ids,
                               const std::optional<Matrix>& embeddings, const Indices& out_rows,
                               const Array<float, 2>& logits) {
  const int64_t rows = int64_t(out_rows.size());
  require(bool(ids) != bool(embeddings), "either token ids or embeddings");
  require(ids ? int64_t(ids->size()) == tokens
              : int64_t(embeddings->shape(0)) == tokens &&
                    int64_t(embeddings->shape(1)) == embedding.in,
          "tokens or embeddings do not match the positions");
  require(int64_t(logits.shape(0)) == rows && int64_t(logits.shape(1)) == n_out && rows <= tokens,
          "logits must be [out_rows, n_vocab], hidden states [out_rows, n_embd]");
  for (int64_t i = 0; ids && i < tokens; i++)
    require((*ids)(i) >= 0 && (*ids)(i) < embedding.out, "token ", (*ids)(i),
            " is outside the vocabulary");
  for (int64_t i = 0; i < rows; i++)
    require(out_rows(i) >= 0 && out_rows(i) < tokens, "row ", out_rows(i));
  MicroBatch b;
  b.tokens = tokens, b.ids = pointer(ids);
  b.embeddings = pointer(embeddings);
  b.out_rows = out_rows.data(), b.n_out = rows, b.logits = logits.data();
  return b;
}

// starts [runs + 1], sources [runs], order [tokens], stores [tokens]: see Runs.
static Runs checked_runs(const Indices& starts, const Indices& sources, const Indices& order,
                         const Indices& stores, int64_t tokens, int64_t n_rows) {
  const int64_t runs = int64_t(sources.size());
  require(tokens > 0 && runs > 0, "no layers or no tokens");
  require(int64_t(order.size()) == tokens && int64_t(starts.size()) == runs + 1 &&
              int64_t(stores.size()) == tokens && starts(0) == 0 && starts(runs) == tokens,
          "runs do not match the tokens");
  for (int64_t i = 0; i < runs; i++) {
    require(starts(i) < starts(i + 1), "an empty run");
    require(sources(i) >= -1 && sources(i) < n_rows, "row ", sources(i));
  }
  std::vector<bool> seen(tokens);
  for (int64_t i = 0; i < tokens; i++) {
    require(order(i) >= 0 && order(i) < tokens && !seen[order(i)], "order is no permutation");
    seen[order(i)] = true;
    require(stores(i) >= -1 && stores(i) < n_rows, "row ", stores(i));
  }
  return {runs, starts.data(), sources.data(), order.data(), stores.data()};
}

// starts [tokens + 1], adapters and scales: see Adapted.
static Adapted checked_adapted(const GivenAdapted& given, int64_t tokens, int64_t n_adapters) {
  const auto& [starts, adapters, scales] = given;
  const int64_t n = int64_t(adapters.size());
  require(int64_t(starts.size()) == tokens + 1 && starts(0) == 0 && starts(tokens) == n &&
              int64_t(scales.size()) == n,
          "adapters do not match the tokens");
  for (int64_t i = 0; i < tokens; i++) require(starts(i) <= starts(i + 1), "starts descend");
  for (int64_t i = 0; i < n; i++)
    require(adapters(i) >= 0 && adapters(i) < n_adapters, "adapter ", adapters(i));
  return {starts.data(), adapters.data(), scales.data()};
}

void BoundDecoderStep::run(Pool& pool, std::optional<Indices> ids, std::optional<Matrix> embeddings,
                           Numbers positions, Indices cells, Numbers seen, Indices list_start,
                           Numbers seen_list, Indices seen_count,
                           std::optional<Numbers> seen_deltas, Indices out_rows,
                           Array<float, 2> logits, std::optional<nb::tuple> window,
                           std::optional<nb::tuple> recurrent,
                           std::optional<Numbers> seen_positions,
                           std::optional<Floats> query_scales,
                           std::optional<GivenAdapted> adapted) {
  const int64_t tokens = int64_t(positions.size());
  require(n_layers_ > 0 && tokens > 0, "no layers or no tokens");
  MicroBatch b = checked_ends(tokens, shape_.embedding, n_out(), ids, embeddings, out_rows, logits);
  std::vector<Indices> states;
  Pooled pools[most_groups] = {
      {cells, seen, list_start, seen_list, seen_count, seen_deltas, std::nullopt, std::nullopt}};
  require(bool(window) == (n_cells_[1] > 0), "window is for a decoder with window layers");
  if (window) {
    require(window->size() == 8, "window must have eight parts");
    const auto get = [&](size_t i) { return (*window)[i]; };
    pools[1] = {nb::cast<Indices>(get(0)),
                nb::cast<Numbers>(get(1)),
                nb::cast<Indices>(get(2)),
                nb::cast<Numbers>(get(3)),
                nb::cast<Indices>(get(4)),
                nb::cast<std::optional<Numbers>>(get(5)),
                nb::cast<std::optional<Indices>>(get(6)),
                nb::cast<std::optional<Indices>>(get(7))};
    b.n_groups = 2;
  }
  for (int64_t g = 0; g < b.n_groups; g++) b.groups[g] = checked(pools[g], b.tokens, n_cells_[g]);
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
  if (recurrent) {
    require(recurrent->size() == 4, "recurrent must have four parts");
    const auto get = [&](size_t i) { return nb::cast<Indices>((*recurrent)[i]); };
    states = {get(0), get(1), get(2), get(3)};
    b.runs = checked_runs(states[0], states[1], states[2], states[3], b.tokens, n_rows_);
  }
  b.positions = positions.data();
  if (adapted) b.adapted = checked_adapted(*adapted, b.tokens, step_.adapters().size());
  interruptibly([&](Watch& watch) { step_.run(pool, b, &watch); });
}

ALEATOR_BIND(decoder_step) {
  nb::class_<BoundDecoderStep>(m, "DecoderStep",
                               "A decoder, run for a micro-batch at a time on the processor.")
      .def(nb::init<nb::object>(), "decoder"_a,
           "See DecoderShape (native/layers/decoder_step.hpp), whose fields are attributes of "
           "decoder; matrices are lists of StoredWeight. output None: hidden states after the last "
           "norm in place of logits, and without that norm what the next layer takes. gate: "
           "'silu', 'silu_clamped', 'gelu', 'gelu_exact', 'relu_squared', or 'gelu_rounded' as "
           "llama.cpp does; layer_norm: norms are layer norms, their weights followed by as many "
           "biases; head_norm: '', 'head', 'rotated head', 'each' or 'all'. Here and below: "
           "ValueError, naming the tensor, when shapes disagree.")
      .def("add_attention", &BoundDecoderStep::add_attention, "layer"_a, "keys"_a,
           "values"_a.none(),
           "Appends a layer with attention, see Attention (models/layers/parts.py). values: None "
           "where the cache holds compressed keys.")
      .def("add_state", &BoundDecoderStep::add_state, "kind"_a, "layer"_a, "conv"_a.noconvert(),
           "state"_a.noconvert(), "beside"_a,
           "Appends a layer that keeps a state, see models/layers/recurrent_parts.py; beside: the "
           "last layer's attention has this beside it, and what both give is added. kind: "
           "'state space', 'heads', 'short convolution' or 'delta net'. Rows of the cache: float32 "
           "[rows, channels, width - 1] of the convolution, [rows, channels, numbers] of the "
           "state.")
      .def("add_feed_forward", &BoundDecoderStep::add_feed_forward, "layer"_a,
           "Appends a layer of nothing but a feed-forward part, see FeedForwardAlone "
           "(models/layers/recurrent_parts.py).")
      .def("set_per_layer", &BoundDecoderStep::set_per_layer, "table"_a, "embeddings"_a,
           "Tokens have embeddings for each layer: rows of table [n_vocab, layers * width], see "
           "LayerEmbeddings (models/layers/parts.py).")
      .def("add_per_layer", &BoundDecoderStep::add_per_layer, "part"_a,
           "The last layer adds its part of them, see LayerEmbedding (models/layers/parts.py).")
      .def("adapt", &BoundDecoderStep::adapt, "data"_a, "adapter"_a, "a"_a, "b"_a, "factor"_a,
           "grows"_a.noconvert().none() = nb::none(),
           "Products with the matrix whose bytes are data get B (scale * (A x)) for tokens with "
           "this adapter: see LowRank (native/layers/adapters.hpp).")
      .def("run", &BoundDecoderStep::run, "pool"_a, "ids"_a.none(), "embeddings"_a.none(),
           "positions"_a, "cells"_a, "seen"_a, "list_start"_a, "seen_list"_a, "seen_count"_a,
           "seen_deltas"_a.none(), "out_rows"_a, "logits"_a.noconvert(),
           "window"_a.none() = nb::none(), "recurrent"_a.none() = nb::none(),
           "seen_positions"_a.none() = nb::none(), "query_scales"_a.none() = nb::none(),
           "adapted"_a.none() = nb::none(),
           "T tokens: see MicroBatch (native/layers/decoder_step.hpp), Seen (attention_step.hpp) "
           "and Runs (convolution.hpp). adapted: starts, adapters and scales of Adapted "
           "(adapters.hpp). ids int64, or embeddings and all other numbers float32; "
           "positions, lists of cells, seen_list and seen_deltas int32; the rest int64. window: "
           "for window layers cells to seen_deltas, seen_first, and seen_sinks or None. "
           "recurrent: starts, sources, order and stores. ValueError, with nothing changed, for "
           "an index out of range.");
}

}  // namespace aleator
