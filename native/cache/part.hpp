// What a journal begins, commits and takes back with everything else.
#pragma once

namespace aleator::cache {

// What keeps an undo log of its own.  begin may throw, and then has done nothing.
class Part {
 public:
  virtual void begin() = 0;
  virtual void commit() noexcept = 0;
  virtual void rollback() noexcept = 0;

 protected:
  ~Part() = default;
};

}  // namespace aleator::cache
