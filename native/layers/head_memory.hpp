// What Python made of a layer with one decay for each head, and of one with a short convolution:
// sizes are checked once, and the memory is kept alive.
#pragma once

#include "layers/ssm_memory.hpp"

namespace aleator {

// The parts that both have.
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
            std::string(name) +
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
    require(in.weights.in == e, at + "the layer's width differs from the decoder's");
    require(n_rows == 0 || n_rows == int64_t(rows.shape(0)),
            at + "number of rows differs from the layers before");
  }
  int64_t n_rows() const { return int64_t(rows.shape(0)); }
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
    s.norm = gated_norm ? gated_norm->data() : nullptr, s.norm_groups = norm_groups;
    s.state_rows = state_rows.data();
    layer = {in.weights, out.weights, norm ? norm->data() : nullptr, s};
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

}  // namespace aleator
