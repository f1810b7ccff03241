// Python's side of routing, for tests of it alone.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <vector>

#include "bind.hpp"
#include "layers/mixture_memory.hpp"

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
            .bias = bias ? bias->data() : nullptr,
            .scales = scales ? scales->data() : nullptr};
  require(!bias || int64_t(bias->size()) == r.n_experts, "bias must have a number for each expert");
  require(!scales || int64_t(scales->size()) == r.n_experts,
          "scales must have a number for each expert");
  require_choice(r, "");
  const int64_t tokens = int64_t(logits.shape(0));
  require(int64_t(chosen.shape(0)) == tokens && int64_t(weights.shape(0)) == tokens &&
              int64_t(weights.shape(1)) == r.n_used,
          "chosen and weights must be [tokens, n_used]");
  std::vector<float> keys(size_t(r.n_experts + r.n_groups));
  for (int64_t t = 0; t < tokens; t++)
    route_(r, logits.data() + t * r.n_experts, keys.data(), chosen.data() + t * r.n_used,
           weights.data() + t * r.n_used);
}

}  // namespace aleator

ALEATOR_BIND(routing) {
  using namespace aleator;
  m.def("route", &route_rows, nb::arg("logits").noconvert(), nb::arg("chosen").noconvert(),
        nb::arg("weights").noconvert(), nb::arg("scores"), nb::arg("normalised"), nb::arg("scale"),
        nb::arg("n_groups"), nb::arg("n_groups_used"), nb::arg("n_group_best"),
        nb::arg("bias").none(), nb::arg("scales").none() = nb::none(),
        "Which experts tokens go through: logits float32 [T, experts], overwritten; writes chosen "
        "int32 and weights float32 [T, n_used], best first.");
}
