// The operator on the CPU: threads over rows.  Contract: docs/operator.md; reference:
// tests/ops/reference.py.
#include <array>
#include <atomic>
#include <cmath>
#include <exception>

#include "bind.hpp"
#include "cache/quantise.hpp"
#include "errors.hpp"
#include "ops/kept_row.hpp"
#include "rng/philox.hpp"
#include "samplers/binding.hpp"
#include "threads/pool.hpp"

namespace aleator {

namespace {

using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Column = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;
template <typename T>
using RowsOf = nb::ndarray<const T, nb::ndim<2>, nb::device::cpu>;
template <typename T>
using ColumnOf = nb::ndarray<const T, nb::ndim<1>, nb::device::cpu>;
template <typename T>
using Written = std::optional<nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>>;

std::array<std::atomic<int64_t>, n_paths> taken{};

template <typename Array>
int64_t row_bytes(const Array& a) {
  return a.stride(0) * (a.dtype().bits / 8);
}

template <typename Array>
void require_rows(const Array& a, size_t rows, const char* name) {
  if (a.shape(0) != rows)
    throw ParameterError(name, name, " has ", a.shape(0), " rows and logits have ", rows);
}

template <typename Array>
void require_shape(const std::optional<Array>& a, const Rows& logits, const char* name) {
  if (!a) return;
  require_rows(*a, logits.shape(0), name);
  if (a->shape(1) != logits.shape(1) || (a->shape(1) > 1 && a->stride(1) != 1))
    throw ParameterError(name,
                         std::string(name) + " must have the shape of logits, rows contiguous");
}

// One float of each row, widened; refused if it is NaN.
std::vector<float> floats(const std::optional<Column>& a, size_t rows, const char* name,
                          float otherwise) {
  if (!a) return std::vector<float>(rows, otherwise);
  require_rows(*a, rows, name);
  const Dtype dtype = dtype_of(a->dtype());
  std::vector<float> values(rows);
  for (size_t i = 0; i < rows; ++i) {
    const auto* at = static_cast<const uint8_t*>(a->data()) + int64_t(i) * row_bytes(*a);
    widen_row_(at, dtype, 1, &values[i]);
    if (std::isnan(values[i]))
      throw ParameterError(name, "row ", i, ": ", name,
                           " is NaN: give a number in (0, 1), or one outside to skip ", name,
                           " as documented");
  }
  return values;
}

void top_k_top_p_sample(const Rows& logits, const ColumnOf<int32_t>& top_k, const Column& top_p,
                        const std::optional<RowsOf<float>>& q, const std::optional<Column>& min_p,
                        const std::optional<ColumnOf<int64_t>>& seeds,
                        const std::optional<ColumnOf<int64_t>>& positions, float eps, int64_t limit,
                        bool is_logits, std::optional<aleator::Array<int64_t>> indices,
                        Written<float> select, Written<int64_t> listed, Written<float> probs,
                        Pool* pool) {
  const size_t rows = logits.shape(0), n_vocab = logits.shape(1);
  if (n_vocab > 1 && logits.stride(1) != 1)
    throw ParameterError("logits", "each row of logits must be contiguous");
  if (rows < 1 || n_vocab < 1 || n_vocab > size_t{1} << 22)
    throw ParameterError("logits", "logits have an unsupported shape");
  const Dtype dtype = dtype_of(logits.dtype());
  require_rows(top_k, rows, "top_k");
  require_shape(q, logits, "q");
  require_shape(select, logits, "logits_top_kp_select");
  require_shape(listed, logits, "logits_idx");
  require_shape(probs, logits, "logits_sort_masked");
  if (seeds) require_rows(*seeds, rows, "seeds");
  if (positions) require_rows(*positions, rows, "positions");
  if (seeds.has_value() != positions.has_value() || listed.has_value() != probs.has_value())
    throw ParameterError("seeds", "seeds come with positions, and ids with probabilities");
  if (indices && indices->shape(0) != rows)
    throw ParameterError("logits_select_idx", "logits_select_idx must have one value per row");
  const std::vector<float> p = floats(top_p, rows, "top_p", 1), m = floats(min_p, rows, "min_p", 0);
  std::vector<std::exception_ptr> errors(rows);
  const auto sample = [&](auto& row, int64_t b) {
    row.load(static_cast<const uint8_t*>(logits.data()) + b * row_bytes(logits), int64_t(n_vocab),
             dtype);
    const bool in_order = listed || q, any_list = select || seeds;
    const Path path =
        row.filter({top_k.data()[b * top_k.stride(0)], p[b], m[b], limit, in_order, any_list});
    taken[size_t(path)].fetch_add(1, std::memory_order_relaxed);
    const auto at = size_t(b) * n_vocab;
    if (indices) {
      int32_t token = row.first();
      if (q) token = row.race(q->data() + b * q->stride(0), eps);
      if (seeds)
        token = row.draw(uniform(Purpose::dist, {uint64_t(seeds->data()[b * seeds->stride(0)]), 0},
                                 uint64_t(positions->data()[b * positions->stride(0)]), 0));
      if (token < 0)
        throw ParameterError("q", "row ", b,
                             ": q is NaN: give draws of an exponential distribution");
      indices->data()[b] = token;
    }
    if (listed) row.write_list(listed->data() + at, probs->data() + at);
    if (select) row.write_select(select->data() + at);
  };
  const auto work = [&](int64_t b) {
    thread_local KeptRow<LogitValues> of_logits;
    thread_local KeptRow<ProbabilityValues> of_probabilities;
    try {
      is_logits ? sample(of_logits, b) : sample(of_probabilities, b);
    } catch (...) {
      errors[b] = std::current_exception();
    }
  };
  {
    nb::gil_scoped_release release;
    if (pool && rows > 1)
      pool->run([&](int thread) { pool->split(thread, int64_t(rows), work); });
    else
      for (size_t b = 0; b < rows; ++b) work(int64_t(b));
  }
  for (size_t b = 0; b < rows; ++b) {
    if (!errors[b]) continue;
    try {
      std::rethrow_exception(errors[b]);
    } catch (const LogitsError& e) {
      throw LogitsError("row ", b, ": ", e.what());
    }
  }
}

}  // namespace

ALEATOR_BIND(top_k_top_p_sample) {
  m.def("top_k_top_p_sample", &top_k_top_p_sample, "logits"_a.noconvert(), "top_k"_a.noconvert(),
        "top_p"_a.noconvert(), "q"_a.noconvert().none(), "min_p"_a.noconvert().none(),
        "seeds"_a.noconvert().none(), "positions"_a.noconvert().none(), "eps"_a, "limit"_a,
        "is_logits"_a, "indices"_a.noconvert().none(), "select"_a.noconvert().none(),
        "listed"_a.noconvert().none(), "probs"_a.noconvert().none(), "pool"_a.none());
  m.def(
      "top_k_top_p_sample_paths",
      [](bool reset) {
        std::vector<int64_t> counts;
        for (auto& count : taken) counts.push_back(reset ? count.exchange(0) : count.load());
        return counts;
      },
      "reset"_a);
}

}  // namespace aleator
