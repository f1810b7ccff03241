// Products with many tokens on AVX2 and AVX-512: sixteen rows of W are taken apart once, for all of
// them.
#if defined(ALEATOR_ISA_v4) || defined(ALEATOR_ISA_v3)
#include "layers/block_linear.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int panel_rows = 16;
constexpr int64_t panel_chunk =
    1024;  // elements of these rows at a time: with their scales they stay near
constexpr int64_t near_tokens = 256;

// What is read next of W.  Memory is asked for it a little at every step of the products before:
// asked for all at once, taking rows apart would wait for its arrival.
class Ahead {
 public:
  Ahead(const uint8_t* begin, const uint8_t* end, int64_t steps)
      : at_(begin), end_(end), lines_((end - begin) / 64 / steps + 1) {}
  void step() {
    for (int64_t i = 0; i < lines_ && at_ < end_; i++, at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const uint8_t *at_, *end_;
  int64_t lines_;
};

}  // namespace aleator::ALEATOR_ISA

#if defined(ALEATOR_ISA_v4)
#include "layers/block_panel_vnni.hpp"
#else
#include "layers/block_panel_pairs.hpp"
#endif

namespace aleator::ALEATOR_ISA {

template <class B>
static void fill(Panel& panel, const Weights& w, int64_t row, int64_t rows, int64_t k, int64_t n) {
  static_cast<PanelOf<B>&>(panel).fill(w, row, rows, k, n);
}

[[gnu::noinline]] static void give(const float (*sums)[panel_rows], int64_t tokens, int64_t rows,
                                   const float* bias, float* y, int64_t y_stride) {
  for (int64_t t = 0; t < tokens; t++, y += y_stride) {
    if (bias)
      for (int64_t r = 0; r < rows; r++) y[r] = sums[t][r] + bias[r];
    else if (rows == panel_rows)
      std::memcpy(y, sums[t], sizeof sums[t]);
    else
      std::memcpy(y, sums[t], size_t(rows) * sizeof(float));
  }
}

// Products of a panel, which fill<B> fills.
template <class F>
[[gnu::noinline]] static void many_of(Panel& panel, decltype(fill<BlockQ8_0>)& fill,
                                      const Weights& w, int64_t begin, int64_t end,
                                      const Rounded& x, float* y, int64_t y_stride) {
  const int64_t bytes = panel_rows * w.row_bytes;
  alignas(64) float acc[near_tokens][panel_rows];
  for (int64_t first = 0; first < x.tokens; first += near_tokens) {
    const int64_t tokens = x.tokens - first < near_tokens ? x.tokens - first : near_tokens;
    const int64_t passes = (tokens + tokens_at_once<F> - 1) / tokens_at_once<F>;
    for (int64_t row = begin; row < end; row += panel_rows) {
      const int64_t rows = end - row < panel_rows ? end - row : panel_rows;
      std::memset(acc, 0, size_t(tokens) * sizeof acc[0]);
      for (int64_t k = 0; k < x.in; k += panel_chunk) {
        const int64_t n = x.in - k < panel_chunk ? x.in - k : panel_chunk;
        fill(panel, w, row, rows, k, n);
        const uint8_t* next = w.data + row * w.row_bytes + bytes;
        Ahead ahead(next + bytes * k / x.in, next + bytes * (k + n) / x.in, passes * n / F::group);
        all_tokens<F>(panel, n, x, first, tokens, k, acc, ahead);
      }
      give(acc, tokens, rows, w.bias ? w.bias + row : nullptr, y + first * y_stride + row,
           y_stride);
    }
  }
}

template <class B>
static void many(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                 int64_t y_stride) {
  PanelOf<B> panel;
  many_of<typename PanelOf<B>::Shared>(panel, fill<B>, w, begin, end, x, y, y_stride);
}

void block_many(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                int64_t y_stride) {
  with_block(w.type, [&](auto block) { many<decltype(block)>(w, begin, end, x, y, y_stride); });
}

}  // namespace aleator::ALEATOR_ISA
#endif
