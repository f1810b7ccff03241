// A weight matrix that Python made: it checks the memory once and keeps it alive.
#pragma once

#include "bind.hpp"
#include "errors.hpp"
#include "layers/stored.hpp"

namespace aleator {

using Floats = Array<const float>;
using Order = Array<const int32_t>;

Stored stored_type(const std::string& name);  // ggml's names; std::invalid_argument
int64_t stored_row_bytes(Stored type,
                         int64_t n);  // std::invalid_argument unless n fills whole blocks

class StoredMatrix {
 public:
  StoredMatrix(Bytes data, const std::string& type, int64_t out, int64_t in,
               std::optional<Floats> bias, std::optional<Order> order);
  Weights weights;

 private:
  Bytes data_;
  std::optional<Floats> bias_;
  std::optional<Order> order_;
};

// The value of that name: names in the order of the values.
template <class Value, size_t n>
Value value_named(const char* parameter, const char* const (&names)[n], const std::string& name) {
  std::string known;
  for (size_t i = 0; i < n; i++) {
    if (name == names[i]) return Value(i);
    known += std::string(known.empty() ? "" : i + 1 < n ? ", " : " or ") + names[i];
  }
  refuse(parameter, " must be ", known, ", not ", name);
}

// The numbers of a vector, or none.
template <class Vector>
const auto* pointer(const std::optional<Vector>& v) {
  return v ? v->data() : nullptr;
}

}  // namespace aleator
