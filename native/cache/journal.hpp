// One undo log for everything that a cache can change.
//
// Between begin and commit every change is recorded before it is made: cells and states keep logs
// of their own (parts), attributes and dictionary entries keep their old value, and what lies
// outside is put back by calls that were given beforehand.  Frames nest: an inner one is committed
// to the outer one, or taken back alone.
//
// Python runs signal handlers, and trace functions, only between its own bytecodes.  begin, record,
// commit and rollback are one native call each, and so is run(), which stands around a Python
// function: there is no line on which an interrupt could see a half of any of them.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/allocation.hpp"

namespace aleator::cache {

namespace nb = nanobind;

class Journal {
 public:
  // Seconds that a second thread waits while one has frames open; none: without an end.
  std::optional<double> lock_timeout;

  // The owner keeps the part alive.
  void enlist(nb::object owner, Part* part);

  size_t depth() const { return frames_.size(); }
  // A number that no other frame had; 0 outside of frames.
  uint64_t frame() const { return frames_.empty() ? 0 : frames_.back().id; }
  nb::object current() const;

  // Waits for other threads; raises CacheBusy after lock_timeout.
  void begin(nb::object owner);
  void commit();
  // Returns the interrupt that came while calls put things back, if there was one: an exception,
  // else nothing.  Such calls were repeated.
  nb::object rollback() noexcept;

  // The frames from the owner's on; without such a frame nothing happens.
  void close(nb::handle owner, bool keep);
  nb::object run(nb::callable function, nb::args args, nb::kwargs kwargs, bool keep);

  void set(nb::object target, nb::str name, nb::object value);
  void put(nb::dict target, nb::object key, nb::object value);
  void drop(nb::dict target, nb::object key);
  // If this frame is taken back, the call is made; it must be harmless to make it twice.
  void undo(nb::callable function, nb::args args);
  // When the outermost frame has been committed, the call is made, with the same condition.
  void after_commit(nb::callable function, nb::args args);

 private:
  struct Record {
    enum Kind { attribute, item, call } kind;
    nb::object target, key, old;  // of a call: function and arguments
  };
  struct Frame {
    nb::object owner;
    uint64_t id;
    size_t records, later;
  };
  struct Member {
    nb::object owner;
    Part* part;
  };

  void wait();
  void leave() noexcept;
  // Takes back what is above a frame and closes it; the last interrupt, if any.
  nb::object close_from(size_t depth, bool keep);

  std::vector<Member> parts_;
  Vector<Frame> frames_;
  Vector<Record> records_, later_;
  uint64_t last_id_ = 0;
  int closing_ = 0;           // outermost frames whose calls after the commit are being made
  unsigned long thread_ = 0;  // whose the frames are, while busy_

  std::mutex mutex_;
  std::condition_variable idle_;
  bool busy_ = false;
};

}  // namespace aleator::cache
