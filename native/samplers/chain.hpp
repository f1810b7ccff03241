// A chain of built-in samplers with portable numerics.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "samplers/candidates.hpp"
#include "samplers/chain_base.hpp"

namespace aleator {

class Chain : public ChainBase<Sampler> {
 public:
  Chain(Samplers samplers, uint32_t completion)
      : ChainBase(std::move(samplers)), completion_(completion) {}
  Chain(const Chain& other) : ChainBase(other), completion_(other.completion_) {}  // no scratch

  const Samplers& samplers() const { return samplers_; }
  void apply(Candidates& candidates) {
    for (const auto& sampler : samplers_) sampler->apply(candidates, step());
  }
  void apply_one(Candidates& candidates, size_t index) {
    samplers_.at(index)->apply(candidates, step());
  }
  void insert(size_t index, std::shared_ptr<Sampler> sampler) {
    // It sees what was accepted so far as if it had been there.
    replay(*sampler, history_);
    samplers_.insert(samplers_.begin() + int64_t(std::min(index, samplers_.size())),
                     std::move(sampler));
  }
  void remove(size_t index) {
    samplers_.at(index);
    samplers_.erase(samplers_.begin() + int64_t(index));
  }
  void set_ordinals(const std::vector<uint32_t>& ordinals) {  // one per sampler
    for (size_t i = 0; i < samplers_.size(); ++i) samplers_[i]->set_ordinal(ordinals.at(i));
  }
  void accept_many(std::span<const int32_t> tokens, bool generated) {  // all of them, or none
    for (const int32_t token : tokens) History::check_token(token);
    size_t done = 0;
    try {
      for (; done < tokens.size(); ++done) accept(tokens[done], generated);
    } catch (...) {
      rollback(int64_t(done));
      throw;
    }
  }
  std::string write_state(bool users) const {
    StateWriter out(users);
    history_.write(out);
    out.put<uint64_t>(position_);
    write_states(out, samplers_);
    return out.bytes();
  }
  void read_state(std::string_view bytes) {  // into a new chain; after an error it is of no use
    StateReader in(bytes);
    history_.read(in);
    position_ = in.get<uint64_t>();
    read_states(in, samplers_, history_);
    in.end();
  }
  // A chain with copies of some of the samplers, in the same place of the same text.
  std::unique_ptr<Chain> part(size_t first, size_t count) {
    Samplers copies;
    for (size_t i = first; i < first + count; ++i) copies.push_back(samplers_.at(i)->clone());
    return beside(std::move(copies), history_);
  }
  std::unique_ptr<Chain> present() {  // copies of the samplers that act now, likewise
    Samplers copies;
    const History* heard = &history_;
    for (const auto& sampler : samplers_) {
      for (auto& each : sampler->acting()) copies.push_back(std::move(each));
      heard = &sampler->heard(*heard);
    }
    return beside(std::move(copies), *heard);
  }
  void replace_with(Chain& other) { swap(other); }  // takes over its samplers and their state
  // Applies, accepts, returns the token.
  int32_t sample(const void* logits, int64_t n_vocab, Dtype dtype);
  void set_position(uint64_t position) { position_ = position; }
  void free_scratch() { scratch_ = Candidates(); }

 private:
  Step step() const { return {position_, completion_, &history_}; }
  std::unique_ptr<Chain> beside(Samplers samplers, const History& history) const {
    auto made = std::make_unique<Chain>(std::move(samplers), completion_);
    made->history_ = history;
    made->position_ = position_;
    return made;
  }

  uint32_t completion_;
  Candidates scratch_;
};

}  // namespace aleator
