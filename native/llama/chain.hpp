// A chain of samplers with llama.cpp's numbers.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama/sampler.hpp"
#include "samplers/chain_base.hpp"
#include "samplers/constrained.hpp"

namespace aleator::llama {

// A constraint in a chain with llama.cpp's numbers.
class ConstraintSampler : public ConstraintIn<LlamaCloned<ConstraintSampler>> {
 public:
  using ConstraintIn::ConstraintIn;
  void apply(Row& row, const History&) override {
    if (!constrained_.waiting() && !row.mask(constrained_.mask())) nothing_allowed();
  }
};

class LlamaChain : public ChainBase<LlamaSampler> {
 public:
  // The grammar, if there is one, tests the token that the chain chose, and masks a second pass. It
  // hears of tokens before the samplers do, and so stands before them in samplers_.
  LlamaChain(Samplers samplers, const std::shared_ptr<ConstraintSampler>& grammar)
      : ChainBase(std::move(samplers)), grammar_(grammar.get()) {
    if (grammar) samplers_.insert(samplers_.begin(), grammar);
    find_stateful();
    save(saved_);
  }
  LlamaChain(const LlamaChain& other) : ChainBase(other), saved_(other.saved_) {
    if (other.grammar_) grammar_ = static_cast<ConstraintSampler*>(samplers_[0].get());
    find_stateful();
  }

  ConstraintSampler* grammar() const { return grammar_; }
  Samplers samplers() const { return {samplers_.begin() + first(), samplers_.end()}; }

  // A failure leaves the samplers as they were: what was drawn is drawn again.
  void apply(Row& row) {
    before_.clear();
    save(before_);
    try {
      run(row);
    } catch (...) {
      restore(before_.data());
      throw;
    }
  }
  void apply_one(Row& row, size_t index) { samplers_.at(first() + index)->apply(row, history_); }
  void apply_grammar(Row& row) {
    if (grammar_) grammar_->apply(row, history_);
  }
  bool rejects(Row& row) {  // whether the grammar forbids the token selected
    return grammar_ && row.selected >= 0 && !grammar_->constrained().allows(row.selected_token());
  }

  void accept(int32_t token, bool generated) {
    ChainBase::accept(token, generated);
    save(saved_);
  }
  void accept_many(std::span<const int32_t> tokens, bool generated) {  // all of them, or none
    for (const int32_t token : tokens) History::check_token(token);
    std::vector<State> present;
    save(present);
    size_t done = 0;
    try {
      for (; done < tokens.size(); ++done) accept(tokens[done], generated);
    } catch (...) {
      rollback(int64_t(done), true);
      restore(present.data());
      throw;
    }
  }
  // Without replay the generators go on from where they are.
  void rollback(int64_t n, bool replay) {
    ChainBase::rollback(n);
    if (!n) return;
    saved_.resize(saved_.size() - n * stateful_.size());
    State* now = saved_.data() + saved_.size() - stateful_.size();
    for (size_t i = 0; !replay && i < stateful_.size(); ++i)
      now[i].words = stateful_[i]->state().words;
    restore(now);
  }
  void reset() {
    ChainBase::reset();
    saved_.clear();
    save(saved_);
  }

  std::string write_state(bool users) const {
    StateWriter out(users);
    history_.write(out);
    std::vector<State> states = saved_;
    save(states);  // applications since the last token included
    for (const State& state : states) {
      if (state.words > State::max_words)
        throw ParameterError("chain", "a sampler has drawn ", state.words,
                             " random words, and a state holds at most ", State::max_words);
      state.write(out);
    }
    write_states(out, samplers_);
    return out.bytes();
  }
  void read_state(std::string_view bytes) {  // into a new chain; after an error it is of no use
    StateReader in(bytes);
    history_.read(in);
    position_ = std::count(history_.generated.begin(), history_.generated.end(), 1);
    const size_t kinds = stateful_.size();
    saved_.clear();
    std::vector<State> present(kinds);
    for (size_t i = 0; i < (history_.tokens.size() + 1) * kinds; ++i) {
      saved_.push_back(State::read(in));
      if (i >= kinds && saved_[i].words < saved_[i - kinds].words)
        in.refuse("a generator has gone back");
    }
    for (State& state : present) state = State::read(in);
    read_states(in, samplers_, history_);
    in.end();
    restore(present.data());
  }
  void replace_with(LlamaChain& other) {  // takes over its samplers and their state
    swap(other);
    std::swap(grammar_, other.grammar_);
    stateful_.swap(other.stateful_);
    saved_.swap(other.saved_);
  }
  // Applies, accepts, returns the token.
  int32_t sample(const void* logits, int64_t n_vocab, Dtype dtype);

 private:
  int64_t first() const { return grammar_ != nullptr; }  // place of the first sampler
  void find_stateful() {
    for (const auto& sampler : samplers_)
      if (sampler->has_state()) stateful_.push_back(sampler.get());
  }
  void run(Row& row) {
    for (size_t i = first(); i < samplers_.size(); ++i) samplers_[i]->apply(row, history_);
  }
  void save(std::vector<State>& states) const {
    for (const auto* sampler : stateful_) states.push_back(sampler->state());
  }
  void restore(const State* states) {
    for (auto* sampler : stateful_) sampler->restore(*states++);
  }

  ConstraintSampler* grammar_ = nullptr;
  std::vector<LlamaSampler*> stateful_;
  // The states of the stateful samplers at the start and after each accepted token, so that going
  // back any number of tokens is exact: applications in between are undone as well.
  std::vector<State> saved_;
  std::vector<State> before_;
  Row row_;
};

}  // namespace aleator::llama
