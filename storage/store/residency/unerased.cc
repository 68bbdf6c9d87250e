#include "storage/store/residency/unerased.h"

#include <utility>

namespace kvstow {

void Unerased::Add(Item item) {
  item.turn = ++last_turn_;
  bytes_ += item.bytes;
  names_.insert({item.name.space, item.name.key, item.turn});
  items_.emplace(item.turn, std::move(item));
}

std::optional<Unerased::Item> Unerased::Next() {
  for (auto& [turn, item] : items_) {
    if (item.busy || (item.name.key.empty() && HasPages(item.name.space))) continue;
    item.busy = true;
    busy_bytes_ += item.bytes;
    return item;
  }
  return std::nullopt;
}

void Unerased::Done(const Item& item, bool erased) {
  busy_bytes_ -= item.bytes;
  if (!erased) {
    items_.at(item.turn).busy = false;
    return;
  }
  bytes_ -= item.bytes;
  names_.erase({item.name.space, item.name.key, item.turn});
  items_.erase(item.turn);
}

bool Unerased::Has(const PageName& name) const {
  const auto it = names_.lower_bound({name.space, name.key, 0});
  return it != names_.end() && IsOf(*it, name);
}

bool Unerased::IsBusy(const PageName& name) const {
  for (auto it = names_.lower_bound({name.space, name.key, 0});
       it != names_.end() && IsOf(*it, name); ++it) {
    if (items_.at(std::get<uint64_t>(*it)).busy) return true;
  }
  return false;
}

bool Unerased::IsOf(const Named& item, const PageName& name) {
  const auto& [space, key, turn] = item;
  return space == name.space && (name.key.empty() || key == name.key);
}

bool Unerased::HasPages(SpaceId space) const {
  // An empty key sorts before all others.
  const auto it = names_.upper_bound({space, "", UINT64_MAX});
  return it != names_.end() && std::get<SpaceId>(*it) == space;
}

}  // namespace kvstow
