// Contract: src/aleator/samplers/constrained.py
#include "samplers/constrained.hpp"

#include <bit>
#include <cstring>

#include "bind.hpp"
#include "samplers/user.hpp"

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
    const auto id = uint32_t(token);
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

class ConstraintSampler : public ConstraintIn<Cloned<ConstraintSampler>> {
 public:
  using ConstraintIn::ConstraintIn;
  void apply(Candidates& c, const Step&) override {
    if (!constrained_.waiting() && !c.keep_allowed(constrained_.mask())) nothing_allowed();
  }
};

// A constraint written in Python, such as aleator.grammar.llguidance.
class PyConstraint : public Constraint {
 public:
  explicit PyConstraint(nb::object adapter)
      : adapter_(adapter), n_vocab_(nb::cast<int32_t>(adapter.attr("n_vocab"))) {}

  int32_t n_vocab() const override { return n_vocab_; }
  void mask(uint32_t* words) override {
    nb::gil_scoped_acquire gil;
    using Words = Array<const int32_t>;
    const auto made = adapter_.call<Words>("mask");
    if (int64_t(made.shape(0)) != mask_words(n_vocab_))
      throw ParameterError("grammar", "the mask has ", made.shape(0),
                           " words of 32 tokens, and the vocabulary ", n_vocab_, " tokens");
    std::memcpy(words, made.data(), made.nbytes());
    if (n_vocab_ % 32) words[n_vocab_ / 32] &= (1u << (n_vocab_ % 32)) - 1;
  }
  bool allows(int32_t token) override { return adapter_.call<bool>("allows", token); }
  void accept(int32_t token) override { adapter_.call("accept", token); }
  void rollback(int64_t n) override { adapter_.call("rollback", n); }
  void reset() override { adapter_.call("reset"); }
  bool complete() const override { return adapter_.call<bool>("complete"); }
  std::string jump_forward() override {
    nb::gil_scoped_acquire gil;
    const auto text = adapter_.call<nb::bytes>("jump_forward");
    return std::string(text.c_str(), text.size());
  }
  std::unique_ptr<Constraint> clone() const override {
    nb::gil_scoped_acquire gil;
    return std::make_unique<PyConstraint>(adapter_.call<nb::object>("clone"));
  }

 private:
  Adapter adapter_;
  int32_t n_vocab_;
};

}  // namespace

ALEATOR_BIND(sampler_constrained) {
  nb::class_<Constrained>(m, "Constrained", "A constraint as a chain holds it.")
      .def_prop_ro("constraint", &Constrained::constraint)
      .def_prop_ro("finished", &Constrained::finished,
                   "Whether the text is complete and nothing but its end may follow.")
      .def("count", &Constrained::count, "Tokens that the mask allows.");

  nb::class_<PyConstraint, Constraint>(m, "PyConstraint").def(nb::init<nb::object>(), "adapter"_a);

  nb::class_<ConstraintSampler, Sampler>(m, "ConstraintSampler")
      .def(nb::init<const Constraint&, std::vector<int32_t>>(), "constraint"_a, "ends"_a)
      .def_prop_ro("constrained", &ConstraintSampler::constrained);
}

}  // namespace aleator
