// LatentLayer as Python describes it: every size is checked here.
#pragma once

#include "layers/given.hpp"
#include "layers/latent.hpp"

namespace aleator {

// latent: a Latent of aleator/models/layers/parts.py, in layer `at` of a decoder of width n_embd.
inline LatentLayer latent_layer(const Given& latent, const std::string& at, int64_t n_embd,
                                int64_t heads) {
  const Given config = latent.part("config");
  LatentLayer l;
  l.heads = heads, l.rank = config.get<int64_t>("rank"), l.rotated = latent.get<int64_t>("rotated");
  l.plain = config.get<int64_t>("head_dim") - l.rotated;
  l.dim_v = config.get<int64_t>("head_dim_v");
  require(heads >= 1 && l.plain >= 1 && l.dim_v >= 1 && l.rank >= 1 && l.rotated >= 2, at,
          "sizes of compressed keys are out of range");
  l.compress = sized(latent.matrix("compress"), l.rank + l.rotated, n_embd, at + "attn_kv_a_mqa");
  l.norm = latent.needed("norm", l.rank, at + "attn_kv_a_norm.weight");
  l.query = latent.matrix("query"), l.query_up = latent.matrix("query_up");
  const int64_t width = heads * l.dim(), low = l.query.out;
  l.query_norm = latent.vector("query_norm", low, at + "attn_q_a_norm.weight");
  require(bool(l.query_up.data) == bool(l.query_norm), at,
          "attn_q_b and attn_q_a_norm go together");
  if (l.query_up.data) {
    sized(l.query, low, n_embd, at + "attn_q_a");
    sized(l.query_up, width, low, at + "attn_q_b");
  } else {
    sized(l.query, width, n_embd, at + "attn_q");
  }
  l.expand = latent.matrix("expand");
  l.key_up = latent.matrices("key_up"), l.value_up = latent.matrices("value_up");
  require(l.expand.data ? l.key_up.empty() && l.value_up.empty()
                        : int64_t(l.key_up.size()) == heads && int64_t(l.value_up.size()) == heads,
          at, "either attn_kv_b, or attn_k_b and attn_v_b of each head");
  if (l.expand.data) sized(l.expand, heads * (l.plain + l.dim_v), l.rank, at + "attn_kv_b");
  for (const Weights& w : l.key_up) {
    sized(w, l.rank, l.plain, at + "attn_k_b");
    require(w.type == l.key_up[0].type, at, "attn_k_b in several types");
  }
  for (const Weights& w : l.value_up) {
    sized(w, l.dim_v, l.rank, at + "attn_v_b");
    require(w.type == l.value_up[0].type, at, "attn_v_b in several types");
  }
  return l;
}

}  // namespace aleator
