// What Python made of a layer with a gated delta net: sizes are checked once, and the memory is
// kept alive.
#pragma once

#include "layers/head_memory.hpp"

namespace aleator {

class DeltaNetMemory : public ConvolutionMemory {
 public:
  DeltaNetMemory(const StoredMatrix& qkv, const StoredMatrix& gate, const StoredMatrix& beta,
                 const StoredMatrix& decay, const StoredMatrix& out, Floats norm, Matrix conv,
                 Floats conv_bias, Floats a, Floats time_bias, Floats head_norm, int64_t key_heads,
                 bool tiled, float eps, StateRows conv_rows, StateRows state_rows)
      : ConvolutionMemory{qkv, out, norm, conv, conv_bias, conv_rows},
        gate_(gate),
        beta_(beta),
        decay_(decay),
        a_(a),
        time_bias_(time_bias),
        head_norm_(head_norm),
        state_rows_(state_rows) {
    DeltaNet& d = layer.net;
    d.key_heads = key_heads, d.heads = int64_t(a.size()), d.tiled = tiled, d.eps = eps;
    d.dim = int64_t(state_rows.shape(2)), d.dim_v = int64_t(head_norm.size());
    require(
        key_heads > 0 && d.heads > 0 && d.heads % key_heads == 0 && d.dim > 0 && d.dim_v > 0,
        std::to_string(d.heads) + " heads of values for " + std::to_string(key_heads) + " of keys");
    d.conv = checked("ssm_conv1d");
    require(d.conv.channels == d.channels(),
            "ssm_conv1d has not the channels of queries, keys and values");
    require(int64_t(time_bias.size()) == d.heads, "ssm_dt.bias: wrong size");
    require(state_rows.shape(0) == conv_rows.shape(0) &&
                int64_t(state_rows.shape(1)) == d.heads * d.dim_v,
            "rows of states");
    sizes(d.channels(), d.heads * d.dim_v, "attn_qkv", "ssm_out");
    const auto rows = [&](const StoredMatrix& m, int64_t n, const char* name) {
      require(m.weights.out == n && m.weights.in == qkv.weights.in,
              std::string(name) + ".weight: wrong size");
    };
    rows(gate, d.heads * d.dim_v, "attn_gate");
    rows(beta, d.heads, "ssm_beta");
    rows(decay, d.heads, "ssm_alpha");
    d.a = a.data(), d.time_bias = time_bias.data(), d.norm = head_norm.data();
    d.state_rows = state_rows.data();
    layer.qkv = qkv.weights, layer.gate = gate.weights, layer.beta = beta.weights;
    layer.decay = decay.weights, layer.out = out.weights, layer.norm = norm.data();
  }
  DeltaNetLayer layer;

 private:
  StoredMatrix gate_, beta_, decay_;
  Floats a_, time_bias_, head_norm_;
  StateRows state_rows_;
};

}  // namespace aleator
