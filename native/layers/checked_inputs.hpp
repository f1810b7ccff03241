// Python's side of the cache's memory, of the lists of cells that tokens see, and of what else a
// step is given: every size and index is checked here.
#pragma once

#include <nanobind/stl/tuple.h>

#include <vector>

#include "bind.hpp"
#include "errors.hpp"
#include "layers/decoder_step.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

using CacheBytes = Array<uint8_t, 1>;
using Indices = Array<const int64_t, 1>;
using Numbers = Array<const int32_t, 1>;  // cells of lists, their positions, lists of tokens

// One layer's keys or values as bytes: see CacheSide.
struct CacheMemory {
  CacheBytes data;
  CacheSide side;
  CacheMemory(CacheBytes bytes, const std::string& type, int64_t cells, int64_t heads, int64_t dim,
              bool by_channel, int64_t rotation)
      : data(std::move(bytes)) {
    side = {data.data(), stored_type(type), heads, dim, cells, by_channel, rotation};
    constexpr int64_t limit = int64_t(1) << 20;
    require(side.type != Stored::mxfp4 && !scaled(side.type), "a cache of ", type);
    require(cells >= 1 && cells < int64_t(1) << 31 && heads >= 1 && heads <= limit && dim >= 1 &&
                dim <= limit,
            "sizes out of range");
    require(stored_row_bytes(side.type, dim) &&
                int64_t(data.size()) / side.row_bytes() / heads == cells &&
                int64_t(data.size()) % (side.row_bytes() * heads) == 0,
            "a cache of ", data.size(), " bytes is not [", cells, ", ", heads, ", ", dim, "] of ",
            type);
    require(!by_channel || !in_blocks(side.type), "a cache of ", type, " by channels");
    require(rotation >= 0 && (rotation & (rotation - 1)) == 0 && (!rotation || dim % rotation == 0),
            "rotation in blocks of ", rotation);
  }
};

// What one group of layers stores and sees, see MicroBatch.
struct Pooled {
  std::optional<Indices> cells;  // not where nothing is stored
  Numbers seen;
  Indices list_start;
  Numbers seen_list;
  Indices seen_count;
  std::optional<Numbers> seen_deltas;
  std::optional<Indices> seen_first, seen_sinks;
};

// n_cells of no layers is 0: then nothing is stored, and nothing may be seen.
inline Seen checked(const Pooled& p, int64_t tokens, int64_t n_cells) {
  const int64_t n_lists = int64_t(p.list_start.size()) - 1;
  require((!p.cells || int64_t(p.cells->size()) == tokens) &&
              int64_t(p.seen_list.size()) == tokens && int64_t(p.seen_count.size()) == tokens &&
              (!p.seen_first || int64_t(p.seen_first->size()) == tokens) &&
              (!p.seen_sinks || int64_t(p.seen_sinks->size()) == tokens),
          "cells, seen_list, seen_count, seen_first or seen_sinks do not match the tokens");
  require(n_lists >= 0 && p.list_start(0) == 0 && p.list_start(n_lists) == int64_t(p.seen.size()) &&
              (!p.seen_deltas || p.seen_deltas->size() == p.seen.size()),
          "list_start or seen_deltas do not match seen");
  for (int64_t i = 0; i < n_lists; i++)
    require(p.list_start(i) <= p.list_start(i + 1), "list_start must ascend");
  for (int64_t i = 0; i < tokens; i++) {
    const int64_t list = p.seen_list(i);
    require(
        list >= 0 && list < n_lists && p.seen_count(i) >= 0 &&
            p.seen_count(i) <= p.list_start(list + 1) - p.list_start(list) &&
            (!p.seen_first || (*p.seen_first)(i) >= 0) &&
            (!p.seen_sinks || ((*p.seen_sinks)(i) >= 0 &&
                               (*p.seen_sinks)(i) <= p.list_start(list + 1) - p.list_start(list))),
        "token ", i, " sees more than list ", list, " holds");
  }
  if (n_cells > 0) {
    int32_t worst = 0;  // as unsigned, the largest: one comparison for both ends
    for (size_t i = 0; i < p.seen.size(); i++)
      worst = uint32_t(p.seen(i)) > uint32_t(worst) ? p.seen(i) : worst;
    require(p.seen.size() == 0 || uint32_t(worst) < uint64_t(n_cells), "seen cell ", worst);
    for (int64_t i = 0; i < tokens; i++)
      require(!p.cells || ((*p.cells)(i) >= 0 && (*p.cells)(i) < n_cells), "cell ",
              p.cells ? (*p.cells)(i) : 0);
  }
  return {pointer(p.cells),     p.seen.data(),       p.list_start.data(),    n_lists,
          p.seen_list.data(),   p.seen_count.data(), pointer(p.seen_deltas), pointer(p.seen_first),
          pointer(p.seen_sinks)};
}

using Matrix = Array<const float, 2>;
// Cells, seen, list_start, seen_list, seen_count, seen_deltas, seen_first, seen_sinks: see Pooled.
using GivenWindow = std::tuple<Indices, Numbers, Indices, Numbers, Indices, std::optional<Numbers>,
                               std::optional<Indices>, std::optional<Indices>>;

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

using GivenRuns = std::tuple<Indices, Indices, Indices, Indices>;

// starts [runs + 1], sources [runs], order [tokens], stores [tokens]: see Runs.
inline Runs checked_runs(const GivenRuns& given, int64_t tokens, int64_t n_rows) {
  const auto& [starts, sources, order, stores] = given;
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
