#pragma once

#include <span>

#include "llama/constrained.hpp"
#include "llama/sampler.hpp"
#include "samplers/in_use.hpp"

namespace aleator::llama {

class LlamaChain {
 public:
  // The grammar, if there is one, tests the token that the chain chose, and masks a second pass.
  LlamaChain(std::vector<std::shared_ptr<LlamaSampler>> samplers,
             std::shared_ptr<ConstraintSampler> grammar);
  LlamaChain(const LlamaChain&);

  void apply(Row& row);
  void apply_one(Row& row, size_t index);
  void apply_grammar(Row& row);
  bool rejects(Row& row);  // whether the grammar forbids the token selected
  const std::vector<std::shared_ptr<LlamaSampler>>& samplers() const { return samplers_; }
  void accept(int32_t token, bool generated);
  void accept_many(std::span<const int32_t> tokens, bool generated);  // all of them, or none
  // Without replay the generators go on from where they are.
  void rollback(int64_t n, bool replay);
  void reset();
  void restart();  // a new text begins: constraints start anew
  std::string write_state(bool users) const;
  void read_state(std::string_view bytes);  // into a new chain; after an error it is of no use
  void adopt(LlamaChain& other);            // takes over its samplers and their state
  int32_t sample(const void* logits, int64_t n_vocab,
                 Dtype dtype);  // applies, accepts, returns the token

  const History& history() const { return history_; }
  int64_t n_generated() const { return n_generated_; }
  ConstraintSampler* grammar() const { return grammar_.get(); }
  int64_t n_sampled() const { return n_sampled_; }
  double seconds() const { return seconds_; }
  void reset_perf() {
    seconds_ = 0;
    n_sampled_ = 0;
  }

  InUse in_use;

 private:
  void find_stateful();
  void run(Row& row);
  void take_back();
  void save(std::vector<State>& states) const;
  void restore(const State* states);

  std::vector<std::shared_ptr<LlamaSampler>> samplers_;
  std::shared_ptr<ConstraintSampler> grammar_;
  std::vector<LlamaSampler*> stateful_;
  History history_;
  int64_t n_generated_ = 0;
  // The states of the stateful samplers at the start and after each accepted token, so that going
  // back any number of tokens is exact: applications in between are undone as well.
  std::vector<State> saved_;
  std::vector<State> before_;
  Row row_;
  double seconds_ = 0;
  int64_t n_sampled_ = 0;
};

}  // namespace aleator::llama
