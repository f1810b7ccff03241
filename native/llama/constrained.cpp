// Contract: docs/llama-cpp.md, docs/grammar.md
#include "llama/constrained.hpp"

#include "bind.hpp"

namespace aleator::llama {

ALEATOR_BIND(llama_constrained) {
  nb::class_<ConstraintSampler, LlamaSampler>(m, "LlamaConstraintSampler")
      .def(nb::init<const Constraint&, std::vector<int32_t>>(), "constraint"_a, "ends"_a)
      .def_prop_ro(
          "constrained", [](ConstraintSampler& s) -> Constrained& { return s.constrained; },
          nb::rv_policy::reference_internal);
}

}  // namespace aleator::llama
