// Contract: src/aleator/samplers/constrained.py
#include "samplers/constrained.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cstring>

#include "bind.hpp"
#include "samplers/binding.hpp"

namespace aleator {

std::span<const uint32_t> Constrained::mask() {
  if (!current_) {
    mask_.assign(mask_words(constraint_->n_vocab()), 0);
    constraint_->mask(mask_.data());
    current_ = true;
  }
  return mask_;
}

int64_t Constrained::count() {
  int64_t n = 0;
  for (const uint32_t word : mask()) n += std::popcount(word);
  return n;
}

bool Constrained::allows(int32_t token) {
  if (waiting()) return true;
  if (current_) {
    const auto id = static_cast<uint32_t>(token);
    return id / 32 < mask_.size() && (mask_[id / 32] >> (id % 32) & 1);
  }
  return token < constraint_->n_vocab() && constraint_->allows(token);
}

bool Constrained::finished() {
  if (waiting() || !constraint_->complete()) return false;
  int64_t left = count();
  for (const int32_t token : ends_) left -= allows(token);
  return left == 0;
}

void nothing_allowed() {
  throw LogitsError(
      "no token that the grammar allows has a finite logit: the chain's earlier samplers, "
      "logit_bias or the model mask all of them, or the vocabulary cannot spell what the grammar "
      "asks for");
}

namespace {

class ConstraintSampler : public Cloned<ConstraintSampler> {
 public:
  ConstraintSampler(const Constraint& constraint, std::vector<int32_t> ends)
      : constrained(constraint.clone(), std::move(ends)) {}

  void apply(Candidates& c, const Step&) override {
    if (!constrained.waiting() && !c.keep_allowed(constrained.mask())) nothing_allowed();
  }
  void accept(const History& h) override { constrained.accept(h); }
  void unaccept(const History& h) override { constrained.unaccept(h); }
  void reset() override { constrained.reset(); }
  void restart() override { constrained.reset(); }
  void write_state(StateWriter& out) const override { constrained.write_state(out); }
  void read_state(StateReader& in, const History& h) override { constrained.read_state(in, h); }

  Constrained constrained;
};

// A constraint written in Python, such as aleator.grammar.llguidance.
class PyConstraint : public Constraint {
 public:
  explicit PyConstraint(nb::object adapter) : adapter_(std::move(adapter)) {
    n_vocab_ = nb::cast<int32_t>(adapter_.attr("n_vocab"));
  }
  ~PyConstraint() override {
    nb::gil_scoped_acquire gil;
    adapter_.reset();
  }

  int32_t n_vocab() const override { return n_vocab_; }
  void mask(uint32_t* words) override {
    nb::gil_scoped_acquire gil;
    using Words = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    const auto made = nb::cast<Words>(adapter_.attr("mask")());
    if (static_cast<int64_t>(made.shape(0)) != mask_words(n_vocab_))
      throw ParameterError("grammar", "the mask has " + std::to_string(made.shape(0)) +
                                          " words of 32 tokens, and the vocabulary " +
                                          std::to_string(n_vocab_) + " tokens");
    std::memcpy(words, made.data(), made.nbytes());
    if (n_vocab_ % 32) words[n_vocab_ / 32] &= (1u << (n_vocab_ % 32)) - 1;
  }
  bool allows(int32_t token) override {
    nb::gil_scoped_acquire gil;
    return nb::cast<bool>(adapter_.attr("allows")(token));
  }
  void accept(int32_t token) override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("accept")(token);
  }
  void rollback(int64_t n) override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("rollback")(n);
  }
  void reset() override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("reset")();
  }
  bool complete() const override {
    nb::gil_scoped_acquire gil;
    return nb::cast<bool>(adapter_.attr("complete")());
  }
  std::string jump_forward() override {
    nb::gil_scoped_acquire gil;
    const auto text = nb::cast<nb::bytes>(adapter_.attr("jump_forward")());
    return std::string(text.c_str(), text.size());
  }
  std::unique_ptr<Constraint> clone() const override {
    nb::gil_scoped_acquire gil;
    return std::make_unique<PyConstraint>(adapter_.attr("clone")());
  }

 private:
  nb::object adapter_;
  int32_t n_vocab_;
};

}  // namespace

ALEATOR_BIND(sampler_constrained) {
  nb::class_<Constrained>(m, "Constrained", "A constraint as a chain holds it.")
      .def_prop_ro(
          "constraint", [](Constrained& c) -> Constraint& { return c.constraint(); },
          nb::rv_policy::reference_internal)
      .def_prop_ro("finished", &Constrained::finished,
                   "Whether the text is complete and nothing but its end may follow.")
      .def("count", &Constrained::count, "Tokens that the mask allows.");

  nb::class_<PyConstraint, Constraint>(m, "PyConstraint")
      .def(nb::init<nb::object>(), nb::arg("adapter"));

  nb::class_<ConstraintSampler, Sampler>(m, "ConstraintSampler")
      .def(nb::init<const Constraint&, std::vector<int32_t>>(), nb::arg("constraint"),
           nb::arg("ends"))
      .def_prop_ro(
          "constrained", [](ConstraintSampler& s) -> Constrained& { return s.constrained; },
          nb::rv_policy::reference_internal);
}

}  // namespace aleator
