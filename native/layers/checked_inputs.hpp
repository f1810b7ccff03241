// The arrays that Python gives a step: every size and index is checked here.
#pragma once

#include <nanobind/stl/tuple.h>

#include <vector>

#include "bind.hpp"
#include "layers/cache_memory.hpp"
#include "layers/decoder_step.hpp"
#include "layers/given.hpp"

namespace aleator {

using Matrix = Array<const float, 2>;

// What enters a step of so many tokens, and what leaves it: n_out numbers of each row wanted.
inline MicroBatch checked_ends(int64_t tokens, const Weights& embedding, int64_t stride,
                               int64_t n_out, const std::optional<Indices>& ids,
                               const std::optional<Matrix>& embeddings, const Indices& out_rows,
                               const Array<float, 2>& logits) {
  const int64_t rows = int64_t(out_rows.size());
  require(bool(ids) != bool(embeddings), "either token ids or embeddings");
  require(ids ? int64_t(ids->size()) == tokens && stride == embedding.in
              : int64_t(embeddings->shape(0)) == tokens && int64_t(embeddings->shape(1)) == stride,
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
  b.embeddings = pointer(embeddings), b.stride = stride;
  b.out_rows = out_rows.data(), b.n_out = rows, b.logits = logits.data();
  return b;
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

using GivenTaps = std::tuple<Indices, Array<float, 3>>;  // layers, and where they go

inline Taps checked_taps(const GivenTaps& given, int64_t tokens, int64_t n_layers, int64_t n_embd) {
  const auto& [layers, out] = given;
  const int64_t n = int64_t(layers.size());
  require(int64_t(out.shape(0)) == tokens && int64_t(out.shape(1)) == n &&
              int64_t(out.shape(2)) == n_embd,
          "taps must be [tokens, layers, n_embd]");
  for (int64_t i = 0; i < n; i++)
    require(layers(i) >= 0 && layers(i) <= n_layers, "layer ", layers(i));
  return {layers.data(), n, out.data()};
}

using GivenAdapted = std::tuple<Indices, Numbers, Floats>;  // starts, adapters, scales

// starts [tokens + 1], adapters and scales: see Adapted.
inline Adapted checked_adapted(const GivenAdapted& given, int64_t tokens, int64_t n_adapters) {
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

}  // namespace aleator
