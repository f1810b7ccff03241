// Contract: docs/llama-cpp.md
#include "llama/candidates.hpp"

#include <algorithm>

#include "bind.hpp"

namespace aleator::llama {

namespace {

template <typename T, typename Field>
auto column(LlamaCandidates& candidates, Field field) {
  Row& row = candidates.get();
  const Candidate* c = row.list();
  std::vector<T> values(row.size());
  for (int64_t i = 0; i < row.size(); ++i) values[i] = field(c[i]);
  return to_numpy(std::move(values));
}

// p if it belongs to these candidates and logits, else what the next softmax would make of them.
auto probs(LlamaCandidates& candidates) {
  const auto p = [&] { return column<float>(candidates, [](auto& x) { return x.p; }); };
  Row& row = candidates.get();
  if (row.p_current) return p();
  Candidate* c = row.list();
  const std::vector<Candidate> kept(c, c + row.size());
  row.softmax(false);
  const auto made = p();
  std::copy(kept.begin(), kept.end(), c);
  row.p_current = false;
  return made;
}

// In the order of the array; NaN masks.  An order that no longer descends is not believed in.
void set_logits(LlamaCandidates& candidates, Array<const float> z) {
  Row& row = candidates.get();
  const auto n = size_t(row.size());
  if (z.shape(0) != n)
    throw LogitsError("there are ", n, " candidates, but ", z.shape(0), " logits were given");
  if (!std::any_of(z.data(), z.data() + n, [](float x) { return x > -infinity; })) nothing_finite();
  Candidate* c = row.list();
  for (size_t i = 0; i < n; ++i) c[i].logit = z.data()[i] == z.data()[i] ? z.data()[i] : -infinity;
  row.sorted = row.sorted && std::is_sorted(c, c + n, higher);
  row.p_current = false;
}

void keep(LlamaCandidates& candidates, std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  Row& row = candidates.get();
  Candidate* c = row.list();
  const auto in = [&](const Candidate& x) {
    return std::binary_search(ids.begin(), ids.end(), x.id);
  };
  if (!std::any_of(c, c + row.size(), [&](auto& x) { return x.logit > -infinity && in(x); }))
    throw LogitsError("none of the tokens to keep is a candidate");
  const int32_t chosen = row.selected < 0 ? -1 : c[row.selected].id;
  row.truncate(std::remove_if(c, c + row.size(), [&](auto& x) { return !in(x); }) - c);
  row.selected = -1;
  for (int64_t i = 0; chosen >= 0 && i < row.size(); ++i)
    if (c[i].id == chosen) row.selected = i;
}

std::optional<int32_t> selected(LlamaCandidates& candidates) {
  Row& row = candidates.get();
  return row.selected < 0 ? std::optional<int32_t>() : std::optional(row.list()[row.selected].id);
}

void select(LlamaCandidates& candidates, std::optional<int32_t> token) {
  Row& row = candidates.get();
  if (!token) {
    row.selected = -1;
    return;
  }
  const Candidate* c = row.list();
  const auto* at = std::find_if(c, c + row.size(), [&](auto& x) { return x.id == *token; });
  if (at == c + row.size() || !(at->logit > -infinity))
    throw LogitsError("token ", *token, " is not a candidate");
  row.selected = at - c;
}

}  // namespace

ALEATOR_BIND(llama_candidates) {
  using Py = LlamaCandidates;
  nb::class_<Py>(m, "LlamaCandidates")
      .def(nb::init<PyCandidates&>(), "candidates"_a)
      .def("__len__", [](Py& c) { return c.get().size(); })
      .def_prop_ro("n_vocab", [](Py& c) { return c.get().n_vocab(); })
      .def_prop_ro("sorted", [](Py& c) { return c.get().sorted; })
      .def_prop_rw("selected", &selected, &select, nb::for_setter("token"_a.none()))
      .def_prop_ro(
          "ids", [](Py& c) { return column<int32_t>(c, [](auto& x) { return x.id; }); },
          nb::rv_policy::automatic)
      .def_prop_rw(
          "logits", [](Py& c) { return column<float>(c, [](auto& x) { return x.logit; }); },
          &set_logits, nb::for_getter(nb::rv_policy::automatic))
      .def_prop_ro(
          "p", [](Py& c) { return column<float>(c, [](auto& x) { return x.p; }); },
          nb::rv_policy::automatic, "llama.cpp's field p, as the samplers left it.")
      .def_prop_ro("probs", &probs, nb::rv_policy::automatic)
      .def("keep", &keep, "ids"_a, "Keep these tokens; the others are no candidates any more.");
}

}  // namespace aleator::llama
