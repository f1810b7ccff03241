#pragma once

#include "samplers/chain_base.hpp"

namespace aleator {

class Chain : public ChainBase<Sampler> {
 public:
  Chain(Samplers samplers, uint32_t completion)
      : ChainBase(std::move(samplers)), completion_(completion) {}

  void apply(Candidates& candidates);
  void apply_one(Candidates& candidates, size_t index);
  void insert(size_t index, std::shared_ptr<Sampler> sampler);
  void remove(size_t index);
  void set_ordinals(const std::vector<uint32_t>& ordinals);  // one per sampler
  const Samplers& samplers() const { return samplers_; }
  void accept_many(std::span<const int32_t> tokens, bool generated);  // all of them, or none
  std::string write_state(bool users) const;
  void read_state(std::string_view bytes);  // into a new chain; after an error it is of no use
  // A chain with copies of some of the samplers, in the same place of the same text.
  std::unique_ptr<Chain> part(size_t first, size_t count) const;
  std::unique_ptr<Chain> present() const;    // copies of the samplers that act now, likewise
  void adopt(Chain& other) { swap(other); }  // takes over its samplers and their state
  // Applies, accepts, returns the token.
  int32_t sample(const void* logits, int64_t n_vocab, Dtype dtype);
  void set_position(uint64_t position) { position_ = position; }
  void free_scratch() { scratch_ = Candidates(); }

 private:
  Step step() const { return {position_, completion_, &history_}; }

  uint32_t completion_;
  Candidates scratch_;
};

}  // namespace aleator
