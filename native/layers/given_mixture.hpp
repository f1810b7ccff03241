// Mixtures of experts as Python describes them: every size is checked here.
#pragma once

#include "layers/experts.hpp"
#include "layers/given.hpp"

namespace aleator {

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

// part: a FeedForward of aleator/models/layers/parts.py with a gate, in a decoder of width e.
inline Expert expert(const Given& part, int64_t e, const std::string& tensor) {
  const std::vector<Weights> up = part.matrices("gate_up");
  require(up.size() == 2, tensor, ": not a gate, up and down");
  const Expert x{up[0], up[1], part.matrix("down")};
  require(x.gate.in == e && x.up.in == e && x.up.out == x.gate.out && x.down.out == e &&
              x.down.in == x.gate.out,
          tensor, ": gate, up and down do not fit each other, or the width");
  return x;
}

// given: a Mixture of aleator/models/layers/parts.py, in layer `at` of a decoder of width e.
inline Mixture mixture(const Given& given, const std::string& at, int64_t e) {
  const Given config = given.part("config"), norms = given.part("norms");
  Mixture m;
  for (const Given& each : given.parts("experts"))
    m.experts.push_back(expert(each, e, at + "ffn_gate_exps"));
  Routing& r = m.routing;
  r.n_experts = int64_t(m.experts.size()), r.n_used = config.get<int64_t>("n_used");
  r.n_groups = config.get<int64_t>("n_groups");
  r.n_groups_used = config.get<int64_t>("n_groups_used");
  r.n_group_best = config.get<int64_t>("n_group_best");
  r.scores = scores_named(config.get<std::string>("scores"));
  r.normalised = config.get<bool>("normalised"), r.scale = config.get<float>("scale");
  require_choice(r, at);
  const Expert& first = m.experts[0];
  for (const Expert& each : m.experts)
    require(each.gate.out == first.gate.out && each.gate.type == first.gate.type &&
                each.up.type == first.up.type && each.down.type == first.down.type,
            at, "ffn_gate_exps: experts differ in width or type");
  m.router = sized(given.matrix("router"), r.n_experts, e, at + "ffn_gate_inp");
  r.bias = given.vector("choice_bias", r.n_experts, at + "exp_probs_b.bias");
  r.scales = given.vector("scales", r.n_experts, at + "ffn_down_exps.scale");
  if (given.has("shared")) m.shared = expert(given.part("shared"), e, at + "ffn_gate_shexp");
  m.shared_router = given.vector("shared_router", e, at + "ffn_gate_inp_shexp.weight");
  m.weighs_input = config.get<bool>("weighs_input");
  m.gate = gate_named(given.get<std::string>("gate"));
  if (!norms.none()) {
    const std::string tensor = at + "a norm of experts beside a dense part";
    m.router_norm = norms.needed("router", e, tensor);
    m.expert_norm = norms.needed("expert", e, tensor);
    m.dense_post_norm = norms.needed("dense_post", e, tensor);
    m.expert_post_norm = norms.needed("expert_post", e, tensor);
  }
  return m;
}

}  // namespace aleator
