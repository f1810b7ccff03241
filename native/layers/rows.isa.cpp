#include "layers/rows.hpp"

#include <cmath>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "cache/quantise.hpp"
#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float factor = 1.0f / std::sqrt(dot16(x, x, n) / float(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
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

template <int half, int... i>
static inline vf exchanged(vf v, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(v, v, (i ^ half)...);
}
// Sums and differences of lanes `half` apart, for the halves below a vector's width.
template <int half>
static inline vf butterflies(vf v) {
  if constexpr (half < lanes) {
    vf sign;
    for (int i = 0; i < lanes; i++) sign[i] = i & half ? -1.0f : 1.0f;
    return butterflies<half * 2>(exchanged<half>(v, std::make_integer_sequence<int, lanes>()) +
                                 v * sign);
  }
  return v;
}

void hadamard(float* x, int64_t n, int64_t block) {
  const float scale = 1.0f / std::sqrt(float(block));
  for (float *at = x, *end = x + n; at < end; at += block) {
    int64_t half = 1;
    if (block >= lanes) {
      half = lanes;
      for (int64_t k = 0; k < block; k += lanes) store(at + k, butterflies<1>(load(at + k)));
    }
    for (; half < block; half *= 2)
      for (int64_t i = 0; i < block; i += 2 * half)
        for (int64_t j = i; j < i + half; j++) {
          const float a = at[j], b = at[j + half];
          at[j] = a + b;
          at[j + half] = a - b;
        }
    for (int64_t i = 0; i < block; i++) at[i] *= scale;
  }
}

static inline uint16_t half_of(float x, Stored type) {
  return type == Stored::f16 ? f16_of_f32(x) : bf16_of_f32(x);
}

void store_row(const float* x, int64_t n, Stored type, uint8_t* row) {
  if (in_blocks(type)) return quantise_row(x, n, type, row);
  if (type == Stored::f32) {
    std::memcpy(row, x, size_t(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const uint16_t h = half_of(x[i], type);
    std::memcpy(row + 2 * i, &h, 2);
  }
}

void store_head(const float* x, const CacheSide& side, int64_t cell, int64_t head) {
  if (!side.by_channel) return store_row(x, side.dim, side.type, side.row(cell, head));
  const int64_t size = stored_bytes(side.type, 1);
  for (int64_t i = 0; i < side.dim; i++)
    store_row(x + i, 1, side.type, side.channel(head, i) + cell * size);
}

// A cache row's elements i to i + lanes.
template <class Read>
static inline vf cached(const uint8_t* row, int64_t i) {
  if constexpr (std::is_same_v<Read, ReadF16>) return vf_of_f16(row + 2 * i);
  if constexpr (std::is_same_v<Read, ReadBF16>) return vf_of_bf16(row + 2 * i);
  return load_as<vf>(row + 4 * i);
}

// So many rows at once, so that one row's chain of additions does not wait for another's.
constexpr int side_by_side = 4;

template <class Read>
static inline v4 dot_four(const float* q, const uint8_t* const (&rows)[side_by_side], int64_t dim) {
  vf total[side_by_side] = {};
  if constexpr (Blocks<Read>) {
    for (int64_t i = 0; i < dim; i += block_elements)
      for (int r = 0; r < side_by_side; r++) {
        vf v[block_elements / lanes], sum_ = {};
        const float d = Read::block(rows[r] + Read::bytes(i), v);
        for (int k = 0; k < block_elements / lanes; k++) sum_ += v[k] * load(q + i + k * lanes);
        total[r] += sum_ * d;
      }
    return sums(total);
  }
  const int64_t whole = dim / lanes * lanes;
  for (int64_t i = 0; i < whole; i += lanes)
    for (int r = 0; r < side_by_side; r++) total[r] += load(q + i) * cached<Read>(rows[r], i);
  v4 rest = {};
  for (int64_t i = whole; i < dim; i++)
    for (int r = 0; r < side_by_side; r++) rest[r] += q[i] * Read::one(rows[r], i);
  return sums(total) + rest;
}

// The rows of one head lie apart from each other, so the processor does not guess the next ones.
constexpr int64_t rows_ahead = 32;
static inline void expect(const uint8_t* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

// Scores of all cells.  Cells outside, heads inside: memory is read as it lies.
template <class Read>
static void dot_rows(const Attended& seen, const CacheSide& keys, float scale, float* scores,
                     int64_t scores_stride) {
  const int64_t row_bytes = keys.row_bytes();
  int64_t j = 0;
  for (const Attended::Part* part = seen.parts; j < seen.n; part++) {
    const int64_t part_end = part->end < seen.n ? part->end : seen.n;
    for (; j < part_end; j += side_by_side)
      for (int64_t i = 0; i < seen.n_queries; i++) {
        const int64_t head = seen.head(i);
        const uint8_t* rows[side_by_side];
        for (int r = 0; r < side_by_side; r++)
          rows[r] = keys.row(seen.cells[j + r < part_end ? j + r : j], head);
        if (j + rows_ahead + side_by_side <= seen.n)
          for (int r = 0; r < side_by_side; r++)
            expect(keys.row(seen.cells[j + rows_ahead + r], head), row_bytes);
        const float* q = seen.q + i * seen.q_stride + part->variant * keys.dim;
        const v4 dots = dot_four<Read>(q, rows, keys.dim) * scale;
        std::memcpy(scores + i * scores_stride + j, &dots, sizeof dots);
      }
    j = part_end;
  }
}

// Columns i to i + k * lanes of `out += sum over n cells of weights[j] * row j`, every other row in
// sums of its own, so that their chains of additions do not wait for each other.
template <class Read, int k>
static void mix_columns(const float* weights, const CacheSide& values, int64_t head,
                        const int32_t* cells, int64_t n, int64_t i, float* out) {
  vf total[2][k] = {};
  const auto add = [&](int64_t j, vf(&sums)[k]) {
    const uint8_t* row = values.row(cells[j], head);
    if constexpr (Blocks<Read>) {
      constexpr int per_block = block_elements / lanes;
      for (int c = 0; c < k; c += per_block) {
        vf v[per_block];
        const float w = weights[j] * Read::block(row + Read::bytes(i + c * lanes), v);
        for (int b = 0; b < per_block; b++) sums[c + b] += v[b] * w;
      }
    } else {
      for (int c = 0; c < k; c++) sums[c] += cached<Read>(row, i + c * lanes) * weights[j];
    }
  };
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    add(j, total[0]);
    add(j + 1, total[1]);
  }
  if (j < n) add(j, total[0]);
  for (int c = 0; c < k; c++)
    store(out + i + c * lanes, load(out + i + c * lanes) + (total[0][c] + total[1][c]));
}

template <class Read>
static void mix_rows(const float* weights, const CacheSide& values, int64_t head,
                     const int32_t* cells, int64_t n, float* out) {
  const int64_t dim = values.dim;
  int64_t i = 0;
  if constexpr (Blocks<Read>) {
    constexpr int one = block_elements / lanes, two = 2 * one;
    for (; i + 2 * block_elements <= dim; i += 2 * block_elements)
      mix_columns<Read, two>(weights, values, head, cells, n, i, out);
    for (; i < dim; i += block_elements)
      mix_columns<Read, one>(weights, values, head, cells, n, i, out);
    return;
  }
  for (; i + 4 * lanes <= dim; i += 4 * lanes)
    mix_columns<Read, 4>(weights, values, head, cells, n, i, out);
  for (; i + lanes <= dim; i += lanes)
    mix_columns<Read, 1>(weights, values, head, cells, n, i, out);
  for (; i < dim; i++) {
    float total = 0;
    for (int64_t j = 0; j < n; j++) total += Read::one(values.row(cells[j], head), i) * weights[j];
    out[i] += total;
  }
}

// The same where a channel's values lie side by side: runs of neighbouring cells are one product.
template <class Read>
static void mix_channels(const float* weights, const CacheSide& values, int64_t head,
                         const int32_t* cells, int64_t n, float* out) {
  for (int64_t j = 0; j < n;) {
    int64_t end = j + 1;
    while (end < n && cells[end] == cells[end - 1] + 1) end++;
    for (int64_t i = 0; i < values.dim; i++) {
      const uint8_t* at = values.channel(head, i) + cells[j] * stored_bytes(values.type, 1);
      vf total = {};
      float rest = 0;
      int64_t k = 0;
      for (; k + lanes <= end - j; k += lanes) total += cached<Read>(at, k) * load(weights + j + k);
      for (; k < end - j; k++) rest += Read::one(at, k) * weights[j + k];
      out[i] += sum(total) + rest;
    }
    j = end;
  }
}

// Scores become weights.
static void weights_of(float* scores, int64_t n) {
  for (int64_t j = n; j % lanes; j++) scores[j] = -INFINITY;
  vf tops = load(scores);
  for (int64_t j = lanes; j < n; j += lanes) {
    const vf v = load(scores + j);
    const vi higher = v > tops;
    tops = reinterpret<vf>((reinterpret<vi>(v) & higher) | (reinterpret<vi>(tops) & ~higher));
  }
  float highest = tops[0];
  for (int i = 1; i < lanes; i++) highest = tops[i] > highest ? tops[i] : highest;
  vf totals = {};
  for (int64_t j = 0; j < n; j += lanes) {
    const vf e = exponential(load(scores + j) - highest);
    store(scores + j, e);
    totals += e;
  }
  const float factor = 1.0f / sum(totals);
  for (int64_t j = 0; j < n; j += lanes) store(scores + j, load(scores + j) * factor);
}

// Cells whose values are summed at a time, before another head's: of rows few, so that memory is
// read as it lies; of channels many.
constexpr int64_t mixed_rows = 16, mixed_channels = 256;

template <class Read>
static void mix(const Attended& seen, const CacheSide& values, const float* weights,
                int64_t weights_stride, float* out, int64_t out_stride) {
  const int64_t most = values.by_channel ? mixed_channels : mixed_rows;
  for (int64_t j = 0; j < seen.n; j += most) {
    const int64_t n = j + most < seen.n ? most : seen.n - j;
    for (int64_t i = 0; i < seen.n_queries; i++) {
      const int64_t head = seen.head(i);
      const float* own = weights + i * weights_stride + j;
      if constexpr (!Blocks<Read>)
        if (values.by_channel) {
          mix_channels<Read>(own, values, head, seen.cells + j, n, out + i * out_stride);
          continue;
        }
      if (j + 2 * most <= seen.n)
        for (int64_t r = 0; r < most; r++)
          expect(values.row(seen.cells[j + most + r], head), values.row_bytes());
      mix_rows<Read>(own, values, head, seen.cells + j, n, out + i * out_stride);
    }
  }
}

void attend(const Attended& seen, const CacheSide& keys, const CacheSide& values, float scale,
            float* scores, int64_t scores_stride, float* out, int64_t out_stride) {
  with_reader(keys.type, [&](auto read) {
    dot_rows<decltype(read)>(seen, keys, scale, scores, scores_stride);
  });
  for (int64_t i = 0; i < seen.n_queries; i++) {
    weights_of(scores + i * scores_stride, seen.n);
    for (int64_t k = 0; k < values.dim; k++) out[i * out_stride + k] = 0;
  }
  with_reader(values.type, [&](auto read) {
    mix<decltype(read)>(seen, values, scores, scores_stride, out, out_stride);
  });
}

}  // namespace aleator::ALEATOR_ISA
