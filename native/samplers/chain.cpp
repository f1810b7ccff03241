// A chain of built-in samplers as one object: one call per token from Python, without the GIL.
#include "samplers/chain.hpp"

#include <algorithm>

#include "bind.hpp"
#include "samplers/chain_binding.hpp"

namespace aleator {

void History::check_token(int32_t token) {
  if (token < 0 || token >= max_token)
    throw ParameterError("token", "token ", token,
                         " cannot be accepted: ids run from 0 to 16,777,215");
}

void History::read(StateReader& in) {
  const auto n = in.get<uint64_t>();
  tokens = in.get_all<int32_t>(n);
  generated = in.get_all<uint8_t>(n);
  for (const int32_t token : tokens)
    if (token < 0 || token >= max_token) in.refuse("token ", token, " is in its history");
  for (const uint8_t flag : generated)
    if (flag > 1) in.refuse("a token of its history is neither given nor generated");
}

void Chain::apply(Candidates& candidates) {
  for (const auto& sampler : samplers_) sampler->apply(candidates, step());
}

void Chain::apply_one(Candidates& candidates, size_t index) {
  samplers_.at(index)->apply(candidates, step());
}

void Chain::insert(size_t index, std::shared_ptr<Sampler> sampler) {
  // It sees what was accepted so far as if it had been there.
  replay(*sampler, history_);
  samplers_.insert(samplers_.begin() + static_cast<int64_t>(std::min(index, samplers_.size())),
                   std::move(sampler));
}

void Chain::remove(size_t index) {
  samplers_.at(index);
  samplers_.erase(samplers_.begin() + static_cast<int64_t>(index));
}

void Chain::set_ordinals(const std::vector<uint32_t>& ordinals) {
  for (size_t i = 0; i < samplers_.size(); ++i) samplers_[i]->set_ordinal(ordinals.at(i));
}

void Chain::accept_many(std::span<const int32_t> tokens, bool generated) {
  for (const int32_t token : tokens) History::check_token(token);
  size_t done = 0;
  try {
    for (; done < tokens.size(); ++done) accept(tokens[done], generated);
  } catch (...) {
    rollback(static_cast<int64_t>(done));
    throw;
  }
}

std::string Chain::write_state(bool users) const {
  StateWriter out(users);
  history_.write(out);
  out.put<uint64_t>(position_);
  write_samplers(out);
  return out.bytes();
}

void Chain::read_state(std::string_view bytes) {
  StateReader in(bytes);
  history_.read(in);
  position_ = in.get<uint64_t>();
  read_samplers(in);
}

std::unique_ptr<Chain> Chain::part(size_t first, size_t count) const {
  Samplers copies;
  for (size_t i = first; i < first + count; ++i) copies.push_back(samplers_.at(i)->clone());
  auto made = std::make_unique<Chain>(std::move(copies), completion_);
  made->history_ = history_;
  made->position_ = position_;
  return made;
}

std::unique_ptr<Chain> Chain::present() const {
  Samplers copies;
  const History* heard = &history_;
  for (const auto& sampler : samplers_) {
    for (auto& each : sampler->acting()) copies.push_back(std::move(each));
    heard = &sampler->heard(*heard);
  }
  auto made = std::make_unique<Chain>(std::move(copies), completion_);
  made->history_ = *heard;
  made->position_ = position_;
  return made;
}

int32_t Chain::sample(const void* data, int64_t n, Dtype dtype) {
  const auto began = Clock::now();
  scratch_.load(data, n, dtype);
  apply(scratch_);
  if (scratch_.selected < 0) refuse_no_selection();
  accept(scratch_.selected, true);
  return sampled(began);
}

ALEATOR_BIND(chain) {
  nb::class_<Sampler>(m, "Sampler", "A built-in sampler, to be put into a Chain.");

  bind_chain<Chain, PyCandidates>(m, "Chain")
      .def(nb::init<std::vector<std::shared_ptr<Sampler>>, uint32_t>(), "samplers"_a,
           "completion"_a)
      .def("insert", alone<Chain>(&Chain::insert), "index"_a, "sampler"_a)
      .def("remove", alone<Chain>(&Chain::remove), "index"_a)
      .def("set_ordinals", &Chain::set_ordinals, "ordinals"_a)
      .def("rollback", alone<Chain>(&Chain::rollback), "n"_a)
      .def(
          "part",
          [](Chain& chain, size_t first, size_t count) {
            const Busy busy(chain.in_use);
            return chain.part(first, count);
          },
          "first"_a, "count"_a,
          "A chain with copies of some samplers, in the same place of the same text.")
      .def(
          "present",
          [](Chain& chain) {
            const Busy busy(chain.in_use);
            return chain.present();
          },
          "A chain with copies of the samplers that act now, in the same place of the same text.")
      .def_prop_ro(
          "generated", [](const Chain& chain) { return chain.history().generated; },
          "For each token of the history, 1 if it was generated.")
      .def_prop_rw("position", &Chain::position, &Chain::set_position);
}

}  // namespace aleator
