// A weight matrix that Python made: it checks the memory once and keeps it alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>

#include "layers/stored.hpp"

namespace aleator {

using Bytes =
    nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Floats =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

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

}  // namespace aleator
