// Rows of the cache as float32, a vector or a whole row at a time, and squares of them transposed.
// Included by *.isa.cpp files only.
#pragma once

#include <type_traits>

#include "layers/blocks.hpp"
#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// Elements that are widened at a time.
template <class Read>
constexpr int span = Blocks<Read> ? block_elements : 16;

// Elements i to i + span of a row of dim; zeros past dim.
template <class Read, bool whole = false>  // whole: they are all within the row
static inline void widen(const uint8_t* row, int64_t i, int64_t dim, vf (&v)[span<Read> / lanes]) {
  if constexpr (Blocks<Read>) {
    Read::group(row, i, v);
  } else if (whole || i + 16 <= dim) {
#pragma GCC unroll 4
    for (int k = 0; k < 16 / lanes; k++) v[k] = Read::vector(row, i + k * lanes);
  } else {
    float some[16] = {};
    for (int64_t k = i; k < dim; k++) some[k - i] = Read::one(row, k);
    for (int k = 0; k < 16 / lanes; k++) v[k] = load(some + k * lanes);
  }
}

// Elements [begin, end) of a row, the first a multiple of span, and zeros up to the next one.
template <class Read>
[[maybe_unused]] static void widen_row(const uint8_t* row, int64_t begin, int64_t end, float* to) {
  for (int64_t i = begin; i < end; i += span<Read>) {
    vf v[span<Read> / lanes];
    widen<Read>(row, i, end, v);
    for (int k = 0; k < span<Read> / lanes; k++) store(to + i - begin + k * lanes, v[k]);
  }
}

// The number at p in every lane, by an integer instruction: Zen 4 executes the one for floats where
// it adds, and this one where it loads.
static inline vf splat_from(const float* p) { return reinterpret<vf>(load_as<int32_t>(p) - vi{}); }

template <int apart, bool second, int... i>
static inline vf blended(vf a, vf b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(
      a, b, (i & apart ? (second ? lanes + i : lanes + i - apart) : (second ? i + apart : i))...);
}
// A square of lanes x lanes elements, row by row: rows and columns change places.
template <int apart = 1>
static inline void transpose(vf (&v)[lanes]) {
  if constexpr (apart < lanes) {
    constexpr auto all = std::make_integer_sequence<int, lanes>();
    for (int i = 0; i < lanes; i++) {
      if (i & apart) continue;
      const vf a = v[i], b = v[i + apart];
      v[i] = blended<apart, false>(a, b, all);
      v[i + apart] = blended<apart, true>(a, b, all);
    }
    transpose<apart * 2>(v);
  }
}
// Sixteen rows of dim as columns [padded(dim), 16].
template <class Read>
[[maybe_unused]] static void transpose_rows(const uint8_t* const* rows, int64_t dim,
                                            float* columns) {
  constexpr int vectors = span<Read> / lanes;
  for (int64_t i = 0; i < dim; i += span<Read>)
    for (int r = 0; r < 16; r += lanes) {
      vf squares[vectors][lanes];
      for (int k = 0; k < lanes; k++) {
        vf v[vectors];
        widen<Read>(rows[r + k], i, dim, v);
        for (int m = 0; m < vectors; m++) squares[m][k] = v[m];
      }
      for (int m = 0; m < vectors; m++) {
        transpose(squares[m]);
        for (int k = 0; k < lanes; k++)
          store(columns + (i + m * lanes + k) * 16 + r, squares[m][k]);
      }
    }
}

}  // namespace aleator::ALEATOR_ISA
