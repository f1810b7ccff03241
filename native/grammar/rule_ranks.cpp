// Which rules of a grammar may begin with which, and an order of the rules that follows it.
#include <algorithm>
#include <utility>

#include "grammar/gbnf.hpp"

namespace aleator {

namespace {

// A rule that may begin with another, and whether something stands behind it there.
struct Edge {
  int32_t to;
  bool grows;
};
using Edges = std::vector<std::vector<Edge>>;

Edges first_rules(const Gbnf& g, const std::vector<bool>& empty) {
  Edges edges(g.rules.size());
  for (size_t id = 0; id < g.rules.size(); ++id)
    for (int32_t e : g.rules[id].alternates)
      for (; e >= 0; e = g.elements[e].next) {
        const auto& element = g.elements[e];
        if (element.kind != Gbnf::Kind::rule) break;
        edges[id].push_back({element.value, element.next >= 0});
        if (!empty[element.value]) break;
      }
  return edges;
}

// Tarjan's strongly connected components, without recursion: component of each rule, those that
// are reached from others first.
std::vector<int32_t> components(const Edges& edges) {
  const size_t n = edges.size();
  std::vector<int32_t> component(n, -1), index(n, -1), low(n, 0), stack;
  std::vector<std::pair<int32_t, size_t>> path;
  int32_t n_components = 0, clock = 0;
  for (size_t start = 0; start < n; ++start) {
    if (index[start] >= 0) continue;
    path.emplace_back(int32_t(start), 0);
    while (!path.empty()) {
      const auto [rule, at] = path.back();
      const auto v = size_t(rule);
      if (at == 0) {
        index[v] = low[v] = clock++;
        stack.push_back(rule);
      }
      if (at < edges[v].size()) {
        ++path.back().second;
        const auto w = size_t(edges[v][at].to);
        if (index[w] < 0)
          path.emplace_back(int32_t(w), 0);
        else if (component[w] < 0)
          low[v] = std::min(low[v], index[w]);
        continue;
      }
      path.pop_back();
      if (!path.empty()) {
        auto& parent = low[path.back().first];
        parent = std::min(parent, low[v]);
      }
      if (low[v] == index[v]) {
        for (int32_t w = -1; w != rule;) {
          w = stack.back();
          stack.pop_back();
          component[w] = n_components;
        }
        ++n_components;
      }
    }
  }
  return component;
}

// The first rule that can begin with itself, -1 if none can; growing_only: where each turn of the
// recursion leaves something behind.
int32_t recursive(const Edges& edges, const std::vector<int32_t>& component, bool growing_only) {
  for (size_t id = 0; id < edges.size(); ++id)
    for (const Edge& edge : edges[id])
      if (component[id] == component[edge.to] && (edge.grows || !growing_only)) return int32_t(id);
  return -1;
}

// Adds the rules that have an alternate of possibly empty rules only.
void spread_empty(const Gbnf& g, std::vector<bool>& empty) {
  struct Alternate {
    size_t rule, n_full;
  };
  std::vector<Alternate> alternates;
  std::vector<std::vector<size_t>> used_by(g.rules.size());
  std::vector<size_t> todo;
  for (size_t id = 0; id < g.rules.size(); ++id) {
    if (empty[id]) todo.push_back(id);
    for (int32_t e : g.rules[id].alternates) {
      alternates.push_back({id, 0});
      for (; e >= 0; e = g.elements[e].next) {
        ++alternates.back().n_full;  // a character or token stays full
        if (g.elements[e].kind == Gbnf::Kind::rule)
          used_by[g.elements[e].value].push_back(alternates.size() - 1);
      }
    }
  }
  while (!todo.empty()) {
    const size_t id = todo.back();
    todo.pop_back();
    for (const size_t a : used_by[id]) {
      if (--alternates[a].n_full == 0 && !empty[alternates[a].rule]) {
        empty[alternates[a].rule] = true;
        todo.push_back(alternates[a].rule);
      }
    }
  }
}

}  // namespace

int32_t rank_rules(Gbnf& g) {
  const size_t n = g.rules.size();
  // llama.cpp refuses every rule that can begin with itself when only rules that have an empty
  // alternate count as possibly empty ...
  std::vector<bool> empty(n);
  for (size_t id = 0; id < n; ++id)
    for (const int32_t e : g.rules[id].alternates) empty[id] = empty[id] || e < 0;
  auto edges = first_rules(g, empty);
  if (const int32_t id = recursive(edges, components(edges), false); id >= 0) return id;
  // ... and does not end on the others, where each turn of the recursion leaves something behind.
  spread_empty(g, empty);
  edges = first_rules(g, empty);
  const auto component = components(edges);
  if (const int32_t id = recursive(edges, component, true); id >= 0) return id;
  for (size_t id = 0; id < n; ++id) g.rules[id].rank = -component[id];
  return -1;
}

}  // namespace aleator
