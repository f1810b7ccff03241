#include "layers/forms.hpp"

#include <algorithm>
#include <iterator>

namespace aleator {

void PairedRows::resize(int64_t tokens, int64_t in) {
  const int64_t whole = (in + 31) / 32 * 32;
  in_ = in, stride_ = whole == apart(whole) ? whole : whole + 32;
  const size_t n = size_t(tokens * stride_);
  if (floats_.size() < n) floats_.resize(n);
  if (bfloat16_products() && halves_.size() < n) halves_.resize(n);
}
void PairedRows::round(int64_t token, const float* x) {
  const int64_t at = token * stride_;
  pair_row_(x, in_, &floats_[at], halves_.empty() ? nullptr : &halves_[at]);
}
void PairedRows::copy(int64_t to, const Paired& rows, int64_t from) {
  const int64_t there = from * rows.stride, here = to * stride_;
  std::copy_n(rows.floats + there, stride_, &floats_[here]);
  if (rows.halves) std::copy_n(rows.halves + there, stride_, &halves_[here]);
}
Paired PairedRows::view(int64_t first) const {
  const int64_t at = first * stride_;
  return {floats_.data() + at, halves_.empty() ? nullptr : halves_.data() + at, stride_};
}

void RoundedRows::resize(int64_t tokens, int64_t in, int64_t block) {
  in_ = in, block_ = block;
  const size_t n = size_t(tokens * in);
  if (q_.size() < n) q_.resize(n), d_.resize(n / 32), sums_.resize(n / 16);
}
void RoundedRows::round(int64_t token, const float* x, const int32_t* order) {
  const int64_t at = token * in_;
  if (!order) return round_row_(x, in_, block_, &q_[at], &d_[at / block_], &sums_[at / 16]);
  float part[1024];  // whole blocks
  for (int64_t i = 0; i < in_; i += std::size(part)) {
    const int64_t n = std::min(int64_t(std::size(part)), in_ - i), to = at + i;
    for (int64_t j = 0; j < n; j++) part[j] = x[order[i + j]];
    round_row_(part, n, block_, &q_[to], &d_[to / block_], &sums_[to / 16]);
  }
}
void RoundedRows::copy(int64_t to, const Rounded& rows, int64_t from) {
  const int64_t there = from * in_, here = to * in_;
  std::copy_n(rows.q + there, in_, &q_[here]);
  std::copy_n(rows.d + there / block_, in_ / block_, &d_[here / block_]);
  std::copy_n(rows.sums + there / 16, in_ / 16, &sums_[here / 16]);
}

void FormedRows::resize(int64_t tokens, int64_t in, Forms forms) {
  forms_ = forms;
  if (forms.pairs) pairs_.resize(tokens, in);
  if (forms.small) small_.resize(tokens, in, 32);
  if (forms.large) large_.resize(tokens, in, 256);
  in_ = in;
  const size_t n = forms.lanes ? size_t(LaneTiles{tokens}.n * tile_apart(in)) : 0;
  if (lanes_.size() < n) lanes_.resize(n);
}
void FormedRows::round(int64_t token, const float* x) {
  if (forms_.pairs) pairs_.round(token, x);
  if (forms_.small) small_.round(token, x, forms_.order);
  if (forms_.large) large_.round(token, x, forms_.order);
}
void FormedRows::take_apart(const LaneTiles& tiles, int64_t tile, const float* x, int64_t stride) {
  const int64_t first = tiles.first(tile);
  rows_by_lanes_(x + first * stride, stride, tiles.first(tile + 1) - first, in_,
                 &lanes_[tile * tile_apart(in_)]);
}
void FormedRows::copy(int64_t to, const Input& x, int64_t from) {
  if (forms_.pairs) pairs_.copy(to, x.pairs, from);
  if (forms_.small) small_.copy(to, x.small, from);
  if (forms_.large) large_.copy(to, x.large, from);
}
void FormedRows::give(Input& x, int64_t first) const {
  if (forms_.pairs) x.pairs = pairs_.view(first);
  if (forms_.small) x.small = small_.view(first, x.tokens);
  if (forms_.large) x.large = large_.view(first, x.tokens);
  if (forms_.lanes) x.lanes = lanes_.data();
}

}  // namespace aleator
