#include "grammar/token_trie.hpp"

#include <algorithm>
#include <span>

#include "grammar/constraint.hpp"

namespace aleator {

PartialUtf8 decode_utf8(std::string_view bytes, PartialUtf8 partial,
                        std::vector<uint32_t>& code_points) {
  bytes = bytes.substr(0, bytes.find('\0'));
  const size_t n_before = code_points.size();
  uint32_t value = partial.value;
  int32_t n_remain = std::max(partial.n_remain, 0);
  size_t i = 0;
  if (n_remain > 0) {  // only here is a continuation checked to be one
    for (; i < bytes.size() && n_remain > 0; ++i, --n_remain) {
      const auto byte = uint8_t(bytes[i]);
      if (byte >> 6 != 2) return {0, -1};
      value = (value << 6) + (byte & 0x3F);
    }
    if (n_remain == 0) code_points.push_back(value);
  }
  while (i < bytes.size()) {
    const auto first = uint8_t(bytes[i++]);
    if (first >> 6 == 2) {
      code_points.resize(n_before);
      return {0, -1};
    }
    n_remain = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    value = first & ((1u << (7 - n_remain)) - 1);
    for (; i < bytes.size() && n_remain > 0; ++i, --n_remain)
      value = (value << 6) + (uint8_t(bytes[i]) & 0x3F);
    if (n_remain == 0) code_points.push_back(value);
  }
  return n_remain > 0 ? PartialUtf8{value, n_remain} : PartialUtf8{};
}

void append_utf8(uint32_t c, std::string& text) {
  const auto more = [&](int shift) { text += char(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    text += char(c);
  } else if (c < 0x800) {
    text += char(0xC0 | c >> 6);
    more(0);
  } else if (c < 0x10000) {
    text += char(0xE0 | c >> 12);
    more(6), more(0);
  } else {
    text += char(0xF0 | c >> 18);
    more(12), more(6), more(0);
  }
}

TokenTrie::TokenTrie(std::vector<std::string> pieces, const std::vector<int32_t>& ends)
    : pieces_(std::move(pieces)), eog_(ends), is_end_(pieces_.size()), place_(pieces_.size(), -1) {
  for (const int32_t token : eog_) is_end_[token] = true;
  // The keys of all tokens in one array: code points, then a tail if there is one.
  std::vector<uint32_t> all;
  struct Key {
    size_t begin, size;
    int32_t token;
  };
  std::vector<Key> keys;
  for (int32_t token = 0; token < n_vocab(); ++token) {
    const std::string& text = piece(token);
    if (is_end(token) || text.empty() || text[0] == '\0') continue;
    if ((uint8_t(text[0]) & 0xC0) == 0x80) {
      continuations_.push_back(token);
      continue;
    }
    const size_t begin = all.size();
    const PartialUtf8 partial = decode_utf8(text, {}, all);
    if (partial.n_remain < 0) continue;  // never allowed
    // llama.cpp takes a code point 0 (an overlong sequence) for the end.
    const auto zero = std::find(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end(), 0u);
    all.erase(zero, all.end());
    if (partial.n_remain > 0) all.push_back(tail(partial));
    keys.push_back({begin, all.size() - begin, token});
  }
  const auto text_of = [&](const Key& k) { return std::span(all).subspan(k.begin, k.size); };
  std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
    const auto x = text_of(a), y = text_of(b);
    const auto [i, j] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
    if (i != x.end() && j != y.end()) return *i < *j;
    if (x.size() != y.size()) return x.size() < y.size();
    return a.token < b.token;
  });
  nodes_.push_back({0, 0, 0, 0, 0});
  std::vector<uint32_t> path{0};
  std::span<const uint32_t> last;
  for (const Key& key : keys) {
    const auto text = text_of(key);
    const auto common = size_t(
        std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    const auto here = uint32_t(order_.size());
    if (common < text.size()) {
      for (; path.size() > common + 1; path.pop_back())
        nodes_[path.back()].end = uint32_t(nodes_.size());
      for (size_t i = common; i < text.size(); ++i) {
        path.push_back(uint32_t(nodes_.size()));
        nodes_.push_back({text[i], 0, uint32_t(i + 1), here, 0});
      }
      depth_ = std::max(depth_, uint32_t(text.size()));
    }
    place_[key.token] = int32_t(here);
    order_.push_back(key.token);
    last = text;
  }
  for (const uint32_t node : path) nodes_[node].end = uint32_t(nodes_.size());
  for (size_t node = nodes_.size(); node-- > 0;)
    for (size_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end)
      nodes_[node].height = std::max(nodes_[node].height, nodes_[child].height + 1);
  const auto end = uint32_t(nodes_.size() + 1);
  nodes_.push_back({0, end, 0, uint32_t(order_.size()), 0});
  text_tokens_.assign(mask_words(n_vocab()), 0);
  for (const int32_t token : order_) text_tokens_[size_t(token) / 32] |= 1u << (token % 32);
}

size_t TokenTrie::bytes() const {
  size_t n = nodes_.size() * sizeof(Node) + (order_.size() + place_.size()) * 4;
  for (const auto& p : pieces_) n += sizeof p + (p.capacity() > 15 ? p.capacity() : 0);
  return n;
}

}  // namespace aleator
