// A chain of samplers that do what llama.cpp's do.  Contract: docs/llama-cpp.md.
#include "llama/chain.hpp"

#include <algorithm>
#include <chrono>

#include "bind.hpp"
#include "llama/candidates.hpp"
#include "samplers/chain.hpp"
#include "samplers/chain_binding.hpp"

namespace aleator::llama {

LlamaChain::LlamaChain(std::vector<std::shared_ptr<LlamaSampler>> samplers,
                       std::shared_ptr<ConstraintSampler> grammar)
    : samplers_(std::move(samplers)), grammar_(std::move(grammar)) {
  find_stateful();
  save(saved_);
}

LlamaChain::LlamaChain(const LlamaChain& other)
    : history_(other.history_), n_generated_(other.n_generated_), saved_(other.saved_) {
  for (const auto& sampler : other.samplers_) samplers_.push_back(sampler->clone());
  if (other.grammar_) grammar_ = std::make_shared<ConstraintSampler>(*other.grammar_);
  find_stateful();
}

void LlamaChain::find_stateful() {
  for (const auto& sampler : samplers_)
    if (sampler->has_state()) stateful_.push_back(sampler.get());
}

void LlamaChain::save(std::vector<State>& states) const {
  for (const auto* sampler : stateful_) states.push_back(sampler->state());
}

void LlamaChain::restore(const State* states) {
  for (auto* sampler : stateful_) sampler->restore(*states++);
}

void LlamaChain::run(Row& row) {
  for (const auto& sampler : samplers_) sampler->apply(row, history_);
}

// A failure leaves the samplers as they were: what was drawn is drawn again.
void LlamaChain::apply(Row& row) {
  before_.clear();
  save(before_);
  try {
    run(row);
  } catch (...) {
    restore(before_.data());
    throw;
  }
}

void LlamaChain::apply_one(Row& row, size_t index) { samplers_.at(index)->apply(row, history_); }

void LlamaChain::apply_grammar(Row& row) {
  if (grammar_) grammar_->apply(row, history_);
}

bool LlamaChain::rejects(Row& row) {
  return grammar_ && row.selected >= 0 && !grammar_->constrained.allows(row.selected_token());
}

void LlamaChain::accept(int32_t token, bool generated) {
  Chain::check_token(token);
  history_.push(token, generated);
  n_generated_ += generated;
  size_t done = 0;
  bool heard = false;
  try {
    if (grammar_) grammar_->accept(history_), heard = true;
    for (; done < samplers_.size(); ++done) samplers_[done]->accept(history_);
  } catch (...) {  // only a constraint or a user's sampler can: take it back from those before it
    while (done-- > 0) samplers_[done]->unaccept(history_);
    if (heard) grammar_->unaccept(history_);
    take_back();
    throw;
  }
  save(saved_);
}

void LlamaChain::accept_many(std::span<const int32_t> tokens, bool generated) {
  for (const int32_t token : tokens) Chain::check_token(token);
  std::vector<State> present;
  save(present);
  size_t done = 0;
  try {
    for (; done < tokens.size(); ++done) accept(tokens[done], generated);
  } catch (...) {
    rollback(static_cast<int64_t>(done), true);
    restore(present.data());
    throw;
  }
}

void LlamaChain::take_back() {
  n_generated_ -= history_.generated.back();
  history_.pop();
}

void LlamaChain::rollback(int64_t n, bool replay) {
  history_.check_rollback(n);
  if (!n) return;
  for (; n > 0; --n) {
    for (const auto& sampler : samplers_) sampler->unaccept(history_);
    if (grammar_) grammar_->unaccept(history_);
    take_back();
    saved_.resize(saved_.size() - stateful_.size());
  }
  State* now = saved_.data() + saved_.size() - stateful_.size();
  for (size_t i = 0; !replay && i < stateful_.size(); ++i)
    now[i].words = stateful_[i]->state().words;
  restore(now);
}

void LlamaChain::reset() {
  for (const auto& sampler : samplers_) sampler->reset();
  if (grammar_) grammar_->reset();
  history_ = {};
  n_generated_ = 0;
  saved_.clear();
  save(saved_);
}

void LlamaChain::restart() {
  for (const auto& sampler : samplers_) sampler->restart();
  if (grammar_) grammar_->restart();
}

std::string LlamaChain::write_state(bool users) const {
  StateWriter out(users);
  history_.write(out);
  std::vector<State> states = saved_;
  save(states);  // applications since the last token included
  for (const State& state : states) {
    if (state.words > State::max_words)
      throw ParameterError("chain", "a sampler has drawn " + std::to_string(state.words) +
                                        " random words, and a state holds at most " +
                                        std::to_string(State::max_words));
    state.write(out);
  }
  if (grammar_) out.section([&](StateWriter& own) { grammar_->write_state(own); });
  for (const auto& sampler : samplers_)
    out.section([&](StateWriter& own) { sampler->write_state(own); });
  return out.bytes();
}

void LlamaChain::read_state(std::string_view bytes) {
  StateReader in(bytes);
  history_.read(in);
  n_generated_ = std::count(history_.generated.begin(), history_.generated.end(), 1);
  const size_t kinds = stateful_.size();
  saved_.clear();
  std::vector<State> present(kinds);
  for (size_t i = 0; i < (history_.tokens.size() + 1) * kinds; ++i) {
    saved_.push_back(State::read(in));
    if (i >= kinds && saved_[i].words < saved_[i - kinds].words)
      in.refuse("a generator has gone back");
  }
  for (State& state : present) state = State::read(in);
  const auto load = [&](LlamaSampler& sampler) {
    StateReader own = in.section();
    sampler.read_state(own, history_);
    own.end();
  };
  if (grammar_) load(*grammar_);
  for (const auto& sampler : samplers_) load(*sampler);
  in.end();
  restore(present.data());
}

void LlamaChain::adopt(LlamaChain& other) {
  samplers_.swap(other.samplers_);
  grammar_.swap(other.grammar_);
  stateful_.swap(other.stateful_);
  saved_.swap(other.saved_);
  std::swap(history_, other.history_);
  std::swap(n_generated_, other.n_generated_);
}

int32_t LlamaChain::sample(const void* data, int64_t n, Dtype dtype) {
  const auto began = std::chrono::steady_clock::now();
  row_.load(data, n, dtype);
  apply(row_);
  try {
    if (rejects(row_)) {  // the whole row masked, and the whole chain again: a second draw
      row_.load(data, n, dtype);
      apply_grammar(row_);
      run(row_);
    }
    if (row_.selected < 0) Chain::refuse_no_selection();
    accept(row_.selected_token(), true);
  } catch (...) {
    restore(before_.data());
    throw;
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  ++n_sampled_;
  return history_.tokens.back();
}

ALEATOR_BIND(llama) {
  nb::class_<LlamaSampler>(m, "LlamaSampler", "A built-in sampler, to be put into a LlamaChain.");

  bind_chain<LlamaChain, LlamaCandidates>(m, "LlamaChain")
      .def(nb::init<std::vector<std::shared_ptr<LlamaSampler>>,
                    std::shared_ptr<ConstraintSampler>>(),
           "samplers"_a, "grammar"_a.none())
      .def(
          "apply_grammar",
          [](LlamaChain& chain, LlamaCandidates& candidates) {
            const Busy busy(chain.in_use);
            chain.apply_grammar(candidates.get());
          },
          "candidates"_a, "Mask what the grammar forbids, unless it waits.")
      .def(
          "rejects",
          [](LlamaChain& chain, LlamaCandidates& candidates) {
            const Busy busy(chain.in_use);
            return chain.rejects(candidates.get());
          },
          "candidates"_a, "Whether the grammar forbids the token selected.")
      .def_prop_ro(
          "grammar", [](const LlamaChain& chain) { return chain.grammar(); },
          nb::rv_policy::reference_internal)
      .def("rollback", alone(&LlamaChain::rollback), "n"_a, "replay"_a)
      .def_prop_ro("generated", [](const LlamaChain& chain) { return chain.history().generated; })
      .def_prop_ro("position", &LlamaChain::n_generated);
}

}  // namespace aleator::llama
