// A chain of built-in samplers as one object: one call per token from Python, without the GIL; and
// many chains over many rows, on a pool of threads.
#include "samplers/chain.hpp"

#include <exception>

#include "bind.hpp"
#include "samplers/chain_binding.hpp"
#include "threads/pool.hpp"

namespace aleator {

void History::check_token(int32_t token) {
  if (token < 0 || token >= max_token)
    throw ParameterError("token", "token ", token,
                         " cannot be accepted: ids run from 0 to 16,777,215");
}

void History::read(StateReader& in) {
  const auto n = in.get<uint64_t>();
  tokens = in.get_all<int32_t>(n);
  generated = in.get_all<uint8_t>(n);
  for (const int32_t token : tokens)
    if (token < 0 || token >= max_token) in.refuse("token ", token, " is in its history");
  for (const uint8_t flag : generated)
    if (flag > 1) in.refuse("a token of its history is neither given nor generated");
}

int32_t Chain::sample(const void* data, int64_t n, Dtype dtype) {
  const auto began = Clock::now();
  scratch_.load(data, n, dtype);
  apply(scratch_);
  if (scratch_.selected < 0) refuse_no_selection();
  accept(scratch_.selected, true);
  return sampled(began);
}

ALEATOR_BIND(chain) {
  nb::class_<Sampler>(m, "Sampler", "A built-in sampler, to be put into a Chain.");

  bind_chain<Chain, PyCandidates>(m, "Chain")
      .def(nb::init<std::vector<std::shared_ptr<Sampler>>, uint32_t>(), "samplers"_a,
           "completion"_a)
      .def("insert", exclusive<Chain>(&Chain::insert), "index"_a, "sampler"_a)
      .def("remove", exclusive<Chain>(&Chain::remove), "index"_a)
      .def("set_ordinals", &Chain::set_ordinals, "ordinals"_a)
      .def("rollback", exclusive<Chain>(&Chain::rollback), "n"_a)
      .def("part", exclusive<Chain>(&Chain::part, kReads), "first"_a, "count"_a,
           "A chain with copies of some samplers, in the same place of the same text.")
      .def("present", exclusive<Chain>(&Chain::present, kReads),
           "A chain with copies of the samplers that act now, in the same place of the same text.")
      .def_prop_rw("position", &Chain::position, &Chain::set_position);
}

using Batch = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

// The tokens, in order of rows; if a row fails, all chains are as before and its error is thrown.
static std::vector<int32_t> sample_batch(const std::vector<Chain*>& chains, const Batch& logits,
                                         Pool& pool) {
  const size_t rows = logits.shape(0), columns = logits.shape(1);
  if (chains.size() != rows)
    throw LogitsError("there are ", chains.size(), " chains for ", rows, " rows of logits");
  if (columns > 1 && logits.stride(1) != 1)
    throw LogitsError("each row of logits must be contiguous");
  const Dtype dtype = dtype_of(logits.dtype());
  const int64_t stride = logits.stride(0) * (logits.dtype().bits / 8);
  const auto* data = static_cast<const uint8_t*>(logits.data());
  std::vector<int32_t> tokens(rows, -1);
  std::vector<std::exception_ptr> errors(rows);
  {
    nb::gil_scoped_release release;
    pool.run([&](int thread) {
      pool.split(thread, int64_t(rows), [&](int64_t row) {
        try {
          const Busy busy(chains[row]->in_use);
          tokens[row] = chains[row]->sample(data + row * stride, int64_t(columns), dtype);
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

ALEATOR_BIND(sample_batch) {
  m.def("sample_batch", &sample_batch, "chains"_a, "logits"_a.noconvert(), "pool"_a);
}

}  // namespace aleator
