// The angles of rotary position embeddings, with equal bits on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace aleator {

// Rotary position embedding.
struct Rotation {
  const double* frequencies = nullptr;  // radians per position of each rotated pair
  int64_t pairs = 0;                    // at most head_dim / 2
  double magnitude = 1;
  bool interleaved = false;  // channels (2i, 2i + 1), else (i, i + pairs)
  int64_t offset = 0;        // channels of a head before the rotated ones
};

// out [n, pairs, 2]: magnitude times cosine and sine of sign * positions[i] * frequency, in float64
// and then rounded.
void rotary_angles(const Rotation& r, const int32_t* positions, int64_t n, double sign,
                   double magnitude, float* out);

// Angles of the positions that are asked for, kept from step to step.  They come in pages of
// neighbours: a sequence's positions follow each other, wherever it begins.
class PositionAngles {
 public:
  // A step of the same rotation begins: pages of positions that the last one did not need are
  // forgotten once they are most.
  void begin(const Rotation& rotation);
  // The row of a position; valid until begin, and data after the last call.
  // std::invalid_argument for a position below 0.
  int32_t row(int32_t position) {
    const int32_t page = position >> page_bits;
    if (page != last_page_) find(page);
    return last_row_ + (position & (page_size - 1));
  }
  const float* data() const { return angles_.data(); }
  std::size_t rows() const { return starts_.size() * page_size; }

 private:
  static constexpr int32_t page_bits = 8, page_size = 1 << page_bits;
  struct Start {
    int32_t row = 0;
    bool used = false;
  };
  static constexpr int32_t no_page = INT32_MIN;
  void find(int32_t page);

  Rotation rotation_;
  std::vector<float> angles_;
  std::unordered_map<int32_t, Start> starts_;  // of pages
  std::size_t used_ = 0;
  int32_t last_page_ = no_page, last_row_ = 0;
};

}  // namespace aleator
