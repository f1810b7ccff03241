// Many chains over many rows, on a pool of threads.
#include <exception>

#include "bind.hpp"
#include "samplers/binding.hpp"
#include "samplers/chain.hpp"
#include "threads/pool.hpp"

namespace aleator {

namespace {

using Batch = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

// The tokens, in order of rows; if a row fails, all chains are as before and its error is thrown.
std::vector<int32_t> sample_batch(const std::vector<Chain*>& chains, const Batch& logits,
                                  Pool& pool) {
  const size_t rows = logits.shape(0), columns = logits.shape(1);
  if (chains.size() != rows)
    throw LogitsError("there are ", chains.size(), " chains for ", rows, " rows of logits");
  if (columns > 1 && logits.stride(1) != 1)
    throw LogitsError("each row of logits must be contiguous");
  const Dtype dtype = dtype_of(logits);
  const int64_t stride = logits.stride(0) * (logits.dtype().bits / 8);
  const auto* data = static_cast<const uint8_t*>(logits.data());
  std::vector<int32_t> tokens(rows, -1);
  std::vector<std::exception_ptr> errors(rows);
  {
    nb::gil_scoped_release release;
    pool.run([&](int thread) {
      pool.split(thread, static_cast<int64_t>(rows), [&](int64_t row) {
        try {
          const Busy busy(chains[row]->in_use);
          tokens[row] =
              chains[row]->sample(data + row * stride, static_cast<int64_t>(columns), dtype);
        } catch (...) {
          errors[row] = std::current_exception();
        }
      });
    });
  }
  for (size_t row = 0; row < rows; ++row) {
    if (!errors[row]) continue;
    for (size_t other = 0; other < rows; ++other)
      if (!errors[other]) chains[other]->rollback(1);
    try {
      std::rethrow_exception(errors[row]);
    } catch (const LogitsError& e) {
      throw LogitsError("row ", row, ": ", e.what());
    }
  }
  return tokens;
}

}  // namespace

ALEATOR_BIND(sample_batch) {
  m.def("sample_batch", &sample_batch, "chains"_a, "logits"_a.noconvert(), "pool"_a);
}

}  // namespace aleator
