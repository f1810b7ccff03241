// Python's side of mixtures of experts: every size is checked here, and the memory kept alive.
#pragma once

#include <algorithm>

#include "layers/cache_memory.hpp"
#include "layers/experts.hpp"
#include "layers/stored_matrix.hpp"

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

struct MixtureMemory {
  StoredMatrix router;
  std::vector<StoredMatrix> matrices;  // gate, up and down of every expert, then the shared one's
  std::optional<Floats> bias, shared_router, scales;
  std::vector<Floats> beside;  // the norms of Mixture where a dense part stands beside, in order
  Mixture mixture;

  MixtureMemory(const StoredMatrix& routes, nb::list experts, std::optional<nb::tuple> shared)
      : router(routes) {
    for (const nb::handle expert : experts) add(nb::cast<nb::tuple>(expert), "experts");
    if (shared) add(*shared, "shared");
    const size_t n = nb::len(experts);
    const auto expert = [&](size_t i) {
      return Expert{matrices[3 * i].weights, matrices[3 * i + 1].weights,
                    matrices[3 * i + 2].weights};
    };
    for (size_t i = 0; i < n; i++) mixture.experts.push_back(expert(i));
    if (shared) mixture.shared = expert(n);
    mixture.router = router.weights;
    mixture.routing.n_experts = int64_t(n);
  }

  // Layer `at` of a decoder of width e.
  const Mixture& checked(const std::string& at, int64_t e) {
    Routing& r = mixture.routing;
    require_choice(r, at);
    require_size(router, r.n_experts, e, at + "ffn_gate_inp");
    const Expert& first = mixture.experts[0];
    for (const Expert& expert : mixture.experts) {
      sizes(expert, e, at + "ffn_gate_exps");
      require(expert.gate.out == first.gate.out && expert.gate.type == first.gate.type &&
                  expert.up.type == first.up.type && expert.down.type == first.down.type,
              at, "ffn_gate_exps: experts differ in width or type");
    }
    if (mixture.shared.gate.data) sizes(mixture.shared, e, at + "ffn_gate_shexp");
    r.bias = vector(bias, r.n_experts, at + "exp_probs_b.bias");
    r.scales = vector(scales, r.n_experts, at + "ffn_down_exps.scale");
    mixture.shared_router = vector(shared_router, e, at + "ffn_gate_inp_shexp.weight");
    require(beside.empty() || beside.size() == 4, at, "four norms beside a dense part");
    for (const Floats& norm : beside) vector(norm, e, at + "a norm of experts beside a dense part");
    if (!beside.empty()) {
      mixture.router_norm = beside[0].data(), mixture.expert_norm = beside[1].data();
      mixture.dense_post_norm = beside[2].data(), mixture.expert_post_norm = beside[3].data();
    }
    return mixture;
  }

 private:
  void add(const nb::tuple& expert, const char* name) {
    require(expert.size() == 3, name, " must be gate, up and down");
    for (const nb::handle matrix : expert) matrices.push_back(nb::cast<StoredMatrix>(matrix));
  }
  static void sizes(const Expert& x, int64_t e, const std::string& name) {
    require(x.gate.in == e && x.up.in == e && x.up.out == x.gate.out && x.down.out == e &&
                x.down.in == x.gate.out,
            name, ": gate, up and down do not fit each other, or the width");
  }
  static const float* vector(const std::optional<Floats>& v, int64_t n, const std::string& name) {
    require(!v || int64_t(v->size()) == n, name, " must have ", n, " elements");
    return pointer(v);
  }
};

}  // namespace aleator
