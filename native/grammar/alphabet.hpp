// The characters that a grammar tells apart, and the nodes of a vocabulary's tree in those terms.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/gbnf.hpp"
#include "grammar/token_trie.hpp"

namespace aleator {

// Code points that no character set of a grammar tells apart are one letter, and so are incomplete
// sequences (tails); a token is then a short word, and a state needs one successor per letter.
class Alphabet {
 public:
  Alphabet(const Gbnf& grammar, const TokenTrie& trie);

  int32_t size() const { return size_; }
  int32_t n_characters() const { return n_characters_; }  // letters from here on are tails
  int32_t letter(uint32_t c) const { return c < 128 ? ascii_[c] : find_letter(c); }
  bool has(int32_t set, int32_t letter) const { return members_[set][letter]; }
  int32_t letter_of_node(uint32_t node) const { return node_letter_[node]; }

  // Letters of characters, those first that most nodes have.
  const std::vector<int32_t>& by_frequency() const { return by_frequency_; }

  // Letters below a node as bits: bit letter % (64 * words_below()).
  size_t words_below() const { return words_below_; }
  const uint64_t* below(uint32_t node) const { return &below_[node * words_below_]; }

  // Children of the root by letter, and the tokens under them.
  struct RootChildren {
    std::vector<uint32_t> nodes;
    uint32_t n_tokens = 0;
  };
  const std::vector<RootChildren>& root_children() const { return root_children_; }

 private:
  int32_t find_letter(uint32_t code_point) const;

  int32_t size_, n_characters_;
  size_t words_below_;
  std::vector<uint32_t> starts_;  // of the intervals of code points ...
  std::vector<int32_t> letters_;  // ... and their letters
  std::vector<int32_t> ascii_;
  std::vector<std::vector<bool>> members_;  // per set, whether it has a letter
  std::vector<int32_t> node_letter_;
  std::vector<uint64_t> below_;
  std::vector<int32_t> by_frequency_;
  std::vector<RootChildren> root_children_;
};

}  // namespace aleator
