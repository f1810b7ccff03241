// A vocabulary as grammars read it: the tokens' characters as a tree, built once per vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aleator {

// The beginning of a UTF-8 sequence, whose last n_remain bytes are in the next token.
struct PartialUtf8 {
  uint32_t value = 0;
  int32_t n_remain = 0;  // -1 after bytes that are not UTF-8
  bool operator==(const PartialUtf8&) const = default;
};

// Appends the code points of `bytes` after `partial`, with llama.cpp's idea of invalid bytes, and
// returns what is left over.  Bytes from a NUL on do not count.  Invalid: no code points, n_remain
// -1.
PartialUtf8 decode_utf8(std::string_view bytes, PartialUtf8 partial,
                        std::vector<uint32_t>& code_points);
void append_utf8(uint32_t code_point, std::string& text);

class TokenTrie {
 public:
  // A tail is the incomplete sequence that tokens end in: a leaf that stands in for a character.
  static constexpr uint32_t kTail = 0x80000000u;
  static uint32_t tail(PartialUtf8 p) { return kTail | uint32_t(p.n_remain) << 24 | p.value; }
  static PartialUtf8 tail_of(uint32_t label) {
    return {label & 0xFFFFFF, int32_t(label >> 24 & 0x7F)};
  }

  // Nodes in preorder; node 0 is the root.  Siblings are in order of label, tails last.
  struct Node {
    uint32_t label;  // code point or tail
    uint32_t end;    // the node after the subtree
    uint32_t depth;
    uint32_t first_token;  // in `order`; its own tokens come before its children's
    uint32_t height;       // of the subtree: 0 for a leaf
  };

  TokenTrie(std::vector<std::string> pieces, const std::vector<int32_t>& end_of_generation);

  int32_t n_vocab() const { return int32_t(pieces_.size()); }
  const std::vector<Node>& nodes() const { return nodes_; }  // and one more, past the end
  uint32_t n_nodes() const { return uint32_t(nodes_.size() - 1); }
  const std::vector<int32_t>& order() const { return order_; }  // tokens with text, as in the tree
  int32_t place(int32_t token) const { return place_[token]; }  // or -1
  const std::vector<uint32_t>& text_tokens() const { return text_tokens_; }  // as a mask
  const std::vector<int32_t>& end_of_generation() const { return eog_; }
  bool is_end(int32_t token) const { return is_end_[token]; }
  const std::string& piece(int32_t token) const { return pieces_[token]; }
  // Tokens that begin in the middle of a UTF-8 sequence.
  const std::vector<int32_t>& continuations() const { return continuations_; }
  uint32_t depth() const { return depth_; }
  size_t bytes() const;

 private:
  std::vector<std::string> pieces_;
  std::vector<int32_t> eog_;
  std::vector<bool> is_end_;
  std::vector<Node> nodes_;
  std::vector<int32_t> order_, place_, continuations_;
  std::vector<uint32_t> text_tokens_;
  uint32_t depth_ = 0;
};

}  // namespace aleator
