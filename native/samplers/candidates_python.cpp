// Candidates as Python sees them.
#include <algorithm>

#include "bind.hpp"
#include "samplers/binding.hpp"

namespace aleator {

namespace {

struct Listed {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  explicit Listed(Candidates& c) { c.list(ids, logits); }

  std::vector<uint64_t> weights(float top, float scale) const {
    std::vector<uint64_t> found(ids.size());
    weigh_(logits.data(), static_cast<int64_t>(found.size()), top, scale, found.data());
    return found;
  }
};

// What Softmax would have written of these candidates: weight over mass, both as it saw them.
std::vector<float> noted(Candidates& c) {
  const Listed listed(c);
  std::vector<float> p(listed.ids.size());
  if (!c.full_mass()) return p;
  const auto weights = listed.weights(c.full_top(), c.scale());
  for (size_t i = 0; i < p.size(); ++i)
    p[i] = static_cast<float>(static_cast<double>(weights[i]) / static_cast<double>(c.full_mass()));
  return p;
}

void set_logits(PyCandidates& c, Array<const float> z) {
  auto& logits = c.get().edit_all();
  if (z.shape(0) != logits.size())
    throw LogitsError("there are " + std::to_string(logits.size()) + " candidates, but " +
                      std::to_string(z.shape(0)) + " logits were given");
  std::copy(z.data(), z.data() + logits.size(), logits.begin());
  c.get().settle();
}

void keep(PyCandidates& c, std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  Candidates& inner = c.get();
  inner.compact();
  const auto& have = inner.ids();
  const auto in = [&](size_t i) { return std::binary_search(ids.begin(), ids.end(), have[i]); };
  bool any = false;
  for (size_t i = 0; i < have.size() && !any; ++i) any = in(i);
  if (!any) throw LogitsError("none of the tokens to keep is a candidate");
  inner.keep_if(in);
}

void select(PyCandidates& c, std::optional<int32_t> token) {
  if (token) {
    const Listed listed(c.get());
    if (!std::binary_search(listed.ids.begin(), listed.ids.end(), *token))
      throw LogitsError("token " + std::to_string(*token) + " is not a candidate");
  }
  c.get().selected = token.value_or(-1);
}

}  // namespace

ALEATOR_BIND(candidates) {
  nb::class_<PyCandidates>(m, "Candidates")
      .def(nb::init<const Logits&>(), "logits"_a.noconvert())
      .def("__len__", [](PyCandidates& c) { return c.get().count(); })
      .def_prop_ro("n_vocab", [](PyCandidates& c) { return c.get().n_vocab(); })
      .def_prop_ro(
          "temperature", [](PyCandidates& c) { return c.get().temperature(); },
          "What the logits are still to be divided by.")
      .def_prop_rw(
          "selected",
          [](PyCandidates& c) {
            const int32_t token = c.get().selected;
            return token < 0 ? std::optional<int32_t>() : std::optional(token);
          },
          &select, nb::for_setter("token"_a.none()))
      .def_prop_ro(
          "ids", [](PyCandidates& c) { return to_numpy(std::move(Listed(c.get()).ids)); },
          nb::rv_policy::automatic)
      .def_prop_rw(
          "logits",
          [](PyCandidates& c) {
            c.get().materialise();
            return to_numpy(std::move(Listed(c.get()).logits));
          },
          &set_logits, nb::for_getter(nb::rv_policy::automatic))
      .def_prop_ro(
          "entropy", [](PyCandidates& c) { return c.get().entropy().bits; },
          "Of the distribution, in bits.")
      .def_prop_ro(
          "weights",
          [](PyCandidates& c) {
            return to_numpy(Listed(c.get()).weights(c.get().top(), c.get().scale()));
          },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "p", [](PyCandidates& c) { return to_numpy(noted(c.get())); }, nb::rv_policy::automatic,
          "The probabilities that Softmax noted, not made anew since; 0 where it noted none.")
      .def(
          "state",
          [](PyCandidates& c) {
            Listed listed(c.get());
            return nb::make_tuple(to_numpy(std::move(listed.ids)),
                                  to_numpy(std::move(listed.logits)), c.get().temperature(),
                                  c.get().full_mass());
          },
          "Token ids, logits, the temperature they still are to be divided by, and the mass that "
          "Softmax saw.")
      .def("keep", &keep, "ids"_a, "Keep these tokens; the others are no candidates any more.");
}

}  // namespace aleator
