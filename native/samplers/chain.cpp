// A chain of built-in samplers as one object: one call per token from Python, without the GIL.
#include "samplers/chain.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "bind.hpp"
#include "samplers/binding.hpp"

namespace aleator {

Chain::Chain(std::vector<std::shared_ptr<Sampler>> samplers, uint32_t completion)
    : samplers_(std::move(samplers)) {
  step_.completion = completion;
}

Chain::Chain(const Chain& other) : step_(other.step_), history_(other.history_) {
  for (const auto& sampler : other.samplers_) samplers_.push_back(sampler->clone());
}

void Chain::apply(Candidates& candidates) {
  step_.history = &history_;
  for (const auto& sampler : samplers_) sampler->apply(candidates, step_);
}

void Chain::check_token(int32_t token) {
  if (token < 0 || token >= max_token)
    throw ParameterError("token", "token " + std::to_string(token) +
                                      " cannot be accepted: ids run from 0 to 16,777,215");
}

void Chain::refuse_no_selection() {
  throw ParameterError("samplers", "the chain selects no token: end it with Dist or Greedy");
}

void Chain::accept(int32_t token, bool generated) {
  check_token(token);
  history_.tokens.push_back(token);
  history_.generated.push_back(generated);
  step_.position += generated;
  for (const auto& sampler : samplers_) sampler->accept(history_);
}

void Chain::rollback(int64_t n) {
  history_.check_rollback(n);
  for (; n > 0; --n) {
    for (const auto& sampler : samplers_) sampler->unaccept(history_);
    step_.position -= history_.generated.back();
    history_.tokens.pop_back();
    history_.generated.pop_back();
  }
}

void Chain::reset() {
  for (const auto& sampler : samplers_) sampler->reset();
  history_ = {};
  step_.position = 0;
}

int32_t Chain::sample(const void* data, int64_t n, Dtype dtype) {
  const auto began = std::chrono::steady_clock::now();
  scratch_.load(data, n, dtype);
  apply(scratch_);
  if (scratch_.selected < 0) refuse_no_selection();
  const int32_t token = scratch_.selected;
  accept(token, true);
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  ++n_sampled_;
  return token;
}

ALEATOR_BIND(chain) {
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        const auto errors = [] { return nb::module_::import_("aleator.core.errors"); };
        try {
          std::rethrow_exception(p);
        } catch (const LogitsError& e) {
          PyErr_SetString(errors().attr("LogitsError").ptr(), e.what());
        } catch (const ParameterError& e) {
          nb::object type = errors().attr("ParameterError");
          PyErr_SetObject(type.ptr(), type(e.parameter, e.what()).ptr());
        }
      },
      nullptr);

  nb::class_<Sampler>(m, "Sampler", "A built-in sampler, to be put into a Chain.");

  nb::class_<OwnedCandidates>(m, "Candidates")
      .def(nb::init<const Logits&>(), nb::arg("logits").noconvert())
      .def("__len__", [](const OwnedCandidates& c) { return c.inner.count(); })
      .def_prop_ro("n_vocab", [](const OwnedCandidates& c) { return c.inner.n_vocab(); })
      .def_prop_ro("selected",
                   [](const OwnedCandidates& c) {
                     return c.inner.selected < 0 ? std::optional<int32_t>()
                                                 : std::optional(c.inner.selected);
                   })
      .def_prop_ro(
          "ids",
          [](const OwnedCandidates& c) {
            std::vector<int32_t> ids;
            std::vector<float> logits;
            c.inner.list(ids, logits);
            return to_numpy(std::move(ids));
          },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "logits",
          [](OwnedCandidates& c) {
            std::vector<int32_t> ids;
            std::vector<float> logits;
            c.inner.materialise();
            c.inner.list(ids, logits);
            return to_numpy(std::move(logits));
          },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "weights",
          [](OwnedCandidates& c) {
            std::vector<int32_t> ids;
            std::vector<float> logits;
            c.inner.list(ids, logits);
            std::vector<uint64_t> weights(ids.size());
            ALEATOR_PICK(weigh)(logits.data(), static_cast<int64_t>(ids.size()), c.inner.top(),
                                c.inner.scale(), weights.data());
            return to_numpy(std::move(weights));
          },
          nb::rv_policy::automatic);

  nb::class_<Chain>(m, "Chain")
      .def(nb::init<std::vector<std::shared_ptr<Sampler>>, uint32_t>(), nb::arg("samplers"),
           nb::arg("completion"))
      .def(
          "sample",
          [](Chain& chain, const Logits& logits) {
            const Dtype dtype = dtype_of(logits);
            const void* data = logits.data();
            const auto n = static_cast<int64_t>(logits.shape(0));
            nb::gil_scoped_release release;
            const Busy busy(chain.busy);
            return chain.sample(data, n, dtype);
          },
          nb::arg("logits").noconvert())
      .def(
          "apply",
          [](Chain& chain, OwnedCandidates& candidates) {
            nb::gil_scoped_release release;
            const Busy busy(chain.busy);
            chain.apply(candidates.inner);
          },
          nb::arg("candidates"))
      .def(
          "accept",
          [](Chain& chain, int32_t token, bool generated) {
            const Busy busy(chain.busy);
            chain.accept(token, generated);
          },
          nb::arg("token"), nb::arg("generated"))
      .def(
          "rollback",
          [](Chain& chain, int64_t n) {
            const Busy busy(chain.busy);
            chain.rollback(n);
          },
          nb::arg("n"))
      .def("reset",
           [](Chain& chain) {
             const Busy busy(chain.busy);
             chain.reset();
           })
      .def("clone",
           [](Chain& chain) {
             const Busy busy(chain.busy);
             return std::make_unique<Chain>(chain);
           })
      .def_prop_rw(
          "position", [](const Chain& chain) { return chain.position(); },
          [](Chain& chain, uint64_t position) { chain.set_position(position); })
      .def_prop_ro("history", [](const Chain& chain) { return chain.history().tokens; })
      .def_prop_ro("n_sampled", [](const Chain& chain) { return chain.n_sampled(); })
      .def_prop_ro("seconds", [](const Chain& chain) { return chain.seconds(); });
}

}  // namespace aleator
