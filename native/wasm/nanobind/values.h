// JavaScript's values: each has a number in a table that js/src/native.js keeps, 0 for undefined
// and null.
#pragma once

#include <string.h>

#define ALEATOR_JS(name) __attribute__((import_module("js"), import_name(#name)))

extern "C" {
// The numbers that are given back are new, and for one js_free each.
ALEATOR_JS(copy) int js_copy(int value);
ALEATOR_JS(free) void js_free(int value);
ALEATOR_JS(kind) int js_kind(int value);  // Kind
ALEATOR_JS(number) double js_number(int value);
// Whether it is an integer of 64 bits, signed or not.
ALEATOR_JS(integer) int js_integer(int value, int64_t* low, int* negative);
ALEATOR_JS(text) char* js_text(int value, int* length);  // UTF-8, for one ::free
ALEATOR_JS(get) int js_get(int object, const char* name, int length);
ALEATOR_JS(has) int js_has(int object, const char* name, int length);
ALEATOR_JS(item) int js_item(int list, int index);
ALEATOR_JS(length) int js_length(int list);  // -1: it is none
// -1: it has thrown, and the error waits for raise.
ALEATOR_JS(call) int js_call(int function, int self, int count, const int* arguments);
ALEATOR_JS(of_number) int js_of_number(double number);
ALEATOR_JS(of_integer) int js_of_integer(int64_t number, int is_signed);
ALEATOR_JS(of_boolean) int js_of_boolean(int value);
ALEATOR_JS(of_text) int js_of_text(const char* text, int length);
ALEATOR_JS(of_array)
int js_of_array(int type, const void* data, int count, int ndim, const int* shape);
ALEATOR_JS(of_instance) int js_of_instance(int type, void* instance);
ALEATOR_JS(list) int js_list();
ALEATOR_JS(push) void js_push(int list, int value);
// Whether it is an array of numbers: its type, its place (0: in JavaScript's memory), how many
// there are, dimensions, and up to 4 sizes.
ALEATOR_JS(array) int js_array(int value, int* described);
ALEATOR_JS(read) void js_read(int array, void* to);
ALEATOR_JS(instance) void* js_instance(int value);  // null: it is none
ALEATOR_JS(define_class) void js_define_class(int id, const char* name, int length, int base);
ALEATOR_JS(define) void js_define(int id, int type, const char* name, int length, int role);
// The next call that ends gives this error to its caller.
ALEATOR_JS(fail)
void js_fail(const char* type, int type_length, const char* message, int length, double first,
             double second);
}

namespace nanobind {

enum class Kind : int {
  none,
  boolean,
  number,
  bigint,
  text,
  list,
  array,
  instance,
  function,
  other
};

struct cast_error : std::runtime_error {
  cast_error() : std::runtime_error("a value is of another type") {}
};
struct python_error : std::runtime_error {  // the error is JavaScript's, and waits there
  python_error() : std::runtime_error("JavaScript's") {}
};
struct type_error : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
using value_error = std::invalid_argument;
using index_error = std::out_of_range;

struct PyObjectOf;  // never made: its address is the number of a value

class object;
class handle {
 public:
  handle() = default;
  explicit handle(int value) : value_(value) {}
  int number() const { return value_; }
  PyObjectOf* ptr() const { return reinterpret_cast<PyObjectOf*>(value_); }
  bool is_none() const { return value_ == 0; }
  bool is_valid() const { return value_ != 0; }
  Kind kind() const { return Kind(js_kind(value_)); }
  inline object attr(const char* name) const;
  template <class... A>
  inline object operator()(A&&... arguments) const;
  class iterator;
  inline iterator begin() const;
  inline iterator end() const;
  size_t size() const { return size_t(js_length(value_)); }

 protected:
  int value_ = 0;
};

class object : public handle {
 public:
  object() = default;
  object(const object& o) : handle(js_copy(o.value_)) {}
  object(object&& o) noexcept : handle(std::exchange(o.value_, 0)), self_(std::move(o.self_)) {}
  object& operator=(object o) noexcept {
    std::swap(value_, o.value_), std::swap(self_, o.self_);
    return *this;
  }
  ~object() { reset(); }
  void reset() {
    if (value_) js_free(std::exchange(value_, 0));
  }
  int release() { return std::exchange(value_, 0); }
  static object stolen(int value) {
    object made;
    made.value_ = value;
    return made;
  }
  template <class... A>
  inline object operator()(A&&... arguments) const;

 private:
  friend class handle;
  std::shared_ptr<object> self_;  // of a method: whose it is
};

inline object steal(int value) { return object::stolen(value); }
inline object steal(PyObjectOf* value) { return steal(int(reinterpret_cast<intptr_t>(value))); }
inline object borrow(handle h) { return steal(js_copy(h.number())); }
template <class T>
T borrow(handle h) {
  T made;
  static_cast<object&>(made) = borrow(h);
  return made;
}
inline object none() { return {}; }
inline object getattr(handle h, const char* name) {
  return steal(js_get(h.number(), name, int(strlen(name))));
}
inline bool hasattr(handle h, const char* name) {
  return js_has(h.number(), name, int(strlen(name)));
}
inline object handle::attr(const char* name) const {
  object found = getattr(*this, name);
  found.self_ = std::make_shared<object>(borrow(*this));
  return found;
}

// Holds the element that it stands at.
class handle::iterator {
 public:
  iterator(handle list, int at, int end) : list_(list), at_(at), end_(end) { take(); }
  handle operator*() const { return present_; }
  iterator& operator++() {
    at_++;
    take();
    return *this;
  }
  bool operator!=(const iterator& o) const { return at_ != o.at_; }

 private:
  void take() {
    if (at_ < end_) present_ = steal(js_item(list_.number(), at_));
  }
  handle list_;
  int at_, end_;
  object present_;
};
inline handle::iterator handle::begin() const {
  const int n = js_length(value_);
  if (n < 0) throw cast_error();
  return {*this, 0, n};
}
inline handle::iterator handle::end() const {
  const int n = js_length(value_);
  return {*this, n, n};
}

struct list : object {
  list() { value_ = js_list(); }
  void append(const object& o) { js_push(value_, o.number()); }
};
struct tuple : object {
  object operator[](size_t i) const { return steal(js_item(value_, int(i))); }
};
struct dict : object {};
struct callable : object {};
struct str : object {
  str() = default;
  str(const char* text, size_t n) { value_ = js_of_text(text, int(n)); }
};
class bytes : public object {
 public:
  bytes() = default;
  bytes(const void* data, size_t n) : text_(static_cast<const char*>(data), n) {
    const int count = int(n);
    value_ = js_of_array(1, data, count, 1, &count);
  }
  bool load(handle h);  // an array of bytes
  const char* c_str() const { return text_.data(); }
  size_t size() const { return text_.size(); }

 private:
  std::string text_;
};

// JavaScript has one thread here.
struct gil_scoped_release {
  gil_scoped_release() {}
};
struct gil_scoped_acquire {
  gil_scoped_acquire() {}
};

}  // namespace nanobind

// Python's C functions in the few places where bindings call them.
using PyObject = nanobind::PyObjectOf;
using PyTypeObject = void;
using Py_ssize_t = ptrdiff_t;
inline int PyErr_CheckSignals() { return 0; }
inline void PyErr_Clear() {}
inline PyTypeObject* Py_TYPE(PyObject*) { return nullptr; }
inline PyObject* PyObject_GetAttrString(PyObject*, const char*) { return nullptr; }
inline bool PyCapsule_IsValid(PyObject*, const char*) { return false; }
inline void* PyCapsule_GetPointer(PyObject*, const char*) { return nullptr; }
inline void Py_INCREF(PyObject*) {}
inline void Py_XDECREF(PyObject*) {}
inline void Py_DECREF(PyObject*) {}
const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* length);  // until the call ends
inline PyObject* PyUnicode_DecodeUTF8(const char* text, Py_ssize_t length, const char*) {
  return nanobind::handle(js_of_text(text, int(length))).ptr();
}
