#include "layers/angles.hpp"

#include "errors.hpp"
#include "layers/elementary.hpp"

namespace aleator {

void rotary_angles(const Rotation& r, const int32_t* positions, int64_t n, double sign,
                   double magnitude, float* out) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t p = 0; p < r.pairs; p++) {
      const CosSin of = cos_sin(sign * positions[i] * r.frequencies[p]);
      *out++ = float(magnitude * of.cos);
      *out++ = float(magnitude * of.sin);
    }
}

void PositionAngles::begin(const Rotation& rotation) {
  rotation_ = rotation;
  if (starts_.size() > 8 * (used_ + 1)) starts_.clear(), angles_.clear();
  for (auto& [page, start] : starts_) start.used = false;
  used_ = 0, last_page_ = no_page;
}

void PositionAngles::find(int32_t page) {
  if (page < 0) refuse("a key's position is negative");
  auto at = starts_.find(page);
  if (at == starts_.end()) {
    int32_t positions[page_size];
    for (int32_t i = 0; i < page_size; i++) positions[i] = page * page_size + i;
    const std::size_t first = rows(), row = std::size_t(rotation_.pairs) * 2;
    angles_.resize((first + page_size) * row);
    rotary_angles(rotation_, positions, page_size, 1, 1, angles_.data() + first * row);
    at = starts_.emplace(page, Start{int32_t(first), false}).first;
  }
  if (!at->second.used) at->second.used = true, used_++;
  last_page_ = page, last_row_ = at->second.row;
}

}  // namespace aleator
