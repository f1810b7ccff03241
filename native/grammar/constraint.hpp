// What the tokens of an output must obey: which token may come next, given those accepted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace aleator {

class Constraint {
 public:
  virtual ~Constraint() = default;
  virtual int32_t n_vocab() const = 0;
  // A lazy grammar before its trigger: everything is allowed.
  virtual bool waiting() const { return false; }
  // Fills ceil(n_vocab / 32) words: bit id % 32 of word id / 32 says that the token is allowed
  // next.
  virtual void mask(uint32_t* words) = 0;
  // The same for one token, cheaper.
  virtual bool allows(int32_t token) = 0;
  // Throws ConstraintError, which names the token, if it is not allowed; nothing has changed then.
  virtual void accept(int32_t token) = 0;
  // Takes back the last n accepts, exactly.
  virtual void rollback(int64_t n) = 0;
  virtual void reset() = 0;
  // The text so far is a whole sentence of the grammar: the generation may end.
  virtual bool complete() const = 0;
  // Bytes that the grammar forces next; none where it leaves a choice.
  virtual std::string jump_forward() = 0;
  virtual std::unique_ptr<Constraint> clone() const = 0;
};

inline int64_t mask_words(int64_t n_vocab) { return (n_vocab + 31) / 32; }

}  // namespace aleator
