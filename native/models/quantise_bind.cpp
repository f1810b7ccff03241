#include <algorithm>

#include "bind.hpp"
#include "errors.hpp"
#include "layers/rows.hpp"
#include "layers/stored_matrix.hpp"
#include "models/quantise.hpp"
#include "threads/pool.hpp"

namespace aleator {

static void quantise_rows(Pool& pool, const std::string& name, Array<const float, 2> x,
                          std::optional<Floats> importance, Array<uint8_t, 2> data) {
  const Stored type = stored_type(name);
  const int64_t rows = int64_t(x.shape(0)), n = int64_t(x.shape(1));
  require(quantisable(type), "nothing is quantised to ", name);
  require(data.shape(0) == x.shape(0) && int64_t(data.shape(1)) == stored_row_bytes(type, n) &&
              (!importance || int64_t(importance->size()) == n),
          "data must be [rows, row bytes] and importance [n] for x [rows, n]");
  const float *from = x.data(), *weight = pointer(importance);
  uint8_t* to = data.data();
  const int64_t bytes = int64_t(data.shape(1)), at_once = std::max<int64_t>(1, 16384 / n);
  nb::gil_scoped_release nogil;
  pool.run([&](int thread) {
    pool.split_pieces(thread, rows, at_once, [&](int64_t first, int64_t end) {
      if (searched(type, weight))
        return quantise_searched_(from + first * n, end - first, n, type, weight,
                                  to + first * bytes);
      for (int64_t row = first; row < end; row++)
        type == Stored::mxfp4 ? quantise_mxfp4_(from + row * n, n, to + row * bytes)
                              : store_row_(from + row * n, n, type, to + row * bytes);
    });
  });
}

ALEATOR_BIND(quantise_weights) {
  m.def("quantise_rows", &quantise_rows, "pool"_a, "type"_a, "x"_a, "importance"_a.none(),
        "data"_a.noconvert(),
        "data uint8 [rows, row bytes] = x float32 [rows, n], finite, stored as type 'F32', 'F16', "
        "'BF16', 'Q8_0', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q2_K' to 'Q6_K' or 'MXFP4', with the "
        "bytes of llama.cpp's quantiser; importance float32 [n]: what an error in each column "
        "counts, or None.  ValueError, with nothing changed, when sizes disagree.");
}

}  // namespace aleator
