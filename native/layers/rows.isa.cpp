#include "layers/rows.hpp"

#include <cmath>
#include <initializer_list>
#include <type_traits>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  vf squares = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) squares += load(x + i) * load(x + i);
  if (i < n) {
    const vf v = load_some(x + i, n - i);
    squares += v * v;
  }
  const float factor = 1.0f / std::sqrt(sum(squares) / float(n) + eps);
  for (i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

void rotate(float* x, const float* cos_sin, int64_t pairs, bool interleaved) {
  const int64_t next = interleaved ? 2 : 1, other = interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; i++) {
    float &a = x[i * next], &b = x[i * next + other];
    const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a0 = a, b0 = b;
    a = a0 * c - b0 * s;
    b = a0 * s + b0 * c;
  }
}

void swiglu(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(gate + i, silu(load(gate + i)) * load(up + i));
  if (i < n) {
    const vf h = silu(load_some(gate + i, n - i)) * load_some(up + i, n - i);
    store_some(gate + i, h, n - i);
  }
}

void store_row(const float* x, int64_t n, Stored type, uint8_t* row) {
  if (type == Stored::f32) {
    std::memcpy(row, x, size_t(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const uint16_t h = type == Stored::f16 ? f16_of_f32(x[i]) : bf16_of_f32(x[i]);
    std::memcpy(row + 2 * i, &h, 2);
  }
}

// A cache row's elements i to i + lanes; the type is never q8_0.
template <class Read>
static inline vf cached(const uint8_t* row, int64_t i) {
  if constexpr (std::is_same_v<Read, ReadF16>) return vf_of_f16(row + 2 * i);
  if constexpr (std::is_same_v<Read, ReadBF16>) return vf_of_bf16(row + 2 * i);
  return load_as<vf>(row + 4 * i);
}

template <class Read>
static void dot_rows(const float* q, const CacheSide& keys, int64_t head, const int32_t* cells,
                     int64_t n, float scale, float* scores) {
  constexpr int side_by_side =
      4;  // so that one row's chain of additions does not wait for another's
  const int64_t dim = keys.dim, whole = dim / lanes * lanes;
  for (int64_t j = 0; j < n; j += side_by_side) {
    const uint8_t* rows[side_by_side];
    for (int r = 0; r < side_by_side; r++) rows[r] = keys.row(cells[j + r < n ? j + r : j], head);
    vf total[side_by_side] = {};
    for (int64_t i = 0; i < whole; i += lanes)
      for (int r = 0; r < side_by_side; r++) total[r] += load(q + i) * cached<Read>(rows[r], i);
    for (int r = 0; r < side_by_side; r++) {
      float rest = 0;
      for (int64_t i = whole; i < dim; i++) rest += q[i] * Read::one(rows[r], i);
      scores[j + r] = (sum(total[r]) + rest) * scale;
    }
  }
}

// Columns i to i + k * lanes of `out = factor * sum over the cells of weights[j] * row j`.
template <class Read, int k>
static void mix_columns(const float* weights, const CacheSide& values, int64_t head,
                        const int32_t* cells, int64_t n, float factor, int64_t i, float* out) {
  vf total[k] = {};
  for (int64_t j = 0; j < n; j++) {
    const uint8_t* row = values.row(cells[j], head);
    for (int c = 0; c < k; c++) total[c] += cached<Read>(row, i + c * lanes) * weights[j];
  }
  for (int c = 0; c < k; c++) store(out + i + c * lanes, total[c] * factor);
}

template <class Read>
static void mix_rows(const float* weights, const CacheSide& values, int64_t head,
                     const int32_t* cells, int64_t n, float factor, float* out) {
  const int64_t dim = values.dim;
  int64_t i = 0;
  for (; i + 4 * lanes <= dim; i += 4 * lanes)
    mix_columns<Read, 4>(weights, values, head, cells, n, factor, i, out);
  for (; i + lanes <= dim; i += lanes)
    mix_columns<Read, 1>(weights, values, head, cells, n, factor, i, out);
  for (; i < dim; i++) {
    float total = 0;
    for (int64_t j = 0; j < n; j++) total += Read::one(values.row(cells[j], head), i) * weights[j];
    out[i] = total * factor;
  }
}

void attend(const float* q, const CacheSide& keys, const CacheSide& values, int64_t head,
            const int32_t* cells, int64_t n, float scale, float* scores, float* out) {
  with_reader(keys.type, [&](auto read) {
    if constexpr (!std::is_same_v<decltype(read), ReadQ8_0>)
      dot_rows<decltype(read)>(q, keys, head, cells, n, scale, scores);
  });
  float highest = scores[0];
  for (int64_t j = 1; j < n; j++) highest = scores[j] > highest ? scores[j] : highest;
  for (int64_t j = n; j % lanes; j++) scores[j] = -INFINITY;
  vf totals = {};
  for (int64_t j = 0; j < n; j += lanes) {
    const vf e = exponential(load(scores + j) - highest);
    store(scores + j, e);
    totals += e;
  }
  const float factor = 1.0f / sum(totals);
  with_reader(values.type, [&](auto read) {
    if constexpr (!std::is_same_v<decltype(read), ReadQ8_0>)
      mix_rows<decltype(read)>(scores, values, head, cells, n, factor, out);
  });
}

}  // namespace aleator::ALEATOR_ISA
