#include "bind.hpp"
#include "errors.hpp"
#include "layers/input_squares.hpp"

namespace aleator {

// Keeps the memory of the matrices and of their sums alive.
struct WatchedMatrices {
  InputSquares squares;
  std::vector<Bytes> data;
  std::vector<Array<double, 2>> sums;
  std::vector<Array<int64_t>> rows;

  void watch(Bytes d, Array<double, 2> s, Array<int64_t> r) {
    const size_t n = s.shape(0);
    require(n > 0 && r.size() == n && d.size() > 0 && d.size() % n == 0,
            "data must be n matrices of as many bytes, sums [n, in] and rows [n]");
    for (size_t i = 0; i < n; i++)
      squares.watch(d.data() + i * (d.size() / n),
                    {int64_t(s.shape(1)), s.data() + i * s.shape(1), r.data() + i});
    data.push_back(d), sums.push_back(s), rows.push_back(r);
  }
  void start() {
    InputSquares* none = nullptr;
    require(InputSquares::active.compare_exchange_strong(none, &squares),
            "another collection is running: wait for its end");
  }
  void stop() {
    InputSquares* own = &squares;
    InputSquares::active.compare_exchange_strong(own, nullptr);
  }
  ~WatchedMatrices() { stop(); }
};

ALEATOR_BIND(input_squares) {
  nb::class_<WatchedMatrices>(m, "InputSquares",
                              "Sums of squares of what matrices are multiplied with.")
      .def(nb::init<>())
      .def("watch", &WatchedMatrices::watch, "data"_a, "sums"_a.noconvert(), "rows"_a.noconvert(),
           "data: uint8, the bytes of n stacked matrices where a decoder reads them.  From start() "
           "to stop() the squares of their inputs are added to sums float64 [n, in], and the "
           "number of inputs to rows int64 [n].  ValueError when sizes disagree.")
      .def("start", &WatchedMatrices::start,
           "ValueError while another one collects; no step may be running.")
      .def("stop", &WatchedMatrices::stop, "No step may be running.");
}

}  // namespace aleator
