// Python's side of LatentLayer: every size is checked here, and the memory kept alive.
#pragma once

#include "layers/cache_memory.hpp"
#include "layers/latent.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

struct LatentMemory {
  StoredMatrix query;
  std::optional<StoredMatrix> query_up;
  StoredMatrix compress;
  std::optional<StoredMatrix> expand;
  std::vector<StoredMatrix> key_up, value_up;
  std::optional<Floats> query_norm;
  Floats norm;

  // The layer; std::invalid_argument, naming the tensor, when shapes disagree.
  LatentLayer checked(const std::string& at, int64_t n_embd, int64_t heads, int64_t plain,
                      int64_t dim_v) const {
    LatentLayer l;
    l.heads = heads, l.plain = plain, l.dim_v = dim_v, l.rank = int64_t(norm.size());
    l.rotated = compress.weights.out - l.rank;
    require(heads >= 1 && plain >= 1 && dim_v >= 1 && l.rank >= 1 && l.rotated >= 2, at,
            "sizes of compressed keys are out of range");
    require_size(compress, l.rank + l.rotated, n_embd, at + "attn_kv_a_mqa");
    require(bool(query_up) == bool(query_norm), at, "attn_q_b and attn_q_a_norm go together");
    if (query_up) {
      require_size(query, int64_t(query_norm->size()), n_embd, at + "attn_q_a");
      require_size(*query_up, heads * l.dim(), int64_t(query_norm->size()), at + "attn_q_b");
      l.query_up = query_up->weights, l.query_norm = query_norm->data();
    } else {
      require_size(query, heads * l.dim(), n_embd, at + "attn_q");
    }
    require(expand ? key_up.empty() && value_up.empty()
                   : int64_t(key_up.size()) == heads && int64_t(value_up.size()) == heads,
            at, "either attn_kv_b, or attn_k_b and attn_v_b of each head");
    if (expand) {
      require_size(*expand, heads * (plain + dim_v), l.rank, at + "attn_kv_b");
      l.expand = expand->weights;
    }
    for (const StoredMatrix& m : key_up) {
      require_size(m, l.rank, plain, at + "attn_k_b");
      require(m.weights.type == key_up[0].weights.type, at, "attn_k_b in several types");
      l.key_up.push_back(m.weights);
    }
    for (const StoredMatrix& m : value_up) {
      require_size(m, dim_v, l.rank, at + "attn_v_b");
      require(m.weights.type == value_up[0].weights.type, at, "attn_v_b in several types");
      l.value_up.push_back(m.weights);
    }
    l.query = query.weights, l.compress = compress.weights, l.norm = norm.data();
    return l;
  }
};

}  // namespace aleator
