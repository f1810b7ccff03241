// Contract: docs/llama-cpp.md, docs/grammar.md
#include "llama/constrained.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"

namespace aleator::llama {

void ConstraintSampler::apply(Row& row, const History&) {
  if (!constrained.waiting() && !row.mask(constrained.mask())) nothing_allowed();
}

ALEATOR_BIND(llama_constrained) {
  nb::class_<ConstraintSampler, LlamaSampler>(m, "LlamaConstraintSampler")
      .def(nb::init<const Constraint&, std::vector<int32_t>>(), nb::arg("constraint"),
           nb::arg("ends"))
      .def_prop_ro(
          "constrained", [](ConstraintSampler& s) -> Constrained& { return s.constrained; },
          nb::rv_policy::reference_internal);
}

}  // namespace aleator::llama
