// What the bindings of both kinds of chain have in common.
#pragma once

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>

#include "bind.hpp"
#include "samplers/binding.hpp"

namespace aleator {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Chain is one of them, and Shown its candidates in Python.  sample and apply let other Python
// threads run.
template <typename Chain, typename Shown>
nb::class_<Chain> bind_chain(nb::module_& m, const char* name) {
  return nb::class_<Chain>(m, name)
      .def(
          "sample",
          [](Chain& chain, const Logits& logits) {
            const Dtype dtype = dtype_of(logits.type);
            nb::gil_scoped_release release;
            const Busy busy(chain.in_use);
            return chain.sample(logits.data, logits.n, dtype);
          },
          nb::arg("logits").noconvert())
      .def(
          "apply",
          [](Chain& chain, Shown& candidates) {
            nb::gil_scoped_release release;
            const Busy busy(chain.in_use);
            chain.apply(candidates.get());
          },
          nb::arg("candidates"))
      .def(
          "apply_one",
          [](Chain& chain, Shown& candidates, size_t index) {
            const Busy busy(chain.in_use);
            chain.apply_one(candidates.get(), index);
          },
          nb::arg("candidates"), nb::arg("index"))
      .def(
          "accept",
          [](Chain& chain, int32_t token, bool generated) {
            const Busy busy(chain.in_use);
            chain.accept(token, generated);
          },
          nb::arg("token"), nb::arg("generated"))
      .def(
          "accept_many",
          [](Chain& chain, const Tokens& tokens, bool generated) {
            nb::gil_scoped_release release;
            const Busy busy(chain.in_use);
            chain.accept_many(std::span(tokens.data(), tokens.shape(0)), generated);
          },
          nb::arg("tokens").noconvert(), nb::arg("generated"))
      .def(
          "write_state",
          [](Chain& chain, bool users) {
            const Busy busy(chain.in_use);
            const std::string state = chain.write_state(users);
            return nb::bytes(state.data(), state.size());
          },
          nb::arg("users"))
      .def(
          "read_state",
          [](Chain& chain, const nb::bytes& state) {
            const Busy busy(chain.in_use);
            chain.read_state({state.c_str(), state.size()});
          },
          nb::arg("state"))
      .def(
          "adopt",
          [](Chain& chain, Chain& other) {
            const Busy busy(chain.in_use);
            chain.adopt(other);
          },
          nb::arg("other"))
      .def("reset_perf",
           [](Chain& chain) {
             const Busy busy(chain.in_use);
             chain.reset_perf();
           })
      .def("free_scratch",
           [](Chain& chain) {
             if constexpr (requires { chain.free_scratch(); }) {
               try {
                 const Busy busy(chain.in_use);
                 chain.free_scratch();
               } catch (const LogitsError&) {  // whoever uses it needs it
               }
             }
           })
      .def("reset",
           [](Chain& chain) {
             const Busy busy(chain.in_use);
             chain.reset();
           })
      .def("restart",
           [](Chain& chain) {
             const Busy busy(chain.in_use);
             chain.restart();
           })
      .def("clone",
           [](Chain& chain) {
             const Busy busy(chain.in_use);
             return std::make_unique<Chain>(chain);
           })
      .def_prop_ro("samplers", &Chain::samplers, nb::rv_policy::copy)
      .def_prop_ro("history", [](const Chain& chain) { return chain.history().tokens; })
      .def_prop_ro("n_sampled", &Chain::n_sampled)
      .def_prop_ro("seconds", &Chain::seconds);
}

}  // namespace aleator
