// Sums of the squares of what matrices are multiplied with: importance matrices are made of them.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "layers/linear.hpp"

namespace aleator {

class InputSquares {
 public:
  // Sums float64 [in] and how many rows they are of, for the matrix whose bytes are at `data`.
  struct Sums {
    int64_t in;
    double* squares;
    int64_t* rows;
  };
  void watch(const uint8_t* data, Sums sums) { sums_[data] = sums; }
  void add(const Weights& w, const Input& x) {
    const auto found = sums_.find(w.data);
    if (found == sums_.end() || found->second.in != w.in) return;
    const std::lock_guard lock(mutex_);
    for (int64_t t = 0; t < x.tokens; t++)
      for (int64_t i = 0; i < w.in; i++) {
        const double v = x.x[t * x.stride + i];
        found->second.squares[i] += v * v;
      }
    *found->second.rows += x.tokens;
  }
  // What products of any thread are added to; mostly none.
  static inline std::atomic<InputSquares*> active{nullptr};

 private:
  std::unordered_map<const uint8_t*, Sums> sums_;
  std::mutex mutex_;
};

// linear_rows_, or rows_of_parts_ of a matrix in parts: every matrix of a decoder's layers passes
// this once with its first row.
inline void product_rows(const Weights& w, int64_t begin, int64_t end, const Input& x, float* y,
                         int64_t y_stride, int64_t parts = 1) {
  if (begin == 0)
    if (InputSquares* squares = InputSquares::active.load(std::memory_order_acquire))
      squares->add(w, x);
  if (parts > 1) return rows_of_parts_(w, parts, begin, end, x, y);
  linear_rows_(w, begin, end, x, y, y_stride);
}

}  // namespace aleator
