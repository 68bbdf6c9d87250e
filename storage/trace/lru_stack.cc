#include "storage/trace/lru_stack.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace kvstow {

uint64_t LruStack::Distance(uint32_t item) const {
  const uint32_t time = time_of_[item];
  const uint32_t group = time / kGroup;
  const auto first = weight_at_.begin() + group * kGroup;
  uint64_t before = std::accumulate(first, weight_at_.begin() + time, uint64_t{0});
  for (uint32_t i = group; i > 0; i &= i - 1) before += tree_[i];
  return total_ - before;
}

void LruStack::Touch(uint32_t item, uint32_t weight) {
  if (item >= time_of_.size()) {
    time_of_.resize(std::max<size_t>(item + size_t{1}, time_of_.size() * 3 / 2), kNowhere);
  }
  Remove(item);
  if (now_ == item_at_.size()) Compact();
  time_of_[item] = now_;
  item_at_[now_] = item;
  weight_at_[now_] = weight;
  Add(now_, weight);
  total_ += weight;
  ++live_;
  ++now_;
}

void LruStack::Remove(uint32_t item) {
  if (!Contains(item)) return;
  const uint32_t time = time_of_[item];
  Add(time, -uint64_t{weight_at_[time]});
  total_ -= weight_at_[time];
  weight_at_[time] = 0;
  time_of_[item] = kNowhere;
  --live_;
}

uint64_t LruStack::memory_bytes() const {
  return (time_of_.capacity() + item_at_.capacity() + weight_at_.capacity()) * sizeof(uint32_t) +
         tree_.capacity() * sizeof(uint64_t);
}

void LruStack::Add(uint32_t time, uint64_t weight) {
  for (uint32_t i = time / kGroup + 1; i < tree_.size(); i += i & -i) tree_[i] += weight;
}

void LruStack::Compact() {
  uint32_t next = 0;
  for (uint32_t time = 0; time < now_; ++time) {
    if (weight_at_[time] == 0) continue;
    item_at_[next] = item_at_[time];
    weight_at_[next] = weight_at_[time];
    time_of_[item_at_[next]] = next;
    ++next;
  }
  now_ = next;
  const size_t groups = size_t{next} * 2 / kGroup + 4;
  item_at_.resize(groups * kGroup);
  weight_at_.resize(groups * kGroup);
  std::fill(weight_at_.begin() + next, weight_at_.end(), 0);
  tree_.assign(groups + 1, 0);
  for (size_t i = 1; i <= groups; ++i) {
    const auto first = weight_at_.begin() + static_cast<std::ptrdiff_t>((i - 1) * kGroup);
    tree_[i] += std::accumulate(first, first + kGroup, uint64_t{0});
    if (const size_t parent = i + (i & -i); parent <= groups) tree_[parent] += tree_[i];
  }
}

}  // namespace kvstow
