// A layer, or a whole decoder, as Python's objects describe it (aleator/models/layers/parts.py,
// recurrent_parts.py): attributes are read by name, sizes are checked, and the memory that they
// name is kept alive.
#pragma once

#include <memory>

#include "layers/experts.hpp"
#include "layers/latent.hpp"
#include "layers/recurrent_layers.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

using Kept = std::vector<std::shared_ptr<const void>>;
// Numbers of any shape, rows one after the other.
using Values = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// Messages begin with `at`, where it stands: names of tensors are those of a layer "blk.N.".
class Given {
 public:
  Given(nb::object of, Kept& kept, std::string at = "")
      : of_(std::move(of)), kept_(&kept), at_(std::move(at)) {}

  bool none() const { return of_.is_none(); }
  bool has(const char* name) const { return !attribute(name).is_none(); }
  bool knows(const char* name) const { return nb::hasattr(of_, name); }
  Given part(const char* name) const { return {attribute(name), *kept_, at_}; }
  template <class T>
  T get(const char* name) const {
    return part(name).value<T>(name);
  }
  template <class T>
  T value(const std::string& name) const {
    try {
      return nb::cast<T>(of_);
    } catch (const nb::cast_error&) {
      refuse(at_, name, " is of another type");
    }
  }

  const std::string& at() const { return at_; }
  template <typename... Parts>
  void require(bool holds, Parts... parts) const {
    if (!holds) refuse(at_, parts...);
  }

  // Those of a list; none where it is None.
  std::vector<Given> parts(const char* name) const {
    std::vector<Given> made;
    if (has(name))
      for (const nb::handle each : attribute(name)) made.push_back({nb::borrow(each), *kept_, at_});
    return made;
  }
  // Those of a list, or of lists in one, which have one input; none where it is None.
  std::vector<Weights> matrices(const char* name) const {
    std::vector<Weights> made;
    for (const Given& each : parts(name)) each.add_to(made);
    for (const Weights& w : made)
      require(w.order == made[0].order, name, " has columns in several orders");
    return made;
  }
  // The only one of a list; without data where it is None.
  Weights matrix(const char* name) const {
    const std::vector<Weights> all = matrices(name);
    require(all.size() <= 1, name, " has ", all.size(), " matrices");
    return all.empty() ? Weights{} : all[0];
  }
  Weights matrix(const char* name, int64_t out, int64_t in, const std::string& tensor) const {
    return sized(matrix(name), out, in, tensor);
  }
  Weights sized(const Weights& w, int64_t out, int64_t in, const std::string& tensor) const {
    require(w.out == out && w.in == in, tensor, ".weight is [", w.out, ", ", w.in, "], not [", out,
            ", ", in, "]");
    return w;
  }
  // How many numbers there are.
  int64_t size(const char* name) const { return has(name) ? int64_t(get<Values>(name).size()) : 0; }
  // n numbers; null where they are None.
  const float* vector(const char* name, int64_t n, const std::string& tensor) const {
    return has(name) ? part(name).numbers(n, tensor) : nullptr;
  }
  // The same where they may not be None.
  const float* needed(const char* name, int64_t n, const std::string& tensor) const {
    require(has(name), tensor, " is missing");
    return part(name).numbers(n, tensor);
  }
  const float* numbers(int64_t n, const std::string& tensor) const {
    const Values* all = keep(value<Values>(tensor));
    require(int64_t(all->size()) == n, tensor, " has ", all->size(), " elements, not ", n);
    return all->data();
  }
  template <class T>
  const T* keep(T given) const {
    const auto kept = std::make_shared<const T>(std::move(given));
    kept_->push_back(kept);
    return kept.get();
  }

 private:
  nb::object attribute(const char* name) const { return nb::getattr(of_, name); }
  void add_to(std::vector<Weights>& made) const {
    if (knows("matrix")) {
      made.push_back(keep(get<StoredMatrix>("matrix"))->weights);
    } else {
      for (const nb::handle each : of_) Given(nb::borrow(each), *kept_).add_to(made);
    }
  }
  nb::object of_;
  Kept* kept_;
  std::string at_;
};

// --- latents ---

// latent: a Latent of aleator/models/layers/parts.py, in a decoder of width n_embd.
inline LatentLayer latent_layer(const Given& latent, int64_t n_embd, int64_t heads) {
  const Given config = latent.part("config");
  LatentLayer l;
  l.heads = heads, l.rank = config.get<int64_t>("rank"), l.rotated = latent.get<int64_t>("rotated");
  l.plain = config.get<int64_t>("head_dim") - l.rotated;
  l.dim_v = config.get<int64_t>("head_dim_v");
  latent.require(heads >= 1 && l.plain >= 1 && l.dim_v >= 1 && l.rank >= 1 && l.rotated >= 2,
                 "sizes of compressed keys are out of range");
  l.compress = latent.matrix("compress", l.rank + l.rotated, n_embd, "attn_kv_a_mqa");
  l.norm = latent.needed("norm", l.rank, "attn_kv_a_norm.weight");
  l.query = latent.matrix("query"), l.query_up = latent.matrix("query_up");
  const int64_t width = heads * l.dim(), low = l.query.out;
  l.query_norm = latent.vector("query_norm", low, "attn_q_a_norm.weight");
  latent.require(bool(l.query_up.data) == bool(l.query_norm),
                 "attn_q_b and attn_q_a_norm go together");
  if (l.query_up.data) {
    latent.sized(l.query, low, n_embd, "attn_q_a");
    latent.sized(l.query_up, width, low, "attn_q_b");
  } else {
    latent.sized(l.query, width, n_embd, "attn_q");
  }
  l.expand = latent.matrix("expand");
  l.key_up = latent.matrices("key_up"), l.value_up = latent.matrices("value_up");
  latent.require(l.expand.data
                     ? l.key_up.empty() && l.value_up.empty()
                     : int64_t(l.key_up.size()) == heads && int64_t(l.value_up.size()) == heads,
                 "either attn_kv_b, or attn_k_b and attn_v_b of each head");
  if (l.expand.data) latent.sized(l.expand, heads * (l.plain + l.dim_v), l.rank, "attn_kv_b");
  for (const Weights& w : l.key_up) {
    latent.sized(w, l.rank, l.plain, "attn_k_b");
    latent.require(w.type == l.key_up[0].type, "attn_k_b in several types");
  }
  for (const Weights& w : l.value_up) {
    latent.sized(w, l.dim_v, l.rank, "attn_v_b");
    latent.require(w.type == l.value_up[0].type, "attn_v_b in several types");
  }
  return l;
}

// --- mixtures of experts ---

inline Gate gate_named(const std::string& name, const char* parameter = "gate") {
  return value_named<Gate>(
      parameter, {"silu", "gelu", "gelu_rounded", "silu_clamped", "gelu_exact", "relu_squared"},
      name);
}

inline Scores scores_named(const std::string& name) {
  return value_named<Scores>("scores", {"softmax", "sigmoid", "chosen softmax", "chosen sigmoid"},
                             name);
}

// Of layer `at`: there are as many experts to choose from as are chosen.
inline void require_choice(const Routing& r, const std::string& at) {
  require(r.n_experts >= 1 && r.n_experts <= 1 << 16, at, "ffn_gate_exps: no experts, or too many");
  require(r.n_groups >= 1 && r.n_experts % r.n_groups == 0 && r.n_groups_used >= 1 &&
              r.n_groups_used <= r.n_groups && r.n_group_best >= 1 && r.n_group_best <= 2,
          at, "ffn_gate_inp: experts do not divide into these groups");
  require(r.n_used >= 1 && r.n_used <= r.n_experts / r.n_groups * r.n_groups_used, at,
          "ffn_gate_inp: more experts for a token than there are to choose from");
}

// part: a FeedForward of aleator/models/layers/parts.py, in a decoder of width e.
inline Expert expert(const Given& part, int64_t e, const char* tensor) {
  const std::vector<Weights> up = part.matrices("gate_up");
  part.require(up.size() == 1 || up.size() == 2, tensor, ": neither gate and up, nor up alone");
  const Expert x{up[0], up.size() == 2 ? up[1] : Weights{}, part.matrix("down")};
  part.require(x.gate.in == e && (!x.gated() || (x.up.in == e && x.up.out == x.gate.out)) &&
                   x.down.out == e && x.down.in == x.gate.out,
               tensor, ": gate, up and down do not fit each other, or the width");
  return x;
}

// given: a Mixture of aleator/models/layers/parts.py, in a decoder of width e.
inline Mixture mixture(const Given& given, int64_t e) {
  const Given config = given.part("config"), norms = given.part("norms");
  Mixture m;
  for (const Given& each : given.parts("experts"))
    m.experts.push_back(expert(each, e, "ffn_gate_exps"));
  Routing& r = m.routing;
  r.n_experts = int64_t(m.experts.size()), r.n_used = config.get<int64_t>("n_used");
  r.n_groups = config.get<int64_t>("n_groups");
  r.n_groups_used = config.get<int64_t>("n_groups_used");
  r.n_group_best = config.get<int64_t>("n_group_best");
  r.scores = scores_named(config.get<std::string>("scores"));
  r.normalised = config.get<bool>("normalised"), r.scale = config.get<float>("scale");
  require_choice(r, given.at());
  const Expert& first = m.experts[0];
  for (const Expert& each : m.experts)
    given.require(each.gate.out == first.gate.out && each.gate.type == first.gate.type &&
                      each.gated() == first.gated() && each.up.type == first.up.type &&
                      each.down.type == first.down.type,
                  "ffn_gate_exps: experts differ in width or type");
  m.router = given.matrix("router", r.n_experts, e, "ffn_gate_inp");
  r.bias = given.vector("choice_bias", r.n_experts, "exp_probs_b.bias");
  r.scales = given.vector("scales", r.n_experts, "ffn_down_exps.scale");
  if (given.has("shared")) m.shared = expert(given.part("shared"), e, "ffn_gate_shexp");
  if (const float* row = given.vector("shared_router", e, "ffn_gate_inp_shexp.weight"))
    m.shared_router = {reinterpret_cast<const uint8_t*>(row), Stored::f32, 1, e, 4 * e};
  m.weighs_input = config.get<bool>("weighs_input");
  m.gate = gate_named(given.get<std::string>("gate"));
  if (!norms.none()) {
    const char* tensor = "a norm of experts beside a dense part";
    m.router_norm = norms.needed("router", e, tensor);
    m.expert_norm = norms.needed("expert", e, tensor);
    m.dense_post_norm = norms.needed("dense_post", e, tensor);
    m.expert_post_norm = norms.needed("expert_post", e, tensor);
  }
  return m;
}

// --- layers that keep a state ---

using StateRows = Array<float, 3>;

// layer: one of aleator/models/layers/recurrent_parts.py, of a decoder of width n_embd; the rows of
// the cache: [rows, channels, width - 1] of its convolution, [rows, channels, numbers] of its
// state.
struct GivenState {
  Given layer;
  int64_t n_embd;
  StateRows conv_rows, state_rows;

  RecurrentLayer made(const std::string& kind) const {
    if (kind == "heads") return heads();
    if (kind == "short convolution") return short_convolution();
    if (kind == "delta net") return delta_net();
    layer.require(kind == "state space", "no such kind of states: ", kind);
    return state_space();
  }

  HeadLayer heads() const {
    const Given config = layer.part("ssm");
    HeadSpace s;
    s.inner = config.get<int64_t>("d_inner"), s.state = config.get<int64_t>("d_state");
    s.heads = config.get<int64_t>("heads"), s.groups = config.get<int64_t>("groups");
    layer.require(s.heads > 0 && s.inner > 0 && s.state > 0 && s.inner % s.heads == 0,
                  "ssm_a: the state's channels do not divide into these heads");
    layer.require(s.groups > 0 && s.heads % s.groups == 0, "heads do not divide into these groups");
    s.conv = convolution("ssm_conv1d", s.inner + 2 * s.groups * s.state);
    s.time_bias = layer.needed("time_bias", s.heads, "ssm_dt.bias");
    s.a = layer.needed("a", s.heads, "ssm_a"), s.d = layer.needed("d", s.heads, "ssm_d");
    s.least_step = config.get<float>("least_step");
    s.norm_groups = layer.get<int64_t>("norm_groups");
    layer.require(s.norm_groups > 0 && s.inner % s.norm_groups == 0, "ssm_norm: wrong size");
    s.norm = layer.vector("gated_norm", s.inner, "ssm_norm.weight");
    s.state_rows = rows(s.inner, s.state);
    return {layer.matrix("project", s.projected(), n_embd, "ssm_in"),
            layer.matrix("output", n_embd, s.inner, "ssm_out"), norm(), s};
  }

  SSMLayer state_space() const {
    const Given config = layer.part("ssm");
    SSMLayer l;
    StateSpace& s = l.space;
    s.inner = config.get<int64_t>("d_inner"), s.state = config.get<int64_t>("d_state");
    s.rank = config.get<int64_t>("dt_rank");
    s.conv = convolution("ssm_conv1d", s.inner);
    const auto rates = layer.get<Array<const float, 2>>("a");
    layer.require(int64_t(rates.shape(0)) == s.inner && int64_t(rates.shape(1)) == s.state,
                  "ssm_a: wrong size");
    s.a = layer.keep(rates)->data(), s.d = layer.needed("d", s.inner, "ssm_d");
    s.state_rows = rows(s.inner, s.state);
    l.in = layer.matrix("project", 2 * s.inner, n_embd, "ssm_in");
    l.select = layer.matrix("select", s.selected(), s.inner, "ssm_x");
    l.time_step = layer.matrix("time_step", s.inner, s.rank, "ssm_dt");
    l.out = layer.matrix("output", n_embd, s.inner, "ssm_out"), l.norm = norm();
    const std::vector<Given> norms = layer.parts("norms");
    l.norm_eps = config.get<std::optional<float>>("norm_eps");
    l.normed = l.norm_eps || !norms.empty();
    layer.require(norms.empty() || norms.size() == 3, "three norms of states, or none");
    for (size_t i = 0; i < norms.size(); i++)
      l.state_norms[i] =
          norms[i].numbers(i ? s.state : s.rank, "ssm_dt_norm, ssm_b_norm or ssm_c_norm");
    return l;
  }

  ShortLayer short_convolution() const {
    const Convolution c = convolution("shortconv.conv", n_embd);
    return {layer.matrix("project", 3 * n_embd, n_embd, "shortconv.in_proj"),
            layer.matrix("output", n_embd, n_embd, "shortconv.out_proj"), norm(), c};
  }

  DeltaNetLayer delta_net() const {
    const Given config = layer.part("net");
    DeltaNetLayer l;
    DeltaNet& d = l.net;
    d.key_heads = config.get<int64_t>("n_key_heads"), d.heads = config.get<int64_t>("n_heads");
    d.dim = config.get<int64_t>("head_dim"), d.dim_v = config.get<int64_t>("head_dim_v");
    d.tiled = config.get<bool>("tiled"), d.eps = config.get<float>("unit_eps");
    layer.require(
        d.key_heads > 0 && d.heads > 0 && d.heads % d.key_heads == 0 && d.dim > 0 && d.dim_v > 0,
        d.heads, " heads of values for ", d.key_heads, " of keys");
    d.by_channel = config.get<bool>("channel_decays");
    d.conv = convolution("ssm_conv1d", d.channels());
    d.a = layer.needed("a", d.heads, "ssm_a");
    d.time_bias = layer.needed("time_bias", d.decays(), "ssm_dt.bias");
    d.norm = layer.needed("head_norm", d.dim_v, "ssm_norm.weight");
    const int64_t wide = d.heads * d.dim_v;
    d.state_rows = rows(wide, d.dim);
    l.beta = layer.matrix("beta", d.heads, n_embd, "ssm_beta");
    l.out = layer.matrix("output", n_embd, wide, "ssm_out or attn_output"), l.norm = norm();
    if (!d.by_channel) {
      l.qkv = layer.matrix("qkv", d.channels(), n_embd, "attn_qkv");
      l.gate = layer.matrix("gate", wide, n_embd, "attn_gate");
      l.decay = layer.matrix("decay", d.heads, n_embd, "ssm_alpha");
      return l;
    }
    const std::vector<Weights> apart = layer.matrices("qkv");
    layer.require(apart.size() == 3, "attn_q, attn_k and attn_v are three matrices");
    l.qkv = layer.sized(apart[0], d.keys_at(), n_embd, "attn_q");
    l.k = layer.sized(apart[1], d.keys_at(), n_embd, "attn_k");
    l.v = layer.sized(apart[2], wide, n_embd, "attn_v");
    l.gate = layer.matrix("gate"), l.decay = layer.matrix("decay");
    layer.require(l.gate.in == n_embd && l.decay.in == n_embd, "ssm_g_a or ssm_f_a: wrong size");
    l.gate_up = layer.matrix("gate_up", wide, l.gate.out, "ssm_g_b");
    l.decay_up = layer.matrix("decay_up", d.decays(), l.decay.out, "ssm_f_b");
    return l;
  }

 private:
  const float* norm() const { return layer.vector("norm", n_embd, "attn_norm.weight"); }
  float* rows(int64_t channels, int64_t n) const {
    layer.require(state_rows.shape(0) == conv_rows.shape(0) &&
                      int64_t(state_rows.shape(1)) == channels && int64_t(state_rows.shape(2)) == n,
                  "rows of states");
    return state_rows.data();
  }
  // Python has its weights as [channels, width], and no biases where they are 0.
  Convolution convolution(const char* tensor, int64_t channels) const {
    const auto weight = layer.get<Array<const float, 2>>("conv_weight");
    const int64_t width = int64_t(weight.shape(1));
    layer.require(width >= 2 && width <= widest_convolution &&
                      int64_t(weight.shape(0)) == channels &&
                      int64_t(conv_rows.shape(1)) == channels &&
                      int64_t(conv_rows.shape(2)) == width - 1 && conv_rows.shape(0) > 0,
                  tensor,
                  ": weight [channels, width] and rows [rows, channels, width - 1] do not fit each "
                  "other, or the layer");
    std::vector<float> turned((width + 1) * channels);
    const float* bias = layer.vector("conv_bias", channels, tensor + std::string(".bias"));
    for (int64_t c = 0; c < channels; c++) {
      for (int64_t k = 0; k < width; k++) turned[k * channels + c] = weight(c, k);
      if (bias) turned[width * channels + c] = bias[c];
    }
    const float* own = layer.keep(std::move(turned))->data();
    return {channels, width, own, own + width * channels, conv_rows.data()};
  }
};
}  // namespace aleator
