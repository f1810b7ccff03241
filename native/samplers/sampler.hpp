// What a built-in sampler is: see docs/adding-a-sampler.md for the Python side.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "errors.hpp"
#include "rng/philox.hpp"
#include "samplers/candidates.hpp"
#include "samplers/state.hpp"

namespace aleator {

// Tokens accepted since the last reset, prompt tokens among them.  One for the whole chain: a
// sampler with a window looks back into it, so going back any number of tokens is exact.
struct History {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> generated;  // 1 where the token advanced the position

  void push(int32_t token, bool by_chain) {
    tokens.push_back(token);
    generated.push_back(by_chain);
  }
  void pop() {
    tokens.pop_back();
    generated.pop_back();
  }
  void write(StateWriter& out) const {
    out.put<uint64_t>(tokens.size());
    out.put_all(tokens);
    out.put_all(generated);
  }
  void read(StateReader& in);

  static constexpr int32_t max_token = 1 << 24;
  static void check_token(int32_t token);
  void check_rollback(int64_t n) const {
    if (n < 0 || n > int64_t(tokens.size()))
      throw ParameterError("n", "cannot roll back ", n, " tokens: ", tokens.size(),
                           " were accepted");
  }
};

// Has a sampler accept a history token by token, as if it had been in the chain from the beginning.
template <typename S>
void replay(S& sampler, const History& history) {
  History replayed;
  for (size_t i = 0; i < history.tokens.size(); ++i) {
    replayed.push(history.tokens[i], history.generated[i] != 0);
    sampler.accept(replayed);
  }
}

// The states of samplers, each in a section of its own.
template <typename Samplers>
void write_states(StateWriter& out, const Samplers& samplers) {
  for (const auto& sampler : samplers)
    out.section([&](StateWriter& own) { sampler->write_state(own); });
}
template <typename Samplers>
void read_states(StateReader& in, const Samplers& samplers, const History& history) {
  for (const auto& sampler : samplers) {
    StateReader own = in.section();
    sampler->read_state(own, history);
    own.end();
  }
}

// What a draw is keyed by, besides the sampler's own seed and stream.
struct Step {
  uint64_t position = 0;
  uint32_t completion = 0;
  const History* history = nullptr;
};

// What a sampler of either kind of chain hears.
class Listener {
 public:
  virtual ~Listener() = default;
  // After a token was appended to the history, and before the last one is taken off again.
  virtual void accept(const History&) {}
  virtual void unaccept(const History&) {}
  virtual void reset() {}
  virtual void restart() {}  // a new text begins: constraints start anew
  // What the history does not tell.  read_state is called on a sampler that has accepted nothing;
  // afterwards it is as the one that wrote was after this history.
  virtual void write_state(StateWriter&) const {}
  virtual void read_state(StateReader&, const History& history) { replay(*this, history); }
};

class Sampler : public Listener {
 public:
  using When = Step;  // what apply is told besides the candidates
  virtual void apply(Candidates& candidates, const Step& step) = 0;
  virtual void set_ordinal(uint32_t) {}  // of its random stream, when the chain was edited
  virtual std::shared_ptr<Sampler> clone() const = 0;
  // Of one that holds others: copies of those that act now, and the history that they were told.
  virtual std::vector<std::shared_ptr<Sampler>> acting() const { return {clone()}; }
  virtual const History& heard(const History& all) const { return all; }
};

[[noreturn]] inline void throw_no_full_mass(const char* sampler) {
  throw ParameterError("mass", std::string(sampler) +
                                   " with mass='full' needs a Softmax before it, and nothing "
                                   "between them that changes logits or temperature");
}

// Clone for samplers whose copy constructor does it all.
template <typename Derived, typename Base = Sampler>
class Cloned : public Base {
 public:
  std::shared_ptr<Base> clone() const override {
    return std::make_shared<Derived>(static_cast<const Derived&>(*this));
  }
};

}  // namespace aleator
