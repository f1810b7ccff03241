#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "samplers/in_use.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Chain {
 public:
  static constexpr int32_t max_token = 1 << 24;
  static void check_token(int32_t token);
  [[noreturn]] static void refuse_no_selection();

  Chain(std::vector<std::shared_ptr<Sampler>> samplers, uint32_t completion);
  Chain(const Chain&);

  void apply(Candidates& candidates);
  void apply_one(Candidates& candidates, size_t index);
  void insert(size_t index, std::shared_ptr<Sampler> sampler);
  void remove(size_t index);
  void set_ordinals(const std::vector<uint32_t>& ordinals);  // one per sampler
  const std::vector<std::shared_ptr<Sampler>>& samplers() const { return samplers_; }
  void accept(int32_t token, bool generated);
  void accept_many(std::span<const int32_t> tokens, bool generated);  // all of them, or none
  void rollback(int64_t n);
  void reset();
  void restart();  // a new text begins: constraints start anew
  std::string write_state(bool users) const;
  void read_state(std::string_view bytes);  // into a new chain; after an error it is of no use
  // A chain with copies of some of the samplers, in the same place of the same text.
  std::unique_ptr<Chain> part(size_t first, size_t count) const;
  void adopt(Chain& other);  // takes over its samplers and their state
  int32_t sample(const void* logits, int64_t n_vocab,
                 Dtype dtype);  // applies, accepts, returns the token

  uint64_t position() const { return step_.position; }
  void set_position(uint64_t position) { step_.position = position; }
  const History& history() const { return history_; }
  int64_t n_sampled() const { return n_sampled_; }
  double seconds() const { return seconds_; }
  void reset_perf() {
    seconds_ = 0;
    n_sampled_ = 0;
  }
  void free_scratch() { scratch_ = Candidates(); }

  InUse in_use;

 private:
  void take_back();

  std::vector<std::shared_ptr<Sampler>> samplers_;
  Step step_;
  History history_;
  Candidates scratch_;
  double seconds_ = 0;
  int64_t n_sampled_ = 0;
};

}  // namespace aleator
