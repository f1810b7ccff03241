// GGUF string arrays (a vocabulary: 128k tokens and 280k merges), where Python objects cost 0.1 s
// and ten times the memory.
//
// A string is a 64-bit little-endian length and that many bytes of UTF-8.  The functions stop at
// the first string that does not fit in the data (or is not UTF-8): the caller sees it by the count
// it gets back, and its offset is where the walk stopped.
#include "models/gguf_strings.hpp"

namespace aleator {
namespace {

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
  using aleator::StringArray;
  m.def("gguf_skip_strings", &aleator::skip_strings, "data"_a, "offset"_a, "count"_a,
        "Walk over `count` GGUF strings at `offset` of `data` (uint8 [n]); (strings walked, offset "
        "after).");
  m.def("gguf_read_strings", &aleator::read_strings, "data"_a, "offset"_a, "count"_a,
        "Decode `count` GGUF strings at `offset` of `data` (uint8 [n]); (list of str, offset "
        "after).");
  nb::class_<StringArray>(m, "StringArray",
                          "GGUF strings where their file has them; ends before the first that does "
                          "not fit or is not UTF-8.")
      .def(nb::init<aleator::Bytes, uint64_t, uint64_t>(), "data"_a, "offset"_a, "count"_a)
      .def("__len__", &StringArray::size)
      .def("__getitem__", &StringArray::text, "index"_a)
      .def_prop_ro("broken", &StringArray::broken, "Offset of the string that was looked at last.")
      .def_prop_ro("has_empty", &StringArray::has_empty, "Whether one of them is empty.")
      .def(
          "find",
          [](const StringArray& self, nb::str text) {
            Py_ssize_t length = 0;
            const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
            if (!bytes) {
              PyErr_Clear();  // a lone surrogate, which no string here has
              return int64_t(-1);
            }
            return self.find({bytes, size_t(length)});
          },
          "text"_a, "Number of the last string that is `text`; -1 if none is.")
      .def("first_twice", &StringArray::first_twice, nb::call_guard<nb::gil_scoped_release>(),
           "Numbers of the first string that occurs again, and of its last occurrence; None: all "
           "differ.");
}
