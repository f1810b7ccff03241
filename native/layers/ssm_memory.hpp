// Python's side of layers with a selective state space, and of the runs of tokens through them:
// every size and index is checked here, and the memory kept alive.
#pragma once

#include "layers/cache_memory.hpp"
#include "layers/recurrent_layers.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

using Matrix = Array<const float, 2>;
using StateRows = Array<float, 3>;
using Indices = Array<const int64_t, 1>;

// A layer's weights and the rows of states in the cache.
struct SSMMemory {
  StoredMatrix in, select, time_step, out;
  Floats norm;
  Matrix conv;  // [width, channels]
  Floats conv_bias;
  Matrix a;  // [channels, state]
  Floats d;
  StateRows conv_rows, state_rows;
  std::optional<float> norm_eps;
  std::vector<std::optional<Floats>> state_norms;  // three or none

  // Layer `at` of a decoder of width e; n_rows is what the layers before have, or 0.
  SSMLayer checked(const std::string& at, int64_t e, int64_t n_rows) const {
    const int64_t inner = int64_t(a.shape(0)), state = int64_t(a.shape(1));
    const int64_t width = int64_t(conv.shape(0)), rank = time_step.weights.in;
    const auto rows = [&](const StateRows& r, int64_t last) {
      return r.shape(0) == conv_rows.shape(0) && r.shape(0) > 0 && int64_t(r.shape(1)) == inner &&
             int64_t(r.shape(2)) == last;
    };
    require_size(in, 2 * inner, e, at + "ssm_in");
    require_size(select, rank + 2 * state, inner, at + "ssm_x");
    require_size(time_step, inner, rank, at + "ssm_dt");
    require_size(out, e, inner, at + "ssm_out");
    require(width >= 2 && width <= widest_convolution && int64_t(conv.shape(1)) == inner,
            at + "ssm_conv1d: [" + std::to_string(width) + ", channels]");
    require(int64_t(norm.size()) == e && int64_t(conv_bias.size()) == inner &&
                int64_t(d.size()) == inner,
            at + "attn_norm, ssm_conv1d.bias or ssm_d: wrong size");
    require(rows(conv_rows, width - 1) && rows(state_rows, state), at + "rows of states");
    require(n_rows == 0 || n_rows == int64_t(conv_rows.shape(0)),
            at + "number of rows differs from the layers before");
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
    SSMLayer layer{in.weights,  select.weights, time_step.weights, out.weights,
                   norm.data(), space,          norm_eps,          {}};
    for (size_t i = 0; i < state_norms.size(); i++) {
      const auto& weight = state_norms[i];
      require(i < 3 && (!weight || int64_t(weight->size()) == (i ? state : rank)),
              at + "ssm_dt_norm, ssm_b_norm or ssm_c_norm: wrong size");
      layer.state_norms[i] = weight ? weight->data() : nullptr;
    }
    return layer;
  }
};

// What a step of `n_layers` layers is given for so many tokens, of which `like` is the other name;
// n_out: numbers that it gives of each row wanted.
inline StepEnds checked_ends(int64_t n_layers, int64_t tokens, const char* like,
                             const Weights& embedding, int64_t n_out,
                             const std::optional<Indices>& ids,
                             const std::optional<Matrix>& embeddings, const Indices& out_rows,
                             const Array<float, 2>& logits) {
  const int64_t rows = int64_t(out_rows.size());
  require(bool(ids) != bool(embeddings), "either token ids or embeddings");
  require(n_layers > 0 && tokens > 0, "no layers or no tokens");
  require(ids ? int64_t(ids->size()) == tokens
              : int64_t(embeddings->shape(0)) == tokens &&
                    int64_t(embeddings->shape(1)) == embedding.in,
          std::string("tokens or embeddings do not match the ") + like);
  require(int64_t(logits.shape(0)) == rows && int64_t(logits.shape(1)) == n_out && rows <= tokens,
          "logits must be [out_rows, n_vocab], hidden states [out_rows, n_embd]");
  for (int64_t i = 0; ids && i < tokens; i++)
    require((*ids)(i) >= 0 && (*ids)(i) < embedding.out,
            "token " + std::to_string((*ids)(i)) + " is outside the vocabulary");
  for (int64_t i = 0; i < rows; i++)
    require(out_rows(i) >= 0 && out_rows(i) < tokens, "row " + std::to_string(out_rows(i)));
  return {tokens,
          ids ? ids->data() : nullptr,
          embeddings ? embeddings->data() : nullptr,
          out_rows.data(),
          rows,
          logits.data()};
}

// starts [runs + 1], sources [runs], order [tokens], stores [tokens]: see Runs.
inline Runs checked_runs(const Indices& starts, const Indices& sources, const Indices& order,
                         const Indices& stores, int64_t tokens, int64_t n_rows) {
  const int64_t runs = int64_t(sources.size());
  require(tokens > 0 && runs > 0, "no layers or no tokens");
  require(int64_t(order.size()) == tokens && int64_t(starts.size()) == runs + 1 &&
              int64_t(stores.size()) == tokens && starts(0) == 0 && starts(runs) == tokens,
          "runs do not match the tokens");
  for (int64_t i = 0; i < runs; i++) {
    require(starts(i) < starts(i + 1), "an empty run");
    require(sources(i) >= -1 && sources(i) < n_rows, "row " + std::to_string(sources(i)));
  }
  std::vector<bool> seen(tokens);
  for (int64_t i = 0; i < tokens; i++) {
    require(order(i) >= 0 && order(i) < tokens && !seen[order(i)], "order is no permutation");
    seen[order(i)] = true;
    require(stores(i) >= -1 && stores(i) < n_rows, "row " + std::to_string(stores(i)));
  }
  return {runs, starts.data(), sources.data(), order.data(), stores.data()};
}

}  // namespace aleator
