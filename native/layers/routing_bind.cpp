// Python's side of routing, for tests of it alone.
#include "bind.hpp"
#include "layers/given.hpp"

namespace aleator {

static void route_rows(Array<float, 2> logits, Array<int32_t, 2> chosen, Array<float, 2> weights,
                       const std::string& scores, bool normalised, float scale, int64_t n_groups,
                       int64_t n_groups_used, int64_t n_group_best, std::optional<Floats> bias,
                       std::optional<Floats> scales) {
  Routing r{.n_experts = int64_t(logits.shape(1)),
            .n_used = int64_t(chosen.shape(1)),
            .n_groups = n_groups,
            .n_groups_used = n_groups_used,
            .n_group_best = n_group_best,
            .scores = scores_named(scores),
            .normalised = normalised,
            .scale = scale,
            .bias = pointer(bias),
            .scales = pointer(scales)};
  require(!bias || int64_t(bias->size()) == r.n_experts, "bias must have a number for each expert");
  require(!scales || int64_t(scales->size()) == r.n_experts,
          "scales must have a number for each expert");
  require_choice(r, "");
  const int64_t tokens = int64_t(logits.shape(0));
  require(int64_t(chosen.shape(0)) == tokens && int64_t(weights.shape(0)) == tokens &&
              int64_t(weights.shape(1)) == r.n_used,
          "chosen and weights must be [tokens, n_used]");
  std::vector<float> keys(r.n_experts + r.n_groups);
  for (int64_t t = 0; t < tokens; t++)
    route_(r, logits.data() + t * r.n_experts, keys.data(), chosen.data() + t * r.n_used,
           weights.data() + t * r.n_used);
}

ALEATOR_BIND(routing) {
  m.def("route", &route_rows, "logits"_a.noconvert(), "chosen"_a.noconvert(),
        "weights"_a.noconvert(), "scores"_a, "normalised"_a, "scale"_a, "n_groups"_a,
        "n_groups_used"_a, "n_group_best"_a, "bias"_a.none(), "scales"_a.none() = nb::none(),
        "Which experts tokens go through: logits float32 [T, experts], overwritten; writes chosen "
        "int32 and weights float32 [T, n_used], best first.");
}

}  // namespace aleator
