// Cells of layers with a window, which are used again once their sequence has left them.
#include <algorithm>
#include <map>
#include <stdexcept>

#include "cache/cells.hpp"

namespace aleator::cache {

std::vector<int64_t> Cells::take_in_ring(int64_t n, int32_t window, int32_t keep, int32_t stream,
                                         bool chunked) {
  if (n < 1 || window < 1 || keep < 0 || stream < 0 || stream >= n_streams())
    throw std::invalid_argument("n, window, keep or stream is out of range");
  const int64_t begin = stream * share();
  std::vector<int64_t> found;
  std::map<int32_t, int32_t> lost;  // sequence -> the highest of its positions to go
  int64_t cell = heads_[static_cast<size_t>(stream)];
  if (cell - begin > used_[static_cast<size_t>(stream)] + 2 * n) cell = begin;
  for (int64_t tested = 0; tested < share() && static_cast<int64_t>(found.size()) < n; ++tested) {
    if (cell >= begin + share()) cell = begin;
    if (pos_[cell] < 0) {
      found.push_back(cell);
    } else if (const auto ids = owners(cell); ids.size() == 1 && pos_[cell] >= keep) {
      const int32_t seq = ids[0], next = seq_pos_max(seq) + 1;
      if (pos_[cell] < window_begin(next, window, chunked)) {
        auto& highest = lost.try_emplace(seq, -1).first->second;
        highest = std::max(highest, pos_[cell]);
        found.push_back(cell);
      }
    }
    ++cell;
  }
  if (static_cast<int64_t>(found.size()) < n) return {};
  for (const auto& [seq, highest] : lost) seq_rm(seq, keep, highest + 1);
  return found;
}

void Cells::follow_head(int32_t dst, int32_t src) {
  require(dst, "dst");
  require(src, "src");
  if (n_streams() == 1) return;
  enter();
  heads_[static_cast<size_t>(dst)] = heads_[static_cast<size_t>(src)] + (dst - src) * share();
}

}  // namespace aleator::cache
