// DRY's search: where the newest tokens repeat an earlier run, and which token followed there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "samplers/sampler.hpp"

namespace aleator {

// Which tokens followed the earlier occurrences of the newest tokens, and how long a run each of
// them continued: a suffix automaton of the whole history.  Another token costs about the same
// whatever the length, and the last one can be taken back exactly.
class Suffixes {
 public:
  // Runs shorter than `least`, 1 or more, do not count.
  explicit Suffixes(int64_t least) : least_(least) { clear(); }

  int64_t size() const { return int64_t(steps_.size()); }

  void clear() {
    states_.assign(1, {0, -1, -1, 0});
    edges_.clear();
    changes_.clear();
    steps_.clear();
    table_.assign(64, 0);
    last_ = counted_ = 0;
  }

  void push(int32_t token) {
    try {
      append(token);
    } catch (...) {  // no memory: begin anew next time
      clear();
      throw;
    }
  }

  void pop() {
    const Step before = steps_.back();
    steps_.pop_back();
    for (; count(changes_) > before.changes; changes_.pop_back()) {
      const Change& c = changes_.back();
      (c.link ? states_[c.index].link : edges_[c.index].target) = c.old;
    }
    for (; count(edges_) > before.edges; edges_.pop_back()) {
      const Edge& e = edges_.back();
      table_[slot(e.state, e.token)] = 0;
      states_[e.state].first = e.next;
      --states_[e.state].n_edges;
    }
    states_.resize(before.states);
    last_ = before.last;
    counted_ = before.counted;
  }

  // Fills `longest`, which is empty: by token that followed, the length of the longest run before
  // it that the newest tokens repeat, if that is `least` or more; no length above `limit`.
  void following(int64_t limit, std::unordered_map<int32_t, int64_t>& longest) const {
    // Whatever follows a longer run follows its end too, so the shortest that counts has them all.
    const auto all = size_t(states_[counted_].n_edges);
    for (int32_t v = states_[last_].link;
         v >= 0 && states_[v].length >= least_ && longest.size() < all; v = states_[v].link)
      for (int32_t e = states_[v].first; e >= 0; e = edges_[e].next)
        longest.try_emplace(edges_[e].token, std::min<int64_t>(states_[v].length, limit));
  }

 private:
  struct State {
    int32_t length;          // of its longest run
    int32_t link;            // the state of the runs' longest end that occurs elsewhere too
    int32_t first, n_edges;  // edges, latest first
  };
  struct Edge {
    int32_t state, token, target, next;
  };
  struct Change {
    int32_t index, old;
    bool link;  // of a state, else an edge's target
  };
  // The sizes before a token, and what last_ and counted_ were.
  struct Step {
    int32_t states, edges, changes, last, counted;
  };

  template <typename T>
  static int32_t count(const std::vector<T>& values) {
    return int32_t(values.size());
  }

  void append(int32_t token) {
    steps_.push_back({count(states_), count(edges_), count(changes_), last_, counted_});
    const int64_t counted_length = std::min(least_, size() - 1);
    const int32_t added = add_state(states_[last_].length + 1, 0);
    int32_t p = last_, edge = -1;
    for (; p >= 0 && (edge = find(p, token)) < 0; p = states_[p].link) add_edge(p, token, added);
    if (p >= 0) {
      const int32_t q = edges_[edge].target;
      if (states_[q].length == states_[p].length + 1) {
        states_[added].link = q;
      } else {
        const int32_t half = split(q, states_[p].length + 1);
        for (; p >= 0 && (edge = find(p, token)) >= 0 && edges_[edge].target == q;
             p = states_[p].link) {
          changes_.push_back({edge, q, false});
          edges_[edge].target = half;
        }
        states_[added].link = half;
        if (counted_ == q && counted_length <= states_[half].length) counted_ = half;
      }
    }
    last_ = added;
    counted_ = edges_[find(counted_, token)].target;
    const int64_t wanted = std::min(least_, counted_length + 1);
    while (counted_ != 0 && states_[states_[counted_].link].length >= wanted)
      counted_ = states_[counted_].link;
  }

  int32_t add_state(int32_t length, int32_t link) {
    states_.push_back({length, link, -1, 0});
    return count(states_) - 1;
  }

  // A state for the shorter runs of q, up to `length`, with q's edges.
  int32_t split(int32_t q, int32_t length) {
    const int32_t half = add_state(length, states_[q].link);
    for (int32_t e = states_[q].first; e >= 0; e = edges_[e].next)
      add_edge(half, edges_[e].token, edges_[e].target);
    changes_.push_back({q, states_[q].link, true});
    states_[q].link = half;
    return half;
  }

  void add_edge(int32_t state, int32_t token, int32_t target) {
    if (2 * (edges_.size() + 1) > table_.size()) grow();
    table_[slot(state, token)] = count(edges_) + 1;
    edges_.push_back({state, token, target, states_[state].first});
    states_[state].first = count(edges_) - 1;
    ++states_[state].n_edges;
  }

  int32_t find(int32_t state, int32_t token) const { return table_[slot(state, token)] - 1; }

  // Where an edge stands in the table, or the free place where it would.  Edges are added in order
  // and go in reverse order, so an empty place never interrupts the way to another.
  size_t slot(int32_t state, int32_t token) const {
    const uint64_t key = uint64_t(uint32_t(state)) << 32 | uint32_t(token);
    const size_t mask = table_.size() - 1;
    size_t at = (key * 0x9E3779B97F4A7C15u >> 24) & mask;
    for (; table_[at]; at = (at + 1) & mask) {
      const Edge& e = edges_[size_t(table_[at]) - 1];
      if (e.state == state && e.token == token) break;
    }
    return at;
  }

  void grow() {
    table_.assign(4 * table_.size(), 0);
    for (int32_t e = 0; e < count(edges_); ++e)
      table_[slot(edges_[e].state, edges_[e].token)] = e + 1;
  }

  int64_t least_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // open addressing: an edge's index plus 1, or 0
  std::vector<Change> changes_;
  std::vector<Step> steps_;  // one for each token
  int32_t last_, counted_;   // the states of all tokens, and of the newest `least`
};

class Repeats {
 public:
  // Breakers: token sequences; the first token of each is its head.
  Repeats(int64_t allowed, int64_t last_n, const std::vector<std::vector<int32_t>>& breakers)
      : allowed_(allowed), last_n_(last_n), suffixes_(std::max<int64_t>(allowed, 1)) {
    for (const auto& b : breakers) {
      if (b.empty()) continue;
      tails_[b[0]].emplace_back(b.begin() + 1, b.end());
      longest_tail_ = std::max(longest_tail_, int64_t(b.size()) - 1);
    }
  }

  // Before the last token is taken off, and when all are.
  void unaccept(const History& history) {
    const auto left = int64_t(history.tokens.size()) - 1;
    if (suffixes_.size() > left) suffixes_.pop();
    const int64_t settled = std::max<int64_t>(0, left - longest_tail_);
    if (int64_t(breakers_.size()) > settled) breakers_.resize(settled);
  }
  void reset() {
    suffixes_.clear();
    breakers_.clear();
  }

  // Fills found(); false if the window, or what follows the last breaker in it, is too short to
  // search.
  bool find(const History& history) {
    tokens_.clear();
    longest_.clear();
    const auto& tokens = history.tokens;
    const auto all = int64_t(tokens.size());
    const int64_t n = last_n_ < 0 ? all : std::min(all, last_n_);
    if (n <= allowed_) return false;
    const auto recent = [&](int64_t i) { return tokens[all - 1 - i]; };  // 0 is the newest
    // Nothing is known of what follows runs of no token; and in a short window looking is cheap.
    if (n == all && allowed_ > 0 && (last_n_ < 0 || last_n_ > short_window)) {
      const int64_t limit = since_breaker(tokens);
      if (limit < allowed_) return false;
      for (auto i = suffixes_.size(); i < all; ++i) suffixes_.push(tokens[i]);
      suffixes_.following(limit, longest_);
    } else {
      const int64_t limit = uninterrupted(recent, n);
      if (limit < allowed_) return false;
      collect(recent, n, limit);
    }
    for (const auto& [token, length] : longest_)
      if (!breaks(token)) tokens_.push_back(token);
    return true;
  }

  // The tokens that would continue a repetition; those that are breakers by themselves left out.
  const std::vector<int32_t>& found() const { return tokens_; }
  // By how much the longest repetition before a found token exceeds the allowed length; -1 for
  // other tokens.
  int64_t excess(int32_t token) const {
    const auto at = longest_.find(token);
    return at == longest_.end() || breaks(token) ? -1 : at->second - allowed_;
  }

 private:
  bool breaks(int32_t token) const {
    const auto breaker = tails_.find(token);
    return breaker != tails_.end() && std::any_of(breaker->second.begin(), breaker->second.end(),
                                                  [](const auto& tail) { return tail.empty(); });
  }

  static constexpr int64_t short_window = 512;

  // The length of the longest tail with which the token i places back is a breaker; -1: it is none.
  template <typename Recent>
  int64_t tail_at(Recent recent, int64_t i) const {
    const auto breaker = tails_.find(recent(i));
    if (breaker == tails_.end()) return -1;
    int64_t longest = -1;
    for (const auto& tail : breaker->second) {
      const auto length = int64_t(tail.size());
      if (length <= longest || length > i) continue;
      bool matches = true;
      for (int64_t j = 0; j < length && matches; ++j) matches = tail[j] == recent(i - 1 - j);
      if (matches) longest = length;
    }
    return longest;
  }

  // uninterrupted() of the whole history, which remembers the breakers that nothing can change any
  // more: those with enough tokens after them for every tail.
  int64_t since_breaker(const std::vector<int32_t>& tokens) {
    const auto all = int64_t(tokens.size());
    if (tails_.empty()) return all;
    const auto recent = [&](int64_t i) { return tokens[all - 1 - i]; };
    const int64_t open = std::min(all, longest_tail_);
    for (auto at = int64_t(breakers_.size()); at < all - open; ++at) {
      const bool breaks = tail_at(recent, all - 1 - at) >= 0;
      breakers_.push_back(breaks ? at : at > 0 ? breakers_[at - 1] : -1);
    }
    for (int64_t i = 0; i < open; ++i)
      if (const int64_t tail = tail_at(recent, i); tail >= 0) return i - tail;
    if (open == all || breakers_[all - open - 1] < 0) return all;
    const int64_t i = all - 1 - breakers_[all - open - 1];
    return i - tail_at(recent, i);
  }

  // How many of the newest tokens stand before the nearest sequence breaker.
  template <typename Recent>
  int64_t uninterrupted(Recent recent, int64_t n) const {
    if (tails_.empty()) return n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t tail = tail_at(recent, i);
      if (tail >= 0) return i - tail;
    }
    return n;
  }

  // For every earlier place whose past equals the newest tokens for at least `allowed_` of them:
  // the token that followed there, with the longest such length.  The lengths are the Z function of
  // the reversed window.
  template <typename Recent>
  void collect(Recent recent, int64_t n, int64_t limit) {
    z_.assign(n, 0);
    int64_t left = 0, right = 0;  // the known match [left, right) that reaches furthest
    for (int64_t k = 1; k < n; ++k) {
      int64_t length = k < right ? std::min(right - k, z_[k - left]) : 0;
      while (k + length < n && recent(length) == recent(k + length)) ++length;
      z_[k] = length;
      if (k + length > right) left = k, right = k + length;
      const int64_t counted = std::min(length, limit);
      if (counted >= allowed_) {
        int64_t& best = longest_[recent(k - 1)];
        best = std::max(best, counted);
      }
    }
  }

  int64_t allowed_, last_n_, longest_tail_ = 0;
  std::unordered_map<int32_t, std::vector<std::vector<int32_t>>> tails_;
  std::vector<int64_t> z_;
  std::unordered_map<int32_t, int64_t> longest_;
  std::vector<int32_t> tokens_;
  // Of a whole history, as far as it was looked at.
  Suffixes suffixes_;
  std::vector<int64_t> breakers_;  // by place: where the nearest breaker up to it is, or -1
};

// What DRY of both kinds of chain keeps; Base is the chain's sampler, and Number its numbers.
template <typename Base, typename Number>
class Repeating : public Base {
 public:
  Repeating(Number multiplier, Number base, int64_t allowed, int64_t last_n,
            const std::vector<std::vector<int32_t>>& breakers)
      : active_(multiplier != 0 && base >= 1 && last_n != 0),
        multiplier_(multiplier),
        base_(base),
        repeats_(allowed, last_n, breakers) {}

  void unaccept(const History& history) override { repeats_.unaccept(history); }
  void reset() override { repeats_.reset(); }

 protected:
  bool active_;
  Number multiplier_, base_;
  Repeats repeats_;
};

}  // namespace aleator
