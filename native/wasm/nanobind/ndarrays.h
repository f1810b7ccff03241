// Arrays of numbers: borrowed where JavaScript has put them into this memory (NativeArray of
// js/src/native.js), copied otherwise, which is for arrays that are only read.
#pragma once

#include "casters.h"

namespace nanobind {

struct ro {};
struct c_contig {};
struct numpy {};
template <int n>
struct ndim {
  static constexpr int value = n;
};
template <int64_t... n>
struct shape {
  static constexpr int value = sizeof...(n);
  static constexpr int64_t sizes[] = {n...};
};
namespace device {
struct cpu {
  static constexpr int value = 1;
};
}  // namespace device

namespace dlpack {
enum class dtype_code : uint8_t { Int = 0, UInt = 1, Float = 2, Bfloat = 4 };
struct dtype {
  uint8_t code = 0, bits = 0;
  uint16_t lanes = 0;
  bool operator==(const dtype&) const = default;
};
struct device {
  int device_type = 1, device_id = 0;
};
struct dltensor {
  void* data = nullptr;
  nanobind::dlpack::device device;
  int32_t ndim = 0;
  dlpack::dtype dtype;
  int64_t *shape = nullptr, *strides = nullptr;
  uint64_t byte_offset = 0;
};
}  // namespace dlpack

template <class T>
constexpr dlpack::dtype dtype() {
  using N = std::remove_const_t<T>;
  const auto code = std::is_floating_point_v<N> ? dlpack::dtype_code::Float
                    : std::is_signed_v<N>       ? dlpack::dtype_code::Int
                                                : dlpack::dtype_code::UInt;
  return {uint8_t(code), uint8_t(8 * sizeof(N)), 1};
}

namespace detail {

// The types of arrays by the numbers that native.js gives them.
inline constexpr dlpack::dtype array_types[] = {
    dtype<int8_t>(),  dtype<uint8_t>(),  dtype<int16_t>(), dtype<uint16_t>(),
    dtype<int32_t>(), dtype<uint32_t>(), dtype<float>(),   dtype<double>(),
    dtype<int64_t>(), dtype<uint64_t>(), {2, 16, 1},       {4, 16, 1}};
template <class T>
constexpr int array_type() {
  int i = 0;
  while (!(array_types[i] == dtype<T>())) i++;
  return i;
}

template <class T>
inline constexpr bool is_tag = false;
template <>
inline constexpr bool is_tag<ro> = true;
template <>
inline constexpr bool is_tag<c_contig> = true;
template <>
inline constexpr bool is_tag<numpy> = true;
template <>
inline constexpr bool is_tag<device::cpu> = true;
template <int n>
inline constexpr bool is_tag<ndim<n>> = true;
template <int64_t... n>
inline constexpr bool is_tag<shape<n...>> = true;

template <class... T>
struct scalar_of {
  using type = void;
};
template <class First, class... Rest>
struct scalar_of<First, Rest...> {
  using type = std::conditional_t<is_tag<First>, typename scalar_of<Rest...>::type, First>;
};

}  // namespace detail

// What frees an array that was made for JavaScript.
class capsule : public object {
 public:
  capsule(void* p, void (*end)(void*) noexcept) : end_(p, end) {}

 private:
  template <class...>
  friend class ndarray;
  std::shared_ptr<void> end_;
};

template <class... T>
class ndarray {
 public:
  using Scalar = typename detail::scalar_of<T...>::type;
  static constexpr bool typed = !std::is_void_v<Scalar>;
  static constexpr bool reads =
      std::is_const_v<Scalar> || (std::is_same_v<T, ro> || ...);  // and does not write
  using Given = std::conditional_t<typed, Scalar, const void>;
  using Element = std::conditional_t<typed, Scalar, const uint8_t>;

  ndarray() = default;
  // To be given to JavaScript, which gets a copy.
  ndarray(Given* data, std::initializer_list<size_t> sizes, const capsule& owner)
      : ndarray(data, sizes) {
    owner_ = owner.end_;
  }
  ndarray(Given* data, std::initializer_list<size_t> sizes, handle = {})
      : data_(const_cast<void*>(static_cast<const void*>(data))) {
    for (const size_t n : sizes) shape_[ndim_++] = int64_t(n);
    if constexpr (typed) type_ = detail::array_type<Scalar>();
  }

  Element* data() const { return static_cast<Element*>(data_); }
  size_t ndim() const { return size_t(ndim_); }
  size_t shape(size_t i) const { return size_t(shape_[i]); }
  int64_t stride(size_t i) const {
    int64_t n = 1;
    for (size_t k = i + 1; k < ndim(); k++) n *= shape_[k];
    return n;
  }
  size_t size() const { return size_t(ndim_ ? shape_[0] * stride(0) : 1); }
  size_t nbytes() const { return size() * dtype().bits / 8; }
  dlpack::dtype dtype() const { return detail::array_types[type_]; }
  decltype(auto) operator()(size_t i) const { return data()[i]; }
  decltype(auto) operator()(size_t i, size_t k) const { return data()[i * shape_[1] + k]; }
  bool is_valid() const { return bool(owner_); }

  object to_js() const {
    int sizes[4] = {};
    for (int i = 0; i < ndim_; i++) sizes[i] = int(shape_[i]);
    return steal(js_of_array(type_, data_, int(size()), ndim_, sizes));
  }
  bool load(handle h) noexcept {
    int described[8] = {};
    if (!js_array(h.number(), described)) return false;
    type_ = described[0], ndim_ = described[3];
    for (int i = 0; i < ndim_; i++) shape_[i] = described[4 + i];
    if constexpr (typed)
      if (!(dtype() == nanobind::dtype<Scalar>())) return false;
    if (!(fits(std::type_identity<T>()) && ...)) return false;
    if (described[1]) {
      data_ = reinterpret_cast<void*>(described[1]);
      owner_ = std::make_shared<object>(borrow(h));
      return true;
    }
    if (!reads) return false;
    data_ = ::malloc(nbytes() + 16);
    if (!data_) return false;
    owner_ = std::shared_ptr<void>(data_, ::free);
    js_read(h.number(), data_);
    return true;
  }

 private:
  template <class Tag>
  bool fits(std::type_identity<Tag>) const {
    return true;
  }
  template <int n>
  bool fits(std::type_identity<nanobind::ndim<n>>) const {
    return ndim_ == n;
  }
  template <int64_t... n>
  bool fits(std::type_identity<nanobind::shape<n...>>) const {
    int i = 0;
    return ndim_ == int(sizeof...(n)) && ((i++, n < 0 || shape_[i - 1] == n) && ...);
  }

  void* data_ = nullptr;
  int type_ = 1, ndim_ = 0;
  int64_t shape_[4] = {};
  std::shared_ptr<void> owner_;
};

namespace detail {
template <class... T>
struct type_caster<ndarray<T...>> {
  using Type = ndarray<T...>;
  NB_TYPE_CASTER(Type, "array")
  bool from_python(handle h, uint32_t, cleanup_list*) noexcept { return value.load(h); }
};
}  // namespace detail

inline bool bytes::load(handle h) {
  ndarray<const uint8_t, ndim<1>> array;
  if (!array.load(h)) return false;
  text_.assign(reinterpret_cast<const char*>(array.data()), array.size());
  static_cast<object&>(*this) = borrow(h);
  return true;
}

}  // namespace nanobind
