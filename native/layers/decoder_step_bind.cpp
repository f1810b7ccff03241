// The methods of Python's DecoderStep.
#include "layers/bound_decoder_step.hpp"

namespace aleator {

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
      .def("adapt", &BoundDecoderStep::adapt, "data"_a, "adapter"_a, "a"_a, "b"_a, "type"_a,
           "factor"_a, "grows"_a.noconvert().none() = nb::none(),
           "Products with the matrix whose bytes are data get B (scale * (A x)) for tokens with "
           "this adapter: see LowRank (native/layers/adapters.hpp). type: B's.")
      .def("adapt_embedding", &BoundDecoderStep::adapt_embedding, "adapter"_a, "a"_a, "b"_a,
           "type"_a, "factor"_a, "The same of the tokens' embeddings; a: [n_vocab, rank].")
      .def("run", &BoundDecoderStep::run, "pool"_a, "ids"_a.none(), "embeddings"_a.none(),
           "positions"_a, "cells"_a, "seen"_a, "list_start"_a, "seen_list"_a, "seen_count"_a,
           "seen_deltas"_a.none(), "out_rows"_a, "logits"_a.noconvert(),
           "window"_a.none() = nb::none(), "recurrent"_a.none() = nb::none(),
           "seen_positions"_a.none() = nb::none(), "query_scales"_a.none() = nb::none(),
           "adapted"_a.none() = nb::none(), "taps"_a.none() = nb::none(),
           "T tokens: see MicroBatch (native/layers/decoder_step.hpp), Seen (attention_step.hpp) "
           "and Runs (state_kernels.hpp). adapted: starts, adapters and scales of Adapted "
           "(adapters.hpp). ids int64, or embeddings and all other numbers float32; "
           "positions, lists of cells, seen_list and seen_deltas int32; the rest int64. window: "
           "for window layers cells to seen_deltas, seen_first, and seen_sinks or None. "
           "recurrent: starts, sources, order and stores. "
           "taps: numbers of layers int64 [n], and float32 [T, n, n_embd] for what these take, or "
           "the "
           "last one gives. ValueError, with nothing changed, for "
           "an index out of range.");
}

}  // namespace aleator
