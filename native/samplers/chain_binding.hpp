// What the bindings of both kinds of chain have in common.
#pragma once

#include <optional>

#include "bind.hpp"
#include "samplers/binding.hpp"
#include "samplers/chain_base.hpp"

namespace aleator {

// Lets the other thread have the GIL, without which it may not come to its end.
inline void pause_without_gil() {
  nb::gil_scoped_release release;
  pause();
}

// A method of a chain, which refuses a second thread while it runs.
template <typename Chain, typename Owner, typename Result, typename... Arguments>
auto exclusive(Result (Owner::*method)(Arguments...), uintptr_t reads = 0) {
  return [method, reads](Chain& chain, Arguments... arguments) -> Result {
    const Busy busy(chain.in_use, pause_without_gil, reads);
    return (chain.*method)(std::forward<Arguments>(arguments)...);
  };
}

// Held during a read; one within a call of the same thread needs nothing.
class Reading {
 public:
  explicit Reading(InUse& user) {
    if ((user & ~kReads) != this_thread()) busy_.emplace(user, pause_without_gil, kReads);
  }

 private:
  std::optional<Busy> busy_;
};

template <typename Chain, typename Read>
auto reading(Read read) {
  return [read](Chain& chain) {
    const Reading held(chain.in_use);
    return read(chain);
  };
}

// One that is told candidates, which in Python are Given; without the GIL.
template <typename Chain, typename Given, typename Result, typename Row, typename... Arguments>
auto on_candidates(Result (Chain::*method)(Row&, Arguments...)) {
  return [method](Chain& chain, Given& candidates, Arguments... arguments) -> Result {
    const Busy busy(chain.in_use);
    return (chain.*method)(candidates.get(), arguments...);
  };
}

// Chain is one of them, and Given its candidates in Python.  sample and apply let other Python
// threads run.
template <typename Chain, typename Given>
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
          "logits"_a.noconvert())
      .def("apply", on_candidates<Chain, Given>(&Chain::apply), "candidates"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("apply_one", on_candidates<Chain, Given>(&Chain::apply_one), "candidates"_a, "index"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("accept", exclusive<Chain>(&Chain::accept), "token"_a, "generated"_a)
      .def(
          "accept_many",
          [](Chain& chain, const Array<const int32_t>& tokens, bool generated) {
            nb::gil_scoped_release release;
            const Busy busy(chain.in_use);
            chain.accept_many(std::span(tokens.data(), tokens.shape(0)), generated);
          },
          "tokens"_a.noconvert(), "generated"_a)
      .def(
          "write_state",
          [](Chain& chain, bool users) {
            const Busy busy(chain.in_use, pause_without_gil, kReads);
            const std::string state = chain.write_state(users);
            return nb::bytes(state.data(), state.size());
          },
          "users"_a)
      .def(
          "read_state",
          [](Chain& chain, const nb::bytes& state) {
            const Busy busy(chain.in_use, pause_without_gil);
            chain.read_state({state.c_str(), state.size()});
          },
          "state"_a)
      .def("replace_with", exclusive<Chain>(&Chain::replace_with), "other"_a)
      .def("reset_perf", exclusive<Chain>(&Chain::reset_perf))
      .def("free_scratch",
           [](Chain& chain) {
             if constexpr (requires { chain.free_scratch(); }) {
               try {
                 const Busy busy(chain.in_use, pause_without_gil);
                 chain.free_scratch();
               } catch (const LogitsError&) {  // whoever uses it needs it
               }
             }
           })
      .def("reset", exclusive<Chain>(&Chain::reset))
      .def("restart", exclusive<Chain>(&Chain::restart))
      .def("clone",
           [](Chain& chain) {
             const Busy busy(chain.in_use, pause_without_gil, kReads);
             return std::make_unique<Chain>(chain);
           })
      .def_prop_ro("samplers", &Chain::samplers, nb::rv_policy::copy)
      .def(
          "read",
          [](Chain& chain, const nb::object& read) {
            const Reading held(chain.in_use);
            return read();
          },
          "read"_a, "Call a function while no other thread uses the chain.")
      .def_prop_ro("history", reading<Chain>([](Chain& chain) { return chain.history().tokens; }))
      .def_prop_ro("generated",
                   reading<Chain>([](Chain& chain) { return chain.history().generated; }),
                   "For each token of the history, 1 if it was generated.")
      .def_prop_ro("n_sampled", &Chain::n_sampled)
      .def_prop_ro("seconds", &Chain::seconds);
}

}  // namespace aleator
