// GBNF, llama.cpp's grammar notation: text to rules.
//
// A repetition becomes rules of its own, as in llama.cpp: S* is R ::= S R | (nothing), S{2,4} is S
// S R2, R2 ::= S R1 |, R1 ::= S |.  Its limits on repetition count the same things.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace aleator {

// One character of the text: any of some ranges, or none of them.
struct CharacterSet {
  struct Range {
    uint32_t first, last;  // as written: first may be the larger
    auto operator<=>(const Range&) const = default;
  };
  bool negated = false;  // `.` is the negated set of nothing
  std::vector<Range> ranges;
  // Not by <=>, which vectors of older C++ libraries lack.
  bool operator<(const CharacterSet& o) const {
    return std::tie(negated, ranges) < std::tie(o.negated, o.ranges);
  }

  bool has(uint32_t code_point) const;
  // Whether a sequence of which n_remain bytes are missing may become an allowed character.  As in
  // llama.cpp a negated set refuses the whole interval when it meets one of its ranges.
  bool may_become(uint32_t value, int n_remain) const;
};

struct Gbnf {
  enum class Kind : uint8_t { character, rule, token, not_token };
  struct Element {
    Kind kind;
    int32_t value;  // index of the character set or rule, or the token id
    int32_t next;   // the element that follows in its alternate, -1 at the end
  };
  struct Rule {
    std::string name;
    std::vector<int32_t> alternates;  // first elements, -1 for an empty alternate
    int32_t rank = 0;  // a rule that may begin with this one has a smaller or equal rank
  };
  std::vector<Element> elements;
  std::vector<int32_t> rank;  // of the rule that an element stands in
  std::vector<Rule> rules;
  std::vector<CharacterSet> sets;
  int32_t root = 0;
};

// Limits, so that a small text cannot ask for much.
inline constexpr size_t kMaxElements = 1'000'000;
inline constexpr size_t kMaxSets = 10'000;
inline constexpr int kMaxNesting = 500;
inline constexpr size_t kMaxText = size_t{16} << 20;

// A larger maximum of repetitions is none, as in llama.cpp, where the minimum is not larger itself.
inline constexpr uint64_t kLargestMaximum = 2000;

// The token that a text like "<think>" stands for, or -1.
using TokenOf = std::function<int32_t(std::string_view)>;

// `text` is UTF-8.  Throws GrammarError with line, column, reason and the line.
Gbnf parse_gbnf(std::string_view text, std::string_view root, int32_t n_vocab,
                const TokenOf& token_of);

// In rule_ranks.cpp.  Gives every rule its rank: one that may begin with another has a smaller or
// equal rank.  Returns a rule that can begin with itself, which llama.cpp refuses or does not end
// on; -1 if none can.
int32_t rank_rules(Gbnf& g);

}  // namespace aleator
