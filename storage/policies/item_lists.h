// Items in doubly linked lists, found by id: what every policy here is made of.
//
// An item is in exactly one of a fixed number of lists, oldest at the front unless it was put
// there; the lists count items and bytes. Items are named by small numbers that are valid until
// Forget. Everything is O(1). Not thread-safe.
#ifndef KVSTOW_STORAGE_POLICIES_ITEM_LISTS_H_
#define KVSTOW_STORAGE_POLICIES_ITEM_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvstow {

using ItemNumber = uint32_t;
inline constexpr ItemNumber kNoItem = UINT32_MAX;

// `Facts` is what the policy keeps of each item.
template <typename Facts>
class ItemLists {
 public:
  struct Item : Facts {
    uint64_t id = 0;
    uint64_t bytes = 0;
    ItemNumber before = kNoItem, after = kNoItem;
    uint32_t list = 0;
  };

  explicit ItemLists(size_t lists) : lists_(lists) {}

  ItemNumber Find(uint64_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? kNoItem : it->second;
  }
  Item& operator[](ItemNumber n) { return items_[n]; }
  const Item& operator[](ItemNumber n) const { return items_[n]; }

  ItemNumber front(size_t list) const { return lists_[list].front; }
  ItemNumber after(ItemNumber n) const { return items_[n].after; }
  uint64_t bytes(size_t list) const { return lists_[list].bytes; }
  size_t items(size_t list) const { return lists_[list].items; }
  size_t size() const { return by_id_.size(); }

  // The first item of `list` that `may_go(id)` accepts.
  template <typename MayGo>
  ItemNumber FirstThat(const MayGo& may_go, size_t list) const {
    ItemNumber n = lists_[list].front;
    while (n != kNoItem && !may_go(items_[n].id)) n = items_[n].after;
    return n;
  }

  // At the back of `list`. The id must be new.
  ItemNumber Add(uint64_t id, uint64_t bytes, size_t list) {
    ItemNumber n = kNoItem;
    if (free_.empty()) {
      n = static_cast<ItemNumber>(items_.size());
      items_.emplace_back();
    } else {
      n = free_.back();
      free_.pop_back();
      items_[n] = Item();
    }
    items_[n].id = id;
    items_[n].bytes = bytes;
    by_id_[id] = n;
    LinkBack(n, list);
    return n;
  }
  void MoveToBack(ItemNumber n, size_t list) {
    Unlink(n);
    LinkBack(n, list);
  }
  // Into `list` in the order of `key`, looking at a few items at the front or at the back.
  template <typename Key>
  void MoveInOrder(ItemNumber n, size_t list, bool at_front, const Key& key) {
    constexpr int kSteps = 128;
    Unlink(n);
    ItemNumber before = at_front ? kNoItem : lists_[list].back;
    ItemNumber after = at_front ? lists_[list].front : kNoItem;
    for (int step = 0; step < kSteps; ++step) {
      if (at_front && after != kNoItem && key(items_[after]) < key(items_[n])) {
        before = std::exchange(after, items_[after].after);
      } else if (!at_front && before != kNoItem && key(items_[n]) < key(items_[before])) {
        after = std::exchange(before, items_[before].before);
      } else {
        break;
      }
    }
    Link(n, list, before, after);
  }
  void Resize(ItemNumber n, uint64_t bytes) {
    lists_[items_[n].list].bytes += bytes - items_[n].bytes;
    items_[n].bytes = bytes;
  }
  void Forget(ItemNumber n) {
    Unlink(n);
    by_id_.erase(items_[n].id);
    items_[n] = Item();
    free_.push_back(n);
  }

 private:
  struct List {
    ItemNumber front = kNoItem, back = kNoItem;
    uint64_t bytes = 0;
    size_t items = 0;
  };

  void LinkBack(ItemNumber n, size_t list) { Link(n, list, lists_[list].back, kNoItem); }
  void Link(ItemNumber n, size_t list, ItemNumber before, ItemNumber after) {
    Item& item = items_[n];
    item.list = static_cast<uint32_t>(list);
    item.before = before;
    item.after = after;
    (before == kNoItem ? lists_[list].front : items_[before].after) = n;
    (after == kNoItem ? lists_[list].back : items_[after].before) = n;
    lists_[list].bytes += item.bytes;
    ++lists_[list].items;
  }
  void Unlink(ItemNumber n) {
    const Item& item = items_[n];
    List& list = lists_[item.list];
    (item.before == kNoItem ? list.front : items_[item.before].after) = item.after;
    (item.after == kNoItem ? list.back : items_[item.after].before) = item.before;
    list.bytes -= item.bytes;
    --list.items;
  }

  std::vector<Item> items_;
  std::vector<ItemNumber> free_;
  std::vector<List> lists_;
  absl::flat_hash_map<uint64_t, ItemNumber> by_id_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_ITEM_LISTS_H_
