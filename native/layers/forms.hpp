// The forms of x that products with a matrix read, by the type of the matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "layers/block_linear.hpp"
#include "layers/lane_rows.hpp"
#include "layers/lines.hpp"
#include "layers/paired.hpp"
#include "layers/stored.hpp"

namespace aleator {

// float32; in bfloat16 and pairs; int8 in blocks of 32; of 256; float32 by lanes.
struct Forms {
  bool floats = false, pairs = false, small = false, large = false, lanes = false;
  const int32_t* order = nullptr;   // of all matrices in blocks, see Weights
  int64_t least_laned = INT64_MAX;  // tokens
  // What so many tokens need.
  Forms of(int64_t tokens) const {
    Forms all = *this;
    all.lanes = isa() == Isa::v3 && tokens >= least_laned;
    return all;
  }
  bool made() const { return pairs || small || large || lanes; }
};
inline Forms forms_of(std::initializer_list<const Weights*> list) {
  Forms forms;
  for (const Weights* w : list) {
    const bool small = block_shape(w->type).elements == 32;
    (w->type == Stored::bf16 ? forms.pairs
     : !in_blocks(w->type)   ? forms.floats
     : small                 ? forms.small
                             : forms.large) = true;
    forms.least_laned = std::min(forms.least_laned, least_laned(w->type));
    if (w->order) forms.order = w->order;
  }
  return forms;
}

// Rows of x, and the same rounded.
struct Input {
  const float* x = nullptr;
  int64_t stride = 0;  // from row to row
  int64_t tokens = 0;
  Paired pairs;
  Rounded small, large;
  const float* lanes = nullptr;  // in tiles
};

// Rows a multiple of 4 KiB apart would push each other out of the caches.
inline int64_t apart(int64_t n) { return n % 1024 ? n : n + 16; }

// Room for rows in pairs, each from the beginning of a cache line on.
class PairedRows {
 public:
  void resize(int64_t tokens, int64_t in);
  void round(int64_t token, const float* x);
  // Row `to` becomes row `from` of others of the same size.
  void copy(int64_t to, const Paired& rows, int64_t from);
  Paired view(int64_t first) const;

 private:
  int64_t in_ = 0, stride_ = 0;
  Lines<float> floats_;
  Lines<uint16_t> halves_;  // none where no kernel takes them
};

// Room for rows in int8.
class RoundedRows {
 public:
  void resize(int64_t tokens, int64_t in, int64_t block);
  // order: of the elements of x; null: as they are.
  void round(int64_t token, const float* x, const int32_t* order);
  // Row `to` becomes row `from` of others, in blocks of the same size.
  void copy(int64_t to, const Rounded& rows, int64_t from);
  Rounded view(int64_t first, int64_t tokens) const {
    const int64_t at = first * in_;
    return {q_.data() + at, d_.data() + at / block_, sums_.data() + at / 16, in_, tokens};
  }

 private:
  int64_t in_ = 0, block_ = 32;
  std::vector<int8_t> q_;
  std::vector<float> d_;
  std::vector<int16_t> sums_;
};

// Room for rows in every rounded form that is asked for.
class FormedRows {
 public:
  void resize(int64_t tokens, int64_t in, Forms forms);
  void round(int64_t token, const float* x);
  // Rows of x, all of whose tiles are asked for, by lanes.
  void take_apart(const LaneTiles& tiles, int64_t tile, const float* x, int64_t stride);
  // Row `to` becomes row `from` of x, which has these forms.
  void copy(int64_t to, const Input& x, int64_t from);
  // x's rows are rows [first, first + x.tokens) of these.
  void give(Input& x, int64_t first = 0) const;

 private:
  Forms forms_;
  PairedRows pairs_;
  RoundedRows small_, large_;
  int64_t in_ = 0;
  Lines<float> lanes_;
};

}  // namespace aleator
