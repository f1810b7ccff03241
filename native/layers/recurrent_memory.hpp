// What Python made of layers that keep a state: sizes are checked once, and the memory is kept
// alive.
#pragma once

#include "layers/cache_memory.hpp"
#include "layers/recurrent_layers.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

using Matrix = Array<const float, 2>;
using StateRows = Array<float, 3>;

// What they have in common.
struct ConvolutionMemory {
  StoredMatrix in, out;
  std::optional<Floats> norm;
  Matrix weight;  // [width, channels]
  Floats bias;
  StateRows rows;  // [rows, channels, width - 1]

  Convolution checked(const char* name) const {
    const int64_t width = int64_t(weight.shape(0)), channels = int64_t(weight.shape(1));
    require(width >= 2 && width <= widest_convolution && int64_t(bias.size()) == channels &&
                int64_t(rows.shape(1)) == channels && int64_t(rows.shape(2)) == width - 1 &&
                rows.shape(0) > 0,
            name,
            ": weight [width, channels], bias [channels] and rows [rows, channels, width - 1] "
            "do not fit each other");
    return {channels, width, weight.data(), bias.data(), rows.data()};
  }
  void sizes(int64_t projected, int64_t inner, const char* input, const char* output) const {
    require_size(in, projected, out.weights.out, input);
    require_size(out, out.weights.out, inner, output);
    require(!norm || int64_t(norm->size()) == out.weights.out, "attn_norm: wrong size");
  }
  // Of a decoder of width e, whose layers before have n_rows rows, or 0 of them.
  void fits(const std::string& at, int64_t e, int64_t n_rows) const {
    require(in.weights.in == e, at, "the layer's width differs from the decoder's");
    require(n_rows == 0 || n_rows == int64_t(rows.shape(0)), at,
            "number of rows differs from the layers before");
  }
  int64_t n_rows() const { return int64_t(rows.shape(0)); }
};

class SSMMemory : public ConvolutionMemory {
 public:
  // state_norms: of time step, B and C, or none; norm_eps: of these, which need no weights.
  SSMMemory(const StoredMatrix& in, const StoredMatrix& select, const StoredMatrix& time_step,
            const StoredMatrix& out, Floats norm, Matrix conv, Floats conv_bias, Matrix a, Floats d,
            StateRows conv_rows, StateRows state_rows, std::vector<Floats> state_norms,
            std::optional<float> norm_eps)
      : ConvolutionMemory{in, out, norm, conv, conv_bias, conv_rows},
        select_(select),
        time_step_(time_step),
        a_(a),
        d_(d),
        state_rows_(state_rows),
        state_norms_(std::move(state_norms)) {
    StateSpace& s = layer.space;
    s.inner = int64_t(a.shape(0)), s.state = int64_t(a.shape(1)), s.rank = time_step.weights.in;
    s.conv = checked("ssm_conv1d");
    require(s.conv.channels == s.inner && int64_t(d.size()) == s.inner,
            "ssm_conv1d or ssm_d: wrong size");
    require(state_rows.shape(0) == conv_rows.shape(0) && int64_t(state_rows.shape(1)) == s.inner &&
                int64_t(state_rows.shape(2)) == s.state,
            "rows of states");
    sizes(2 * s.inner, s.inner, "ssm_in", "ssm_out");
    require_size(select, s.selected(), s.inner, "ssm_x");
    require_size(time_step, s.inner, s.rank, "ssm_dt");
    s.a = a.data(), s.d = d.data(), s.state_rows = state_rows.data();
    layer.in = in.weights, layer.select = select.weights, layer.time_step = time_step.weights;
    layer.out = out.weights, layer.norm = norm.data();
    layer.normed = norm_eps || !state_norms_.empty(), layer.norm_eps = norm_eps;
    require(state_norms_.empty() || state_norms_.size() == 3, "three norms of states, or none");
    for (size_t i = 0; i < state_norms_.size(); i++) {
      require(int64_t(state_norms_[i].size()) == (i ? s.state : s.rank),
              "ssm_dt_norm, ssm_b_norm or ssm_c_norm: wrong size");
      layer.state_norms[i] = state_norms_[i].data();
    }
  }
  SSMLayer layer;

 private:
  StoredMatrix select_, time_step_;
  Matrix a_;
  Floats d_;
  StateRows state_rows_;
  std::vector<Floats> state_norms_;
};

class HeadMemory : public ConvolutionMemory {
 public:
  HeadMemory(const StoredMatrix& in, const StoredMatrix& out, std::optional<Floats> norm,
             Matrix conv, Floats conv_bias, Floats time_bias, Floats a, Floats d, int64_t groups,
             float least_step, std::optional<Floats> gated_norm, int64_t norm_groups,
             StateRows conv_rows, StateRows state_rows)
      : ConvolutionMemory{in, out, norm, conv, conv_bias, conv_rows},
        time_bias_(time_bias),
        a_(a),
        d_(d),
        gated_norm_(gated_norm),
        state_rows_(state_rows) {
    HeadSpace s;
    s.conv = checked("ssm_conv1d");
    s.inner = int64_t(state_rows.shape(1)), s.state = int64_t(state_rows.shape(2));
    s.heads = int64_t(a.size()), s.groups = groups;
    require(s.heads > 0 && s.inner > 0 && s.state > 0 && s.inner % s.heads == 0,
            "ssm_a: the state's channels do not divide into these heads");
    require(groups > 0 && s.heads % groups == 0, "heads do not divide into these groups");
    require(s.conv.channels == s.inner + 2 * groups * s.state,
            "ssm_conv1d has not the channels of the values, B and C");
    require(int64_t(time_bias.size()) == s.heads && int64_t(d.size()) == s.heads,
            "ssm_dt.bias or ssm_d: wrong size");
    require(norm_groups > 0 && s.inner % norm_groups == 0 &&
                (!gated_norm || int64_t(gated_norm->size()) == s.inner),
            "ssm_norm: wrong size");
    require(state_rows.shape(0) == conv_rows.shape(0), "rows of states");
    sizes(s.projected(), s.inner, "ssm_in", "ssm_out");
    s.time_bias = time_bias.data(), s.a = a.data(), s.d = d.data(), s.least_step = least_step;
    s.norm = pointer(gated_norm), s.norm_groups = norm_groups;
    s.state_rows = state_rows.data();
    layer = {in.weights, out.weights, pointer(norm), s};
  }
  HeadLayer layer;

 private:
  Floats time_bias_, a_, d_;
  std::optional<Floats> gated_norm_;
  StateRows state_rows_;
};

class ShortMemory : public ConvolutionMemory {
 public:
  ShortMemory(const StoredMatrix& in, const StoredMatrix& out, Floats norm, Matrix conv,
              Floats conv_bias, StateRows conv_rows)
      : ConvolutionMemory{in, out, norm, conv, conv_bias, conv_rows} {
    const Convolution c = checked("shortconv.conv");
    sizes(3 * c.channels, c.channels, "shortconv.in_proj", "shortconv.out_proj");
    layer = {in.weights, out.weights, norm.data(), c};
  }
  ShortLayer layer;
};

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
    require(key_heads > 0 && d.heads > 0 && d.heads % key_heads == 0 && d.dim > 0 && d.dim_v > 0,
            d.heads, " heads of values for ", key_heads, " of keys");
    d.conv = checked("ssm_conv1d");
    require(d.conv.channels == d.channels(),
            "ssm_conv1d has not the channels of queries, keys and values");
    require(int64_t(time_bias.size()) == d.heads, "ssm_dt.bias: wrong size");
    require(state_rows.shape(0) == conv_rows.shape(0) &&
                int64_t(state_rows.shape(1)) == d.heads * d.dim_v,
            "rows of states");
    sizes(d.channels(), d.heads * d.dim_v, "attn_qkv", "ssm_out");
    require_size(gate, d.heads * d.dim_v, qkv.weights.in, "attn_gate");
    require_size(beta, d.heads, qkv.weights.in, "ssm_beta");
    require_size(decay, d.heads, qkv.weights.in, "ssm_alpha");
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
