// GGUF string arrays (a vocabulary: 128k tokens and 280k merges), where a loop in Python costs 0.1
// s.
//
// A string is a 64-bit little-endian length and that many bytes of UTF-8.  Both functions stop at
// the first string that does not fit in the data (or is not UTF-8): the caller sees it by the count
// it gets back, and its offset is where the walk stopped.
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>

#include "bind.hpp"

namespace aleator {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class StringWalk {
 public:
  StringWalk(const Bytes& data, uint64_t offset)
      : data_(data.data()), size_(data.size()), offset_(offset) {}

  // The next string's bytes, or nullptr where it does not fit; then the offset stays.
  const char* next(uint64_t& length) {
    if (offset_ > size_ || size_ - offset_ < 8) return nullptr;
    std::memcpy(&length, data_ + offset_, 8);
    if (length > size_ - offset_ - 8) return nullptr;
    const char* text = reinterpret_cast<const char*>(data_ + offset_ + 8);
    offset_ += 8 + length;
    return text;
  }
  uint64_t offset() const { return offset_; }

 private:
  const uint8_t* data_;
  uint64_t size_, offset_;
};

nb::tuple skip_strings(const Bytes& data, uint64_t offset, uint64_t count) {
  StringWalk walk(data, offset);
  uint64_t done = 0, length = 0;
  while (done < count && walk.next(length)) ++done;
  return nb::make_tuple(done, walk.offset());
}

nb::tuple read_strings(const Bytes& data, uint64_t offset, uint64_t count) {
  StringWalk walk(data, offset);
  nb::list strings;
  uint64_t length = 0, start = offset;
  for (uint64_t done = 0; done < count; ++done) {
    start = walk.offset();
    const char* text = walk.next(length);
    PyObject* string = text ? PyUnicode_DecodeUTF8(text, Py_ssize_t(length), "strict") : nullptr;
    if (!string) {
      PyErr_Clear();
      return nb::make_tuple(strings, start);
    }
    strings.append(nb::steal(string));
  }
  return nb::make_tuple(strings, walk.offset());
}

}  // namespace
}  // namespace aleator

ALEATOR_BIND(gguf_strings) {
  m.def("gguf_skip_strings", &aleator::skip_strings, nb::arg("data"), nb::arg("offset"),
        nb::arg("count"),
        "Walk over `count` GGUF strings at `offset` of `data` (uint8 [n]); (strings walked, offset "
        "after).");
  m.def("gguf_read_strings", &aleator::read_strings, nb::arg("data"), nb::arg("offset"),
        nb::arg("count"),
        "Decode `count` GGUF strings at `offset` of `data` (uint8 [n]); (list of str, offset "
        "after).");
}
