// A constraint in a chain: its mask for the next token, made once per state, and the parser kept in
// step with the tokens that the chain accepts.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "errors.hpp"
#include "grammar/constraint.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Constrained {
 public:
  Constrained(std::unique_ptr<Constraint> constraint, std::vector<int32_t> ends)
      : constraint_(std::move(constraint)), ends_(std::move(ends)) {}
  Constrained(const Constrained& other)
      : constraint_(other.constraint_->clone()),
        ends_(other.ends_),
        mask_(other.mask_),
        accepted_(other.accepted_),
        current_(other.current_) {}
  Constrained& operator=(const Constrained&) = delete;

  Constraint& constraint() { return *constraint_; }
  bool waiting() const { return constraint_->waiting(); }  // then every token is allowed

  // One bit a token, words of 32, tokens past the end masked.  Throws if no token is allowed.
  std::span<const uint32_t> mask();
  int64_t count();  // tokens allowed
  bool allows(int32_t token);
  // Whether the text is complete and nothing but its end may follow.
  bool finished();

  // Tokens of the prompt are not part of the constrained text.
  void accept(const History& history) {
    if (!history.generated.back()) return;
    constraint_->accept(history.tokens.back());  // refuses a wrong token and stays as it is
    ++accepted_;
    current_ = false;
  }
  void unaccept(const History& history) {
    if (!history.generated.back() || !accepted_) return;  // or of an earlier text
    constraint_->rollback(1);
    --accepted_;
    current_ = false;
  }
  void write_state(StateWriter& out) const { out.put<uint64_t>(accepted_); }
  // The parser's position is that after the tokens of the present text: the last ones generated.
  void read_state(StateReader& in, const History& history) {
    const auto n = in.get<uint64_t>();
    std::vector<int32_t> text;
    for (size_t i = history.tokens.size(); i-- > 0 && text.size() < n;)
      if (history.generated[i]) text.push_back(history.tokens[i]);
    if (text.size() < n) in.refuse("its grammar has accepted more tokens than there are");
    for (; !text.empty(); text.pop_back()) constraint_->accept(text.back());
    accepted_ = int64_t(n);
  }
  void reset() {
    constraint_->reset();
    accepted_ = 0;
    current_ = false;
  }

 private:
  std::unique_ptr<Constraint> constraint_;
  std::vector<int32_t> ends_;  // end-of-generation tokens
  std::vector<uint32_t> mask_;
  int64_t accepted_ = 0;  // tokens of the present text
  bool current_ = false;
};

[[noreturn]] void nothing_allowed();

// A constraint as a sampler of either kind of chain, of which Base is the sampler.
template <typename Base>
class ConstraintIn : public Base {
 public:
  ConstraintIn(const Constraint& constraint, std::vector<int32_t> ends)
      : constrained_(constraint.clone(), std::move(ends)) {}

  void accept(const History& h) override { constrained_.accept(h); }
  void unaccept(const History& h) override { constrained_.unaccept(h); }
  void reset() override { constrained_.reset(); }
  void restart() override { constrained_.reset(); }
  void write_state(StateWriter& out) const override { constrained_.write_state(out); }
  void read_state(StateReader& in, const History& h) override { constrained_.read_state(in, h); }
  Constrained& constrained() { return constrained_; }

 protected:
  Constrained constrained_;
};

}  // namespace aleator
