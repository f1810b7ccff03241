// Mixtures of experts: feed-forward layers of which a router chooses a few for each token
// (Shazeer et al. 2017, arXiv:1701.06538).  Only the weights of experts that were chosen are read.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/gates.hpp"
#include "layers/products.hpp"
#include "layers/routing.hpp"

namespace aleator {

// Without a gate there is no `up`, and `gate` is what is activated.
struct Expert {
  Weights gate, up, down;
  bool gated() const { return up.data; }
};

struct Mixture {
  Weights router;  // [n_experts, n_embd]
  Routing routing;
  std::vector<Expert> experts;  // all of the same sizes and types
  Expert shared;                // takes every token; no gate: there is none
  Weights shared_router;        // [1, n_embd]: its weight is the sigmoid of this product; or 1
  bool weighs_input = false;    // an expert's weight multiplies what it takes, not what it gives
  Gate gate = Gate::silu;
  // Where a dense part stands beside the experts: norms of what the router takes, of what the
  // experts take, of what the dense part gives, and of what the experts give, all [n_embd].
  const float *router_norm = nullptr, *expert_norm = nullptr;
  const float *dense_post_norm = nullptr, *expert_post_norm = nullptr;
  bool beside() const { return router_norm; }
  int64_t n_ff() const { return experts[0].gate.out; }
};

class Experts {
 public:
  // Makes room for a mixture's `tokens`; one thread, once for each mixture of a step.
  void prepare(int64_t tokens, int64_t n_embd, const Mixture& m);
  // What the mixture gives for the normalised running sum: rows of `out`.  Every thread; all have
  // passed a barrier at the end.
  void run(int thread, Products& products, const Mixture& m, const float* norm);
  float* out(int64_t token) { return &out_[token * n_embd_]; }

 private:
  // Tokens that one expert takes: rows [first, first + tokens) of the slots, or all tokens.
  struct Group {
    const Expert* expert;
    int64_t first, tokens;
    int64_t units, units_down;             // pieces of work before it
    size_t run, last_run;                  // [run, last_run) of its rows' adapters
    const Adapters::OfMatrix* adapted[3];  // those of gate, up and down
    const LowRank* with(int which, int32_t adapter) const {
      return Adapters::one(adapted[which], adapter);
    }
  };
  void choose(int thread, Products& products, const Mixture& m);
  void group(const Mixture& m, const Adapters& adapters);
  void adapt(Group& g, const Mixture& m, const Adapters& adapters);
  void gather(int thread, Pool& pool, const Mixture& m, const Input& x);
  void activate(int thread, Products& products, const Mixture& m, const Input& x);
  void give_back(int thread, Products& products, const Mixture& m);
  // What adapters make of the input of gate and up, or of down; a barrier follows.
  void lower(int thread, Products& products, const Mixture& m, const Input& x, bool down);
  void add(const Adapters& adapters, const Group& g, int which, int64_t begin, int64_t end,
           float* y) const;
  bool gathers(const Mixture& m) const { return tokens_ > 1 || m.weighs_input; }
  Input input(const Mixture& m, const Group& g, const Input& x) const;
  Input hidden(const Mixture& m, const Group& g) const;

  int64_t tokens_ = 0, n_embd_ = 0;
  std::vector<float> logits_, keys_, weights_, shared_weight_;  // weights [tokens, n_used]
  std::vector<int32_t> chosen_;                                 // [tokens, n_used]
  std::vector<int64_t> slot_, token_;  // of each choice its slot, of each slot its choice
  std::vector<int64_t> counts_;
  std::vector<Group> groups_;
  AdaptedRows adapted_;  // of the groups, one after the other
  std::vector<size_t> group_of_run_;
  std::vector<float> low_;  // A x of gate and up, or of down: [2 or 1, entries, rank]
  int64_t units_ = 0, units_down_ = 0;
  std::vector<float> gathered_, gate_, up_, down_, shared_gate_, shared_up_, shared_down_, out_;
  std::vector<float> ones_;  // in place of up, where there is none
  FormedRows gathered_forms_, hidden_, shared_hidden_;
};

}  // namespace aleator
