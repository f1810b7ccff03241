// Where a text may stand in a grammar: sets of stacks, each kept once.
//
// A stack holds the elements still to come, innermost on top.  A set of stacks is a map from top
// element to the set of what may lie below it, and whether the empty stack is in it; equal sets
// have one number, so comparing, storing and going back cost nothing, and stacks that differ only
// far down share all above. A set is closed when every top is a character or a token.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grammar/alphabet.hpp"
#include "grammar/gbnf.hpp"

namespace aleator {

class StackSets {
 public:
  static constexpr int32_t kNone = 0;   // no stack at all: the text is refused
  static constexpr int32_t kEmpty = 1;  // the empty stack alone: the text has ended

  struct Entry {
    int32_t element, below;
    auto operator<=>(const Entry&) const = default;
  };

  StackSets(const Gbnf& grammar, const Alphabet& alphabet);

  int32_t start();
  // The closed set after one letter; kEmpty stands for "may be" after a tail.
  int32_t after(int32_t set, int32_t letter) {
    const int32_t row = sets_[static_cast<size_t>(set)].row;
    if (row >= 0) {
      const int32_t known =
          rows_[static_cast<size_t>(row) * n_letters_ + static_cast<size_t>(letter)];
      if (known >= 0) return known;
    }
    return find_after(set, letter);
  }
  // True only if every word of up to `length` of these letters (bits as in Alphabet::below) is
  // allowed: all of them lead from the set to one and the same, or are tails that it allows, and so
  // on from there.
  bool all_allowed(int32_t set, const uint64_t* letters, uint32_t length);

  bool empty(int32_t set) const { return sets_[static_cast<size_t>(set)].empty; }
  bool tokens(int32_t set) const { return sets_[static_cast<size_t>(set)].tokens; }
  size_t n_entries(int32_t set) const { return sets_[static_cast<size_t>(set)].size; }
  Entry entry(int32_t set, size_t i) const {
    return entries_[sets_[static_cast<size_t>(set)].begin + i];
  }
  // The closed set of what follows these tops once they are consumed.
  int32_t past(const std::vector<Entry>& consumed);
  // A set of the given entries as they are.
  int32_t of(bool empty, std::vector<Entry> entries);
  int32_t both(int32_t a, int32_t b) { return unite(a, b, 0); }

  // Starts an operation, which may do so much work and no more: GrammarError.
  void begin_operation();
  uint64_t work_done() const;
  // Once memory is short, between operations: forgets what none of `live` needs and renumbers
  // `live`.
  bool untidy() const { return bytes() > tidy_at_; }
  void tidy(const std::vector<int32_t*>& live);
  size_t bytes() const;

 private:
  struct Set {
    size_t begin;
    uint32_t size;
    bool empty, tokens;
    int32_t closed = -1, row = -1, run = -1;
    int32_t usual = kNone;  // the set after the most frequent letter that is allowed
  };

  int32_t find_after(int32_t set, int32_t letter);
  bool all_usual(int32_t set, const uint64_t* letters);
  int32_t intern(bool empty, const std::vector<Entry>& entries);
  int32_t unite(int32_t a, int32_t b, int depth);
  int32_t close(int32_t set);
  void add_next(int32_t element, int32_t below, bool& empty, std::vector<Entry>& entries) const;
  void grow_index();
  void work(size_t n);
  void clear();

  const Gbnf& grammar_;
  const Alphabet& alphabet_;
  size_t n_letters_;
  std::vector<Set> sets_;
  std::vector<Entry> entries_;
  std::vector<int32_t> index_;  // open addressing over sets_
  std::unordered_map<uint64_t, int32_t> united_;
  std::vector<int32_t> rows_;
  std::vector<uint64_t> runs_;  // per run: letters that lead to the usual set, letters that do not
  uint64_t budget_ = 0;
  size_t tidy_at_;
};

}  // namespace aleator
