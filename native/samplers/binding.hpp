// What the bindings of both chains share: rows of logits from Python, NumPy results, and candidates
// that own their row.
#pragma once

#include "bind.hpp"
#include "samplers/candidates.hpp"

namespace aleator {

// Any one contiguous row on the CPU: NumPy, torch, whatever has the buffer protocol or DLPack.
using LogitsArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Such a row, borrowed for the length of a call.
struct Logits {
  const void* data = nullptr;
  int64_t n = 0;
  nb::dlpack::dtype type{};
};

inline Dtype dtype_of(nb::dlpack::dtype type) {
  if (type == nb::dtype<float>()) return Dtype::f32;
  if (type.bits == 16 && type.lanes == 1) {
    if (type.code == uint8_t(nb::dlpack::dtype_code::Float)) return Dtype::f16;
    if (type.code == uint8_t(nb::dlpack::dtype_code::Bfloat)) return Dtype::bf16;
  }
  throw LogitsError("logits must be float32, float16 or bfloat16: convert them first");
}

// DLPack's table of C functions, which a type may publish as `__dlpack_c_exchange_api__` (dlpack.h,
// version 1); torch does.  Asking it costs 0.1 us, making a capsule 2 us.
struct DLPackExchange {
  struct {
    uint32_t major, minor;
  } version;
  void* older;
  void* allocate;
  void* managed_from_python;
  void* managed_to_python;
  int (*borrow)(void* object, nb::dlpack::dltensor* tensor);  // null if there is none
  void* current_stream;
};

// The function for a type, null if it has none.  The last type asked for is remembered: a program
// hands over rows of one type.  Called with the GIL held.
inline auto dlpack_borrow(PyTypeObject* type) {
  static PyTypeObject* known = nullptr;
  static decltype(DLPackExchange::borrow) borrow = nullptr;
  if (type == known) return borrow;
  borrow = nullptr;
  if (PyObject* capsule =
          PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__")) {
    const auto* table = static_cast<const DLPackExchange*>(
        PyCapsule_IsValid(capsule, "dlpack_exchange_api")
            ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
            : nullptr);
    if (table && table->version.major == 1) borrow = table->borrow;
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  // So that no other type can come to lie at this address.
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  Py_XDECREF(reinterpret_cast<PyObject*>(known));
  known = type;
  return borrow;
}

}  // namespace aleator

namespace nanobind::detail {

template <>
struct type_caster<aleator::Logits> {
  NB_TYPE_CASTER(aleator::Logits, make_caster<aleator::LogitsArray>::Name)

  bool from_python(handle src, uint32_t flags, cleanup_list* cleanup) noexcept {
    dlpack::dltensor t;
    if (const auto borrow = aleator::dlpack_borrow(Py_TYPE(src.ptr()));
        borrow && borrow(src.ptr(), &t) == 0) {
      if (t.ndim != 1 || t.device.device_type != device::cpu::value) return false;
      if (t.strides && t.strides[0] != 1 && t.shape[0] > 1) return false;
      value = {static_cast<const char*>(t.data) + t.byte_offset, t.shape[0], t.dtype};
    } else {
      PyErr_Clear();
      if (!array_.from_python(src, flags, cleanup)) return false;
      const auto& array = array_.value;
      value = {array.data(), int64_t(array.shape(0)), array.dtype()};
    }
    return value.data || value.n == 0;  // a tensor without storage is no row
  }

 private:
  make_caster<aleator::LogitsArray> array_;  // holds on to the buffer during the call
};

}  // namespace nanobind::detail

namespace aleator {

template <typename T>
auto to_numpy(std::vector<T>&& values) {
  return owned_array<nb::ndim<1>>(std::move(values));
}

// The candidates of one step as Python sees them: with their own copy of the logits, or, in a
// user's sampler, those of the step under way.
template <typename Row>
class Shown {
 public:
  Shown(const Shown&) = delete;
  Row& get() {
    if (expired_)
      throw LogitsError(
          "these candidates belong to a step that is over: copy what you need in apply()");
    return borrowed_ ? *borrowed_ : own_;
  }
  void expire() { expired_ = true; }

  std::vector<uint8_t> bytes;

 protected:
  Shown() = default;
  explicit Shown(Row& borrowed) : borrowed_(&borrowed) {}
  Row own_;

 private:
  Row* borrowed_ = nullptr;
  bool expired_ = false;
};

class PyCandidates : public Shown<Candidates> {
 public:
  explicit PyCandidates(const Logits& logits) : dtype(dtype_of(logits.type)) {
    const auto* data = static_cast<const uint8_t*>(logits.data);
    bytes.assign(data, data + logits.n * logits.type.bits / 8);
    own_.load(bytes.data(), logits.n, dtype);
  }
  explicit PyCandidates(Candidates& borrowed) : Shown(borrowed) {}

  Dtype dtype = Dtype::f32;
};

}  // namespace aleator
