#pragma once

#include <atomic>
#include <memory>
#include <vector>

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
  void accept(int32_t token, bool generated);
  void rollback(int64_t n);
  void reset();
  int32_t sample(const void* logits, int64_t n_vocab,
                 Dtype dtype);  // applies, accepts, returns the token

  uint64_t position() const { return step_.position; }
  void set_position(uint64_t position) { step_.position = position; }
  const History& history() const { return history_; }
  int64_t n_sampled() const { return n_sampled_; }
  double seconds() const { return seconds_; }

  std::atomic_flag busy = ATOMIC_FLAG_INIT;  // held during a call

 private:
  std::vector<std::shared_ptr<Sampler>> samplers_;
  Step step_;
  History history_;
  Candidates scratch_;
  double seconds_ = 0;
  int64_t n_sampled_ = 0;
};

}  // namespace aleator
