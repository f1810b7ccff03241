// A chain's state as bytes, little endian: what its samplers write, and read back with a look at
// every length and value, since the bytes may come from anywhere.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "errors.hpp"

namespace aleator {

// A number as states have it, and back: its bytes turned round on a big-endian processor.
template <typename T>
inline T little_endian(T value) {
  static_assert(std::is_arithmetic_v<T>);
  if constexpr (std::endian::native == std::endian::big && sizeof(T) > 1) {
    auto* bytes = reinterpret_cast<unsigned char*>(&value);
    std::reverse(bytes, bytes + sizeof value);
  }
  return value;
}

class StateWriter {
 public:
  // Without users, what a sampler written in Python remembers is left out.
  explicit StateWriter(bool users) : users(users) {}

  template <typename... T>
  void put(T... values) {
    const auto put_one = [&](auto value) {
      value = little_endian(value);
      put_bytes({reinterpret_cast<const char*>(&value), sizeof value});
    };
    (put_one(values), ...);
  }
  template <typename Values>
  void put_all(const Values& values) {
    if constexpr (std::endian::native == std::endian::little)
      put_bytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]});
    else
      for (const auto value : values) put(value);
  }
  void put_bytes(std::string_view data) { bytes_.append(data); }
  // What `write` puts, preceded by its length.
  template <typename Write>
  void section(Write write) {
    const size_t at = bytes_.size();
    put<uint64_t>(0);
    write(*this);
    const uint64_t length = little_endian(uint64_t{bytes_.size() - at - sizeof(uint64_t)});
    std::memcpy(bytes_.data() + at, &length, sizeof length);
  }
  const std::string& bytes() const { return bytes_; }

  const bool users;

 private:
  std::string bytes_;
};

class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return little_endian(value);
  }
  template <typename... T>
  void read(T&... values) {
    ((values = get<T>()), ...);
  }
  template <typename T>
  std::vector<T> get_all(uint64_t n) {
    if (n > left_.size() / sizeof(T)) cut_short();
    std::vector<T> values(n);
    const std::string_view data = take(n * sizeof(T));
    if (n) std::memcpy(values.data(), data.data(), data.size());
    for (T& value : values) value = little_endian(value);
    return values;
  }
  StateReader section() {
    const auto length = get<uint64_t>();
    if (length > left_.size()) cut_short();
    return StateReader(take(length));
  }
  std::string_view rest() { return take(left_.size()); }
  void end() const {
    if (!left_.empty()) refuse(left_.size(), " bytes follow its end");
  }
  template <typename... Parts>
  [[noreturn]] static void refuse(Parts... parts) {
    throw StateError(message("not a sound state of a chain: ", parts...));
  }

 private:
  [[noreturn]] static void cut_short() { refuse("it is cut short"); }
  std::string_view take(size_t n) {
    if (n > left_.size()) cut_short();
    const std::string_view taken = left_.substr(0, n);
    left_.remove_prefix(n);
    return taken;
  }

  std::string_view left_;
};

}  // namespace aleator
