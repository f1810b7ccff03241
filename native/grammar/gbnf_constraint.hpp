// GBNF grammars as constraints on tokens, with llama.cpp's masks.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/alphabet.hpp"
#include "grammar/constraint.hpp"
#include "grammar/gbnf.hpp"
#include "grammar/stack_sets.hpp"
#include "grammar/token_trie.hpp"
#include "grammar/trigger_pattern.hpp"

namespace aleator {

// What does not change: shared by all clones, in any thread.
struct GbnfProgram {
  GbnfProgram(Gbnf g, std::shared_ptr<const TokenTrie> t)
      : grammar(std::move(g)), trie(std::move(t)), alphabet(grammar, *trie) {}
  const Gbnf grammar;
  const std::shared_ptr<const TokenTrie> trie;
  const Alphabet alphabet;
};

class GbnfConstraint : public Constraint {
 public:
  // With triggers the grammar is lazy: it begins at one of these tokens, or where one of the
  // patterns matches the text since the beginning.
  GbnfConstraint(std::shared_ptr<const GbnfProgram> program,
                 std::vector<TriggerPattern> trigger_patterns, std::vector<int32_t> trigger_tokens);

  int32_t n_vocab() const override { return trie().n_vocab(); }
  void mask(uint32_t* words) override;
  bool allows(int32_t token) override;
  void accept(int32_t token) override;
  void rollback(int64_t n) override;
  void reset() override;
  bool waiting() const override { return state().waiting; }
  bool complete() const override { return waiting() || stacks_.empty(state().set); }
  std::string jump_forward() override;
  std::unique_ptr<Constraint> clone() const override;

 private:
  struct State {
    int32_t set;
    PartialUtf8 partial;
    bool waiting = false;
  };
  // What a token does to a state.
  struct Outcome {
    bool allowed = false;                // by the mask
    int32_t set = StackSets::kNone;      // as llama.cpp accepts it; kNone if it refuses ...
    std::vector<StackSets::Entry> tops;  // ... and the tops that let the mask allow it
    PartialUtf8 partial;
  };
  struct Mask {
    uint64_t key;
    std::vector<uint32_t> words;
  };

  const TokenTrie& trie() const { return *program_->trie; }
  const State& state() const { return states_.back(); }
  void begin();
  void check_token(int32_t token) const;
  bool may_end_in(int32_t set, PartialUtf8 partial) const;
  Outcome outcome(const State& from, int32_t token, std::string_view text);
  State next(const State& from, int32_t token);
  State wait(int32_t token);
  State replay(State at, int32_t token, std::string_view text);
  void compute_mask(uint32_t* words);
  template <bool kClear>
  void walk(uint32_t node, uint32_t end, uint32_t* words);
  void add_tokens(uint32_t node, int32_t set);
  std::optional<uint32_t> only_character(int32_t set, PartialUtf8 partial) const;

  std::shared_ptr<const GbnfProgram> program_;
  StackSets stacks_;
  std::vector<State> states_;  // after each token, the beginning first
  // While waiting: the text so far, and where the text of each token ends in it.  Kept after the
  // trigger for the sake of rollback.
  std::vector<TriggerPattern> trigger_patterns_;
  std::vector<int32_t> trigger_tokens_;
  std::string text_;
  std::vector<std::pair<int32_t, size_t>> waited_;
  // Masks by state, latest first.
  std::list<std::shared_ptr<const Mask>> masks_;
  std::unordered_map<uint64_t, std::list<std::shared_ptr<const Mask>>::iterator> mask_of_;
  // Used within a call.
  std::vector<int32_t> path_;
  std::vector<std::pair<uint32_t, uint32_t>> by_token_;  // places in the tree's order
  std::vector<uint32_t> code_points_;
};

}  // namespace aleator
