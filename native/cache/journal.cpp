#include "cache/journal.hpp"

#include <chrono>

#include "bind.hpp"

namespace aleator::cache {

namespace {

constexpr int kAttempts = 16;                            // of a call that interrupts break off
constexpr auto kSlice = std::chrono::milliseconds(100);  // signals are looked for as often

// Calls until it is done; the last interrupt, if any.
nb::object persist(nb::handle function, nb::handle args) noexcept {
  nb::object interrupt;
  for (int i = 0; i < kAttempts; ++i) {
    PyObject* result = PyObject_CallObject(function.ptr(), args.ptr());
    if (result) {
      Py_DECREF(result);
      break;
    }
    interrupt = nb::borrow(nb::python_error().value());
  }
  return interrupt;
}

[[noreturn]] void raise(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void Journal::enlist(nb::object owner, Part* part) {
  if (!frames_.empty()) throw std::runtime_error("a step is under way");
  parts_.push_back({std::move(owner), part});
}

nb::object Journal::current() const {
  for (auto f = frames_.rbegin(); f != frames_.rend(); ++f)
    if (!f->owner.is_none()) return f->owner;
  return nb::none();
}

void Journal::wait() {
  const unsigned long me = PyThread_get_thread_ident();
  if (!busy_ || thread_ == me) return;
  const auto start = std::chrono::steady_clock::now();
  while (busy_) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (lock_timeout && waited.count() >= *lock_timeout)
      raise(nb::module_::import_("aleator.core.errors").attr("CacheBusy")(*lock_timeout));
    auto slice = std::chrono::duration<double>(kSlice);
    if (lock_timeout)
      slice = std::min(slice, std::chrono::duration<double>(*lock_timeout) - waited);
    {
      nb::gil_scoped_release release;
      std::unique_lock lock(mutex_);
      idle_.wait_for(lock, slice, [&] { return !busy_; });
    }
    if (PyErr_CheckSignals()) throw nb::python_error();
  }
}

void Journal::leave() noexcept {
  if (!frames_.empty() || closing_ > 0) return;
  const std::lock_guard lock(mutex_);
  busy_ = false;
  idle_.notify_all();
}

void Journal::begin(nb::object owner) {
  wait();
  frames_.push_back({std::move(owner), last_id_ + 1, records_.size(), later_.size()});
  size_t begun = 0;
  try {
    for (; begun < parts_.size(); ++begun) parts_[begun].part->begin();
  } catch (...) {
    while (begun > 0) parts_[--begun].part->rollback();
    frames_.pop_back();
    throw;
  }
  ++last_id_;
  if (frames_.size() > 1) return;
  thread_ = PyThread_get_thread_ident();
  const std::lock_guard lock(mutex_);
  busy_ = true;
}

void Journal::commit() {
  for (Member& member : parts_) member.part->commit();
  const Frame done = std::move(frames_.back());
  frames_.pop_back();
  if (!frames_.empty()) return;
  // What they hold goes when all is done: it may run code of its own.
  const Vector<Record> records = std::exchange(records_, {});
  const Vector<Record> later = std::exchange(later_, {});
  nb::object interrupt;
  ++closing_;
  for (const Record& call : later)
    if (nb::object raised = persist(call.target, call.old); raised.is_valid())
      interrupt = std::move(raised);
  --closing_;
  leave();
  if (interrupt.is_valid()) raise(interrupt);
}

nb::object Journal::rollback() noexcept {
  nb::object interrupt;
  if (frames_.empty()) return interrupt;
  const size_t from = frames_.back().records;
  while (records_.size() > from) {
    Record record = std::move(records_.back());
    records_.pop_back();
    int failed = 0;
    switch (record.kind) {
      case Record::attribute:
        failed = PyObject_SetAttr(record.target.ptr(), record.key.ptr(), record.old.ptr());
        break;
      case Record::item:
        failed = record.old.is_valid()
                     ? PyDict_SetItem(record.target.ptr(), record.key.ptr(), record.old.ptr())
                     : PyDict_DelItem(record.target.ptr(), record.key.ptr());
        break;
      case Record::call:
        if (nb::object raised = persist(record.target, record.old); raised.is_valid())
          interrupt = std::move(raised);
        break;
    }
    if (failed) PyErr_Clear();  // the change was recorded, and then not made
  }
  later_.resize(frames_.back().later, Record{});
  for (Member& member : parts_) member.part->rollback();
  const Frame done = std::move(frames_.back());
  frames_.pop_back();
  leave();
  return interrupt;
}

void Journal::close(nb::handle owner, bool keep) {
  size_t i = frames_.size();
  while (i > 0 && !frames_[i - 1].owner.is(owner)) --i;
  if (i == 0) return;
  if (nb::object interrupt = close_from(i, keep); interrupt.is_valid()) raise(interrupt);
}

nb::object Journal::close_from(size_t depth, bool keep) {
  nb::object interrupt;
  const auto undo = [&] {
    if (nb::object raised = rollback(); raised.is_valid()) interrupt = std::move(raised);
  };
  while (frames_.size() > depth) undo();  // steps that were entered by hand and not left
  keep ? commit() : undo();
  return interrupt;
}

nb::object Journal::run(nb::callable function, nb::args args, nb::kwargs kwargs, bool keep) {
  begin(nb::none());
  const size_t depth = frames_.size();
  nb::object result =
      nb::steal(PyObject_Call(function.ptr(), args.ptr(), kwargs.size() ? kwargs.ptr() : nullptr));
  std::optional<nb::python_error> error;
  if (!result.is_valid()) error.emplace();
  const nb::object interrupt = close_from(depth, keep && !error);
  if (interrupt.is_valid()) raise(interrupt);
  if (error) throw std::move(*error);
  return result;
}

void Journal::set(nb::object target, nb::str name, nb::object value) {
  if (!frames_.empty()) {
    nb::object old = nb::steal(PyObject_GetAttr(target.ptr(), name.ptr()));
    if (!old.is_valid()) throw nb::python_error();
    records_.push_back({Record::attribute, target, name, std::move(old)});
  }
  if (PyObject_SetAttr(target.ptr(), name.ptr(), value.ptr())) throw nb::python_error();
}

void Journal::put(nb::dict target, nb::object key, nb::object value) {
  if (!frames_.empty()) {
    nb::object old = nb::borrow(PyDict_GetItemWithError(target.ptr(), key.ptr()));
    if (PyErr_Occurred()) throw nb::python_error();
    records_.push_back({Record::item, target, key, std::move(old)});
  }
  if (PyDict_SetItem(target.ptr(), key.ptr(), value.ptr())) throw nb::python_error();
}

void Journal::drop(nb::dict target, nb::object key) {
  nb::object old = nb::borrow(PyDict_GetItemWithError(target.ptr(), key.ptr()));
  if (PyErr_Occurred()) throw nb::python_error();
  if (!old.is_valid()) return;
  if (!frames_.empty()) records_.push_back({Record::item, target, key, old});
  if (PyDict_DelItem(target.ptr(), key.ptr())) throw nb::python_error();
}

void Journal::undo(nb::callable function, nb::args args) {
  if (frames_.empty()) return;
  records_.push_back({Record::call, std::move(function), nb::object(), std::move(args)});
}

void Journal::after_commit(nb::callable function, nb::args args) {
  if (frames_.empty()) {
    if (nb::object raised = persist(function, args); raised.is_valid()) raise(raised);
    return;
  }
  later_.push_back({Record::call, std::move(function), nb::object(), std::move(args)});
}

}  // namespace aleator::cache
