// Layers that keep a state as Python describes them: every size is checked here.
#pragma once

#include "layers/given.hpp"
#include "layers/recurrent_layers.hpp"

namespace aleator {

using StateRows = Array<float, 3>;

// layer: one of aleator/models/layers/recurrent_parts.py, number `at` of a decoder of width
// n_embd; the rows of the cache: [rows, channels, width - 1] of its convolution, [rows, channels,
// numbers] of its state.
struct GivenState {
  Given layer;
  std::string at;
  int64_t n_embd;
  StateRows conv_rows, state_rows;

  RecurrentLayer made(const std::string& kind) const {
    if (kind == "heads") return heads();
    if (kind == "short convolution") return short_convolution();
    if (kind == "delta net") return delta_net();
    require(kind == "state space", at, "no such kind of states: ", kind);
    return state_space();
  }

  HeadLayer heads() const {
    const Given config = layer.part("ssm");
    HeadSpace s;
    s.inner = config.get<int64_t>("d_inner"), s.state = config.get<int64_t>("d_state");
    s.heads = config.get<int64_t>("heads"), s.groups = config.get<int64_t>("groups");
    require(s.heads > 0 && s.inner > 0 && s.state > 0 && s.inner % s.heads == 0, at,
            "ssm_a: the state's channels do not divide into these heads");
    require(s.groups > 0 && s.heads % s.groups == 0, at, "heads do not divide into these groups");
    s.conv = convolution("ssm_conv1d", s.inner + 2 * s.groups * s.state);
    s.time_bias = needed("time_bias", s.heads, "ssm_dt.bias");
    s.a = needed("a", s.heads, "ssm_a"), s.d = needed("d", s.heads, "ssm_d");
    s.least_step = config.get<float>("least_step");
    s.norm_groups = layer.get<int64_t>("norm_groups");
    require(s.norm_groups > 0 && s.inner % s.norm_groups == 0, at, "ssm_norm: wrong size");
    s.norm = vector("gated_norm", s.inner, "ssm_norm.weight");
    s.state_rows = rows(s.inner, s.state);
    return {matrix("project", s.projected(), n_embd, "ssm_in"),
            matrix("output", n_embd, s.inner, "ssm_out"), norm(), s};
  }

  SSMLayer state_space() const {
    const Given config = layer.part("ssm");
    SSMLayer l;
    StateSpace& s = l.space;
    s.inner = config.get<int64_t>("d_inner"), s.state = config.get<int64_t>("d_state");
    s.rank = config.get<int64_t>("dt_rank");
    s.conv = convolution("ssm_conv1d", s.inner);
    const auto rates = layer.get<Array<const float, 2>>("a");
    require(int64_t(rates.shape(0)) == s.inner && int64_t(rates.shape(1)) == s.state, at,
            "ssm_a: wrong size");
    s.a = layer.keep(rates)->data(), s.d = needed("d", s.inner, "ssm_d");
    s.state_rows = rows(s.inner, s.state);
    l.in = matrix("project", 2 * s.inner, n_embd, "ssm_in");
    l.select = matrix("select", s.selected(), s.inner, "ssm_x");
    l.time_step = matrix("time_step", s.inner, s.rank, "ssm_dt");
    l.out = matrix("output", n_embd, s.inner, "ssm_out"), l.norm = norm();
    const std::vector<Given> norms = layer.parts("norms");
    l.norm_eps = config.get<std::optional<float>>("norm_eps");
    l.normed = l.norm_eps || !norms.empty();
    require(norms.empty() || norms.size() == 3, at, "three norms of states, or none");
    for (size_t i = 0; i < norms.size(); i++)
      l.state_norms[i] =
          norms[i].numbers(i ? s.state : s.rank, at + "ssm_dt_norm, ssm_b_norm or ssm_c_norm");
    return l;
  }

  ShortLayer short_convolution() const {
    const Convolution c = convolution("shortconv.conv", n_embd);
    return {matrix("project", 3 * n_embd, n_embd, "shortconv.in_proj"),
            matrix("output", n_embd, n_embd, "shortconv.out_proj"), norm(), c};
  }

  DeltaNetLayer delta_net() const {
    const Given config = layer.part("net");
    DeltaNetLayer l;
    DeltaNet& d = l.net;
    d.key_heads = config.get<int64_t>("n_key_heads"), d.heads = config.get<int64_t>("n_heads");
    d.dim = config.get<int64_t>("head_dim"), d.dim_v = config.get<int64_t>("head_dim_v");
    d.tiled = config.get<bool>("tiled"), d.eps = config.get<float>("unit_eps");
    require(
        d.key_heads > 0 && d.heads > 0 && d.heads % d.key_heads == 0 && d.dim > 0 && d.dim_v > 0,
        at, d.heads, " heads of values for ", d.key_heads, " of keys");
    d.conv = convolution("ssm_conv1d", d.channels());
    d.a = needed("a", d.heads, "ssm_a"), d.time_bias = needed("time_bias", d.heads, "ssm_dt.bias");
    d.norm = needed("head_norm", d.dim_v, "ssm_norm.weight");
    const int64_t wide = d.heads * d.dim_v;
    d.state_rows = rows(wide, d.dim);
    l.qkv = matrix("qkv", d.channels(), n_embd, "attn_qkv");
    l.gate = matrix("gate", wide, n_embd, "attn_gate");
    l.beta = matrix("beta", d.heads, n_embd, "ssm_beta");
    l.decay = matrix("decay", d.heads, n_embd, "ssm_alpha");
    l.out = matrix("output", n_embd, wide, "ssm_out"), l.norm = norm();
    return l;
  }

 private:
  Weights matrix(const char* name, int64_t out, int64_t in, const char* tensor) const {
    return sized(layer.matrix(name), out, in, at + tensor);
  }
  const float* vector(const char* name, int64_t n, const char* tensor) const {
    return layer.vector(name, n, at + tensor);
  }
  const float* needed(const char* name, int64_t n, const char* tensor) const {
    return layer.needed(name, n, at + tensor);
  }
  const float* norm() const { return vector("norm", n_embd, "attn_norm.weight"); }
  float* rows(int64_t channels, int64_t n) const {
    require(state_rows.shape(0) == conv_rows.shape(0) && int64_t(state_rows.shape(1)) == channels &&
                int64_t(state_rows.shape(2)) == n,
            at, "rows of states");
    return state_rows.data();
  }
  // Python has its weights as [channels, width], and no biases where they are 0.
  Convolution convolution(const char* tensor, int64_t channels) const {
    const auto weight = layer.get<Array<const float, 2>>("conv_weight");
    const int64_t width = int64_t(weight.shape(1));
    require(width >= 2 && width <= widest_convolution && int64_t(weight.shape(0)) == channels &&
                int64_t(conv_rows.shape(1)) == channels &&
                int64_t(conv_rows.shape(2)) == width - 1 && conv_rows.shape(0) > 0,
            at, tensor,
            ": weight [channels, width] and rows [rows, channels, width - 1] do not fit each "
            "other, or the layer");
    std::vector<float> turned((width + 1) * channels);
    const float* bias = layer.vector("conv_bias", channels, at + tensor + ".bias");
    for (int64_t c = 0; c < channels; c++) {
      for (int64_t k = 0; k < width; k++) turned[k * channels + c] = weight(c, k);
      if (bias) turned[width * channels + c] = bias[c];
    }
    const float* own = layer.keep(std::move(turned))->data();
    return {channels, width, own, own + width * channels, conv_rows.data()};
  }
};

}  // namespace aleator
