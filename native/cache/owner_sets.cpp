#include "cache/owner_sets.hpp"

#include <numeric>

namespace aleator::cache {

OwnerSets::OwnerSets(int32_t n_seq_max) : n_seq_max_(n_seq_max) {
  single_.resize(n_seq_max);
  std::iota(single_.begin(), single_.end(), 0);
  cells_.resize(n_seq_max);
}

int32_t OwnerSets::of(std::span<const int32_t> ids) {
  if (ids.size() < 2) return ids.empty() ? kNone : ids[0];
  if (const auto found = numbers_.find(ids); found != numbers_.end()) return found->second;
  Ids kept(ids.begin(), ids.end()), key = kept;
  const bool again = !free_.empty();
  const int32_t number = again ? free_.back() : size();
  if (!again) {
    ids_.reserve(ids_.size() + 1 > ids_.capacity() ? 2 * ids_.size() + 8 : 0);
    cells_.reserve(cells_.size() + 1 > cells_.capacity() ? 2 * cells_.size() : 0);
    free_.reserve(ids_.capacity());  // so that sweep cannot fail
  }
  numbers_.emplace(std::move(key), number);  // from here on nothing throws
  if (again) {
    free_.pop_back();
    ids_[number - n_seq_max_] = std::move(kept);
  } else {
    ids_.push_back(std::move(kept));
    cells_.push_back(0);
  }
  return number;
}

std::span<const int32_t> OwnerSets::ids(int32_t set) const {
  if (set < n_seq_max_) return {&single_[set], 1};
  return ids_[set - n_seq_max_];
}

bool OwnerSets::has(int32_t set, int32_t seq) const {
  if (set < n_seq_max_) return set == seq;
  const Ids& ids = ids_[set - n_seq_max_];
  return std::binary_search(ids.begin(), ids.end(), seq);
}

int32_t OwnerSets::with(int32_t set, int32_t seq) {
  if (has(set, seq)) return set;
  const auto old = ids(set);
  Ids more(old.begin(), old.end());
  more.insert(std::upper_bound(more.begin(), more.end(), seq), seq);
  return of(more);
}

int32_t OwnerSets::without(int32_t set, int32_t seq) {
  const auto old = ids(set);
  Ids less(old.begin(), old.end());
  std::erase(less, seq);
  return of(less);
}

int64_t OwnerSets::shared_cells() const {
  return std::accumulate(cells_.begin() + n_seq_max_, cells_.end(), int64_t{0});
}

void OwnerSets::sweep() {
  if (numbers_.size() < 64) return;
  size_t live = 0;
  for (size_t i = size_t(n_seq_max_); i < cells_.size(); ++i) live += cells_[i] > 0;
  if (numbers_.size() < 2 * live + 64) return;
  std::erase_if(numbers_, [this](const auto& each) {
    const int32_t set = each.second;
    if (cells(set) > 0) return false;
    ids_[set - n_seq_max_] = Ids();
    free_.push_back(set);
    return true;
  });
}

}  // namespace aleator::cache
