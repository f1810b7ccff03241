#include "layers/rows.hpp"

#include <cmath>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "cache/quantise.hpp"
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

// A block's integers as float32, without the scale, which is returned.
template <class Read>
static inline float block_of(const uint8_t* p, vf (&v)[block_elements / lanes]) {
  if constexpr (std::is_same_v<Read, ReadQ4_0>)
    ReadQ4_0::nibbles(p + 2, v);
  else
    for (int k = 0; k < block_elements / lanes; k++) v[k] = vf_of_i8(p + 2 + k * lanes);
  return f32_of_f16(load_as<uint16_t>(p));
}
template <class Read>
constexpr bool blocks = std::is_same_v<Read, ReadQ8_0> || std::is_same_v<Read, ReadQ4_0>;

// So many rows at once, so that one row's chain of additions does not wait for another's.
constexpr int side_by_side = 4;

template <class Read>
static inline void dot_four(const float* q, const uint8_t* const (&rows)[side_by_side], int64_t dim,
                            float (&out)[side_by_side]) {
  vf total[side_by_side] = {};
  if constexpr (blocks<Read>) {
    for (int64_t i = 0; i < dim; i += block_elements)
      for (int r = 0; r < side_by_side; r++) {
        vf v[block_elements / lanes], sum_ = {};
        const float d = block_of<Read>(rows[r] + Read::bytes(i), v);
        for (int k = 0; k < block_elements / lanes; k++) sum_ += v[k] * load(q + i + k * lanes);
        total[r] += sum_ * d;
      }
    for (int r = 0; r < side_by_side; r++) out[r] = sum(total[r]);
  } else {
    const int64_t whole = dim / lanes * lanes;
    for (int64_t i = 0; i < whole; i += lanes)
      for (int r = 0; r < side_by_side; r++) total[r] += load(q + i) * cached<Read>(rows[r], i);
    for (int r = 0; r < side_by_side; r++) {
      float rest = 0;
      for (int64_t i = whole; i < dim; i++) rest += q[i] * Read::one(rows[r], i);
      out[r] = sum(total[r]) + rest;
    }
  }
}

// The rows of one head lie apart from each other, so the processor does not guess the next ones.
constexpr int64_t rows_ahead = 16;
static inline void expect(const uint8_t* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 3);
}

// Scores of the cells [begin, end) of the list.
template <class Read>
static void dot_rows(const Attended& seen, const CacheSide& keys, int64_t head, float scale,
                     int64_t begin, int64_t end, float* scores) {
  const int64_t row_bytes = keys.row_bytes();
  int64_t j = begin;
  for (const Attended::Part* part = seen.parts; j < end; part++) {
    const int64_t part_end = part->end < end ? part->end : end;
    for (; j < part_end; j += side_by_side) {
      const uint8_t* rows[side_by_side];
      float dots[side_by_side];
      for (int r = 0; r < side_by_side; r++)
        rows[r] = keys.row(seen.cells[j + r < part_end ? j + r : j], head);
      if (j + rows_ahead + side_by_side <= seen.n)
        for (int r = 0; r < side_by_side; r++)
          expect(keys.row(seen.cells[j + rows_ahead + r], head), row_bytes);
      dot_four<Read>(part->q, rows, keys.dim, dots);
      for (int r = 0; r < side_by_side; r++) scores[j + r] = dots[r] * scale;
    }
    if (part_end > begin) j = part_end;
  }
}

// Columns i to i + k * lanes of `out += factor * sum over the cells of weights[j] * row j`, every
// other row in sums of its own, so that their chains of additions do not wait for each other.
template <class Read, int k>
static void mix_columns(const float* weights, const CacheSide& values, int64_t head,
                        const int32_t* cells, int64_t n, float factor, int64_t i, float* out) {
  vf total[2][k] = {};
  const int64_t offset = stored_bytes(values.type, i), bytes = stored_bytes(values.type, k * lanes);
  const auto add = [&](int64_t j, vf(&sums)[k]) {
    const uint8_t* row = values.row(cells[j], head);
    if constexpr (blocks<Read>) {
      constexpr int per_block = block_elements / lanes;
      for (int c = 0; c < k; c += per_block) {
        vf v[per_block];
        const float w = weights[j] * block_of<Read>(row + Read::bytes(i + c * lanes), v);
        for (int b = 0; b < per_block; b++) sums[c + b] += v[b] * w;
      }
    } else {
      for (int c = 0; c < k; c++) sums[c] += cached<Read>(row, i + c * lanes) * weights[j];
    }
  };
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    if (j + rows_ahead + 2 <= n)
      for (int r = 0; r < 2; r++)
        expect(values.row(cells[j + rows_ahead + r], head) + offset, bytes);
    add(j, total[0]);
    add(j + 1, total[1]);
  }
  if (j < n) add(j, total[0]);
  for (int c = 0; c < k; c++)
    store(out + i + c * lanes, load(out + i + c * lanes) + (total[0][c] + total[1][c]) * factor);
}

template <class Read>
static void mix_rows(const float* weights, const CacheSide& values, int64_t head,
                     const int32_t* cells, int64_t n, float factor, float* out) {
  const int64_t dim = values.dim;
  int64_t i = 0;
  if constexpr (blocks<Read>) {
    constexpr int one = block_elements / lanes, two = 2 * one;
    for (; i + 2 * block_elements <= dim; i += 2 * block_elements)
      mix_columns<Read, two>(weights, values, head, cells, n, factor, i, out);
    for (; i < dim; i += block_elements)
      mix_columns<Read, one>(weights, values, head, cells, n, factor, i, out);
    return;
  }
  for (; i + 4 * lanes <= dim; i += 4 * lanes)
    mix_columns<Read, 4>(weights, values, head, cells, n, factor, i, out);
  for (; i + lanes <= dim; i += lanes)
    mix_columns<Read, 1>(weights, values, head, cells, n, factor, i, out);
  for (; i < dim; i++) {
    float total = 0;
    for (int64_t j = 0; j < n; j++) total += Read::one(values.row(cells[j], head), i) * weights[j];
    out[i] += total * factor;
  }
}

// The same where a channel's values lie side by side: runs of neighbouring cells are one product.
template <class Read>
static void mix_channels(const float* weights, const CacheSide& values, int64_t head,
                         const int32_t* cells, int64_t n, float factor, float* out) {
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
      out[i] += (sum(total) + rest) * factor;
    }
    j = end;
  }
}

// Scores become weights, not yet divided by their sum, which is returned.
static float weights_of(float* scores, int64_t n) {
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
  return sum(totals);
}

// Cells at a time: their rows of one head stay near while every query meets them.
constexpr int64_t near_cells = 256;

void attend(const Attended* seen, int64_t n_queries, const CacheSide& keys, const CacheSide& values,
            int64_t head, float scale, float* scores, int64_t scores_stride, float* out,
            int64_t out_stride) {
  const int64_t n = seen->n;
  const int32_t* cells = seen->cells;
  with_reader(keys.type, [&](auto read) {
    for (int64_t j = 0; j < n; j += near_cells) {
      const int64_t end = j + near_cells < n ? j + near_cells : n;
      for (int64_t i = 0; i < n_queries; i++)
        dot_rows<decltype(read)>(seen[i], keys, head, scale, j, end, scores + i * scores_stride);
    }
  });
  float factors[max_group];
  for (int64_t i = 0; i < n_queries; i++) {
    factors[i] = 1.0f / weights_of(scores + i * scores_stride, n);
    for (int64_t k = 0; k < values.dim; k++) out[i * out_stride + k] = 0;
  }
  with_reader(values.type, [&](auto read) {
    using Read = decltype(read);
    for (int64_t j = 0; j < n; j += near_cells) {
      const int64_t some = j + near_cells < n ? near_cells : n - j;
      for (int64_t i = 0; i < n_queries; i++) {
        const float* weights = scores + i * scores_stride + j;
        float* to = out + i * out_stride;
        if constexpr (!blocks<Read>)
          if (values.by_channel) {
            mix_channels<Read>(weights, values, head, cells + j, some, factors[i], to);
            continue;
          }
        mix_rows<Read>(weights, values, head, cells + j, some, factors[i], to);
      }
    }
  });
}

}  // namespace aleator::ALEATOR_ISA
