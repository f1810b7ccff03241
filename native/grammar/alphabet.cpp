#include "grammar/alphabet.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace aleator {
namespace {

constexpr size_t kMostWordsBelow = 4;

// The ranges of a set, negated or not, sorted and disjoint: [first, end).
std::vector<std::pair<uint64_t, uint64_t>> sorted_ranges(const CharacterSet& set) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges, merged;
  for (const auto& r : set.ranges)
    if (r.first <= r.last) ranges.emplace_back(r.first, uint64_t{r.last} + 1);
  std::sort(ranges.begin(), ranges.end());
  for (const auto& r : ranges) {
    if (!merged.empty() && r.first <= merged.back().second)
      merged.back().second = std::max(merged.back().second, r.second);
    else
      merged.push_back(r);
  }
  return merged;
}

}  // namespace

Alphabet::Alphabet(const Gbnf& grammar, const TokenTrie& trie) {
  // Intervals between all ends of ranges, then letters by splitting: two intervals stay one letter
  // as long as each set has both or neither.
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> all;
  std::vector<uint64_t> starts{0};
  for (const auto& set : grammar.sets) {
    all.push_back(sorted_ranges(set));
    for (const auto& [first, end] : all.back()) {
      starts.push_back(first);
      starts.push_back(end);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (starts.back() >> 32) starts.pop_back();
  starts_.assign(starts.begin(), starts.end());
  letters_.assign(starts_.size(), 0);
  int32_t n = 1;
  std::vector<size_t> sizes{starts_.size()};
  const auto place = [&](uint64_t start) {
    return size_t(std::lower_bound(starts_.begin(), starts_.end(), start) - starts_.begin());
  };
  for (const auto& ranges : all) {
    std::unordered_map<int32_t, std::vector<size_t>> inside;
    for (const auto& [first, end] : ranges)
      for (size_t i = place(first), stop = place(end); i < stop; ++i)
        inside[letters_[i]].push_back(i);
    for (const auto& [letter, places] : inside) {
      if (places.size() == sizes[letter]) continue;
      sizes[letter] -= places.size();
      sizes.push_back(places.size());
      for (const size_t i : places) letters_[i] = n;
      ++n;
    }
  }
  n_characters_ = n;

  // Letters of tails: by the sets in which they may end.
  std::map<std::vector<bool>, int32_t> by_sets;
  std::map<uint32_t, int32_t> tails;
  std::vector<std::vector<bool>> tail_sets;
  for (uint32_t node = 1; node < trie.n_nodes(); ++node) {
    const uint32_t label = trie.nodes()[node].label;
    if (!(label & TokenTrie::kTail) || tails.contains(label)) continue;
    const PartialUtf8 p = TokenTrie::tail_of(label);
    std::vector<bool> sets;
    for (const auto& set : grammar.sets) sets.push_back(set.may_become(p.value, p.n_remain));
    const auto [it, added] = by_sets.emplace(sets, n);
    if (added) {
      tail_sets.push_back(std::move(sets));
      ++n;
    }
    tails[label] = it->second;
  }
  size_ = n;
  for (size_t set = 0; set < all.size(); ++set) {
    const bool negated = grammar.sets[set].negated;
    auto& members = members_.emplace_back(n_characters_, negated);
    for (const auto& [first, end] : all[set])
      for (size_t i = place(first), stop = place(end); i < stop; ++i)
        members[letters_[i]] = !negated;
    for (const auto& sets : tail_sets) members.push_back(sets[set]);
  }
  for (uint32_t c = 0; c < 128; ++c) ascii_.push_back(find_letter(c));

  words_below_ = std::min((size_t(n) + 63) / 64, kMostWordsBelow);
  const uint32_t n_nodes = trie.n_nodes();
  node_letter_.assign(n_nodes, -1);
  below_.assign(n_nodes * words_below_, 0);
  root_children_.resize(n);
  std::vector<uint32_t> frequency(n, 0);
  for (uint32_t node = 1; node < n_nodes; ++node) {
    const auto& at = trie.nodes()[node];
    const int32_t l = at.label & TokenTrie::kTail ? tails[at.label] : letter(at.label);
    node_letter_[node] = l;
    ++frequency[l];
    if (at.depth == 1) {
      auto& children = root_children_[l];
      children.nodes.push_back(node);
      children.n_tokens += trie.nodes()[at.end].first_token - at.first_token;
    }
  }
  for (int32_t l = 0; l < n_characters_; ++l) by_frequency_.push_back(l);
  std::stable_sort(by_frequency_.begin(), by_frequency_.end(),
                   [&](int32_t a, int32_t b) { return frequency[a] > frequency[b]; });
  for (uint32_t node = n_nodes; node-- > 0;) {
    uint64_t* up = &below_[node * words_below_];
    for (uint32_t child = node + 1; child < trie.nodes()[node].end;
         child = trie.nodes()[child].end) {
      for (size_t w = 0; w < words_below_; ++w) up[w] |= below(child)[w];
      const auto bit = size_t(node_letter_[child]) % (64 * words_below_);
      up[bit / 64] |= uint64_t{1} << (bit % 64);
    }
  }
}

int32_t Alphabet::find_letter(uint32_t c) const {
  return letters_[std::upper_bound(starts_.begin(), starts_.end(), c) - starts_.begin() - 1];
}

}  // namespace aleator
