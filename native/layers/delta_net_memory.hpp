// Python's side of layers with a gated delta net: every size is checked here, and the memory kept
// alive.
#pragma once

#include <string>
#include <vector>

#include "layers/delta_net_layers.hpp"
#include "layers/ssm_memory.hpp"

namespace aleator {

// A layer's weights and the rows of states in the cache.
struct DeltaNetMemory {
  StoredMatrix qkv, gate, beta, decay, out;
  Floats norm;
  Matrix conv;  // [width, channels]
  Floats a, time_bias, head_norm;
  StateRows conv_rows, state_rows;
  std::vector<float> no_bias;

  // Layer `at` of a decoder of width e; n_rows is what the layers before have, or 0.
  DeltaNetLayer checked(const std::string& at, int64_t e, int64_t n_rows, int64_t key_heads,
                        bool tiled, float eps) {
    const int64_t heads = int64_t(a.size()), dim_v = int64_t(head_norm.size());
    const int64_t dim = int64_t(state_rows.shape(2)), width = int64_t(conv.shape(0));
    DeltaNet net{key_heads,
                 heads,
                 dim,
                 dim_v,
                 tiled,
                 eps,
                 {},
                 a.data(),
                 time_bias.data(),
                 head_norm.data(),
                 state_rows.data()};
    require(key_heads > 0 && heads > 0 && heads % key_heads == 0 && dim > 0 && dim_v > 0,
            at + std::to_string(heads) + " heads of values for " + std::to_string(key_heads) +
                " of keys");
    const auto matrix = [&](const StoredMatrix& m, int64_t rows, int64_t columns,
                            const char* name) {
      require(m.weights.out == rows && m.weights.in == columns,
              at + name + ".weight is [" + std::to_string(m.weights.out) + ", " +
                  std::to_string(m.weights.in) + "], not [" + std::to_string(rows) + ", " +
                  std::to_string(columns) + "]");
    };
    matrix(qkv, net.channels(), e, "attn_qkv");
    matrix(gate, heads * dim_v, e, "attn_gate");
    matrix(beta, heads, e, "ssm_beta");
    matrix(decay, heads, e, "ssm_alpha");
    matrix(out, e, heads * dim_v, "ssm_out");
    require(width >= 2 && width <= widest_convolution && int64_t(conv.shape(1)) == net.channels(),
            at + "ssm_conv1d: [" + std::to_string(width) + ", channels]");
    require(int64_t(norm.size()) == e && int64_t(time_bias.size()) == heads,
            at + "attn_norm or ssm_dt.bias: wrong size");
    require(conv_rows.shape(0) > 0 && conv_rows.shape(0) == state_rows.shape(0) &&
                int64_t(conv_rows.shape(1)) == net.channels() &&
                int64_t(conv_rows.shape(2)) == width - 1 &&
                int64_t(state_rows.shape(1)) == heads * dim_v,
            at + "rows of states");
    require(n_rows == 0 || n_rows == int64_t(conv_rows.shape(0)),
            at + "number of rows differs from the layers before");
    no_bias.assign(size_t(net.channels()), 0.0f);
    net.conv.inner = net.conv.stride = net.channels(), net.conv.width = width;
    net.conv.conv = conv.data(), net.conv.conv_bias = no_bias.data();
    net.conv.conv_rows = conv_rows.data();
    return {qkv.weights, gate.weights, beta.weights, decay.weights, out.weights, norm.data(), net};
  }
};

}  // namespace aleator
