// A weight matrix that Python made: it checks the memory once and keeps it alive.
#pragma once

#include "bind.hpp"
#include "errors.hpp"
#include "layers/stored.hpp"

namespace aleator {

using Floats = Array<const float>;

Stored stored_type(const std::string& name);  // ggml's names; std::invalid_argument
int64_t stored_row_bytes(Stored type,
                         int64_t n);  // std::invalid_argument unless n fills whole blocks

class StoredMatrix {
 public:
  StoredMatrix(Bytes data, const std::string& type, int64_t out, int64_t in,
               std::optional<Floats> bias);
  Weights weights;

 private:
  Bytes data_;
  std::optional<Floats> bias_;
};

// std::invalid_argument, naming the tensor, unless the matrix is [out, in].
inline void require_size(const StoredMatrix& m, int64_t out, int64_t in, const std::string& name) {
  require(m.weights.out == out && m.weights.in == in, name, ".weight is [", m.weights.out, ", ",
          m.weights.in, "], not [", out, ", ", in, "]");
}

inline Weights weights_of(const std::optional<StoredMatrix>& m) {
  return m ? m->weights : Weights{};
}

// The numbers of a vector, or none.
template <class Vector>
const auto* pointer(const std::optional<Vector>& v) {
  return v ? v->data() : nullptr;
}

}  // namespace aleator
