// A chain of samplers that do what llama.cpp's do.  Contract: docs/llama-cpp.md.
#include "llama/chain.hpp"

#include "bind.hpp"
#include "llama/candidates.hpp"
#include "samplers/chain_binding.hpp"

namespace aleator::llama {

int32_t LlamaChain::sample(const void* data, int64_t n, Dtype dtype) {
  const auto began = Clock::now();
  row_.load(data, n, dtype);
  apply(row_);
  try {
    if (rejects(row_)) {  // the whole row masked, and the whole chain again: a second draw
      row_.load(data, n, dtype);
      apply_grammar(row_);
      run(row_);
    }
    if (row_.selected < 0) refuse_no_selection();
    accept(row_.selected_token(), true);
  } catch (...) {
    restore(before_.data());
    throw;
  }
  return sampled(began);
}

ALEATOR_BIND(llama) {
  nb::class_<LlamaSampler>(m, "LlamaSampler", "A built-in sampler, to be put into a LlamaChain.");

  nb::class_<ConstraintSampler, LlamaSampler>(m, "LlamaConstraintSampler")
      .def(nb::init<const Constraint&, std::vector<int32_t>>(), "constraint"_a, "ends"_a)
      .def_prop_ro("constrained", &ConstraintSampler::constrained);

  bind_chain<LlamaChain, LlamaCandidates>(m, "LlamaChain")
      .def(nb::init<std::vector<std::shared_ptr<LlamaSampler>>,
                    std::shared_ptr<ConstraintSampler>>(),
           "samplers"_a, "grammar"_a.none())
      .def("apply_grammar", on_candidates<LlamaChain, LlamaCandidates>(&LlamaChain::apply_grammar),
           "candidates"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Mask what the grammar forbids, unless it waits.")
      .def("rejects", on_candidates<LlamaChain, LlamaCandidates>(&LlamaChain::rejects),
           "candidates"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Whether the grammar forbids the token selected.")
      .def_prop_ro("grammar", &LlamaChain::grammar)
      .def("rollback", exclusive<LlamaChain>(&LlamaChain::rollback), "n"_a, "replay"_a)
      .def_prop_ro("position", &LlamaChain::position);
}

}  // namespace aleator::llama
