// Items in doubly linked lists, found by id. Every policy here uses them.
//
// An item is in exactly one of a fixed number of lists. The oldest item is at the front, unless
// another was put there. The lists count items and bytes. Small numbers name items, and are valid
// until Forget. Everything is O(1). Memory grows by blocks of items. The index by id holds item
// numbers only, so an item costs little more than itself. Not thread-safe.
#ifndef KVSTOW_STORAGE_POLICIES_ITEM_LISTS_H_
#define KVSTOW_STORAGE_POLICIES_ITEM_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"

namespace kvstow {

using ItemNumber = uint32_t;
inline constexpr ItemNumber kNoItem = UINT32_MAX;

// `Facts` is the policy's data about each item.
template <typename Facts>
class ItemLists {
 public:
  struct Item : Facts {
    uint64_t id = 0;
    uint64_t bytes : 48 = 0;  // bit fields: a few words saved on each item add up
    uint64_t list : 15 = 0;
    uint64_t held : 1 = false;
    ItemNumber before = kNoItem, after = kNoItem;
  };

  // At most 32,768.
  explicit ItemLists(size_t lists) : lists_(lists) {}
  ItemLists(const ItemLists&) = delete;
  ItemLists& operator=(const ItemLists&) = delete;

  ItemNumber Find(uint64_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? kNoItem : *it;
  }
  Item& operator[](ItemNumber n) { return blocks_[n / kBlock][n % kBlock]; }
  const Item& operator[](ItemNumber n) const { return blocks_[n / kBlock][n % kBlock]; }

  // Returns the first item that is not held.
  ItemNumber front(size_t list) const { return lists_[list].front; }
  ItemNumber after(ItemNumber n) const { return (*this)[n].after; }
  uint64_t bytes(size_t list) const { return lists_[list].bytes; }
  size_t items(size_t list) const { return lists_[list].items; }
  size_t size() const { return by_id_.size(); }

  // Returns the numbers of all items, in no order.
  std::vector<ItemNumber> Numbers() const { return {by_id_.begin(), by_id_.end()}; }

  // Returns the first item of `list` that `may_go(id)` accepts.
  template <typename MayGo>
  ItemNumber FirstThat(const MayGo& may_go, size_t list) const {
    ItemNumber n = lists_[list].front;
    while (n != kNoItem && !may_go((*this)[n].id)) n = (*this)[n].after;
    return n;
  }

  // Adds an item at the back of `list`. The id must be new.
  ItemNumber Add(uint64_t id, uint64_t bytes, size_t list) {
    ItemNumber n = kNoItem;
    if (free_.empty()) {
      n = made_++;
      if (n % kBlock == 0) blocks_.push_back(std::make_unique<Item[]>(kBlock));
    } else {
      n = free_.back();
      free_.pop_back();
    }
    (*this)[n].id = id;
    (*this)[n].bytes = bytes;
    by_id_.insert(n);
    LinkBack(n, list);
    return n;
  }
  void MoveToBack(ItemNumber n, size_t list) {
    Unlink(n);
    LinkBack(n, list);
  }
  // Moves an item into `list` in the order of `key`. Looks at a few items at the front or at the
  // back.
  template <typename Key>
  void MoveInOrder(ItemNumber n, size_t list, bool at_front, const Key& key) {
    constexpr int kSteps = 128;
    Unlink(n);
    ItemNumber before = at_front ? kNoItem : lists_[list].back;
    ItemNumber after = at_front ? lists_[list].front : kNoItem;
    for (int step = 0; step < kSteps; ++step) {
      if (at_front && after != kNoItem && key((*this)[after]) < key((*this)[n])) {
        before = std::exchange(after, (*this)[after].after);
      } else if (!at_front && before != kNoItem && key((*this)[n]) < key((*this)[before])) {
        after = std::exchange(before, (*this)[before].before);
      } else {
        break;
      }
    }
    Link(n, list, before, after);
  }
  // Takes an item out of the order of its list. The list still counts it in its bytes and items.
  // PutBack puts it back at the front; a move puts it back at its new place.
  void Hold(ItemNumber n) {
    Unchain(n);
    (*this)[n].held = true;
  }
  void PutBack(ItemNumber n) {
    if (!(*this)[n].held) return;
    const size_t list = (*this)[n].list;
    Unlink(n);
    Link(n, list, kNoItem, lists_[list].front);
  }
  void Resize(ItemNumber n, uint64_t bytes) {
    lists_[(*this)[n].list].bytes += bytes - (*this)[n].bytes;
    (*this)[n].bytes = bytes;
  }
  void Forget(ItemNumber n) {
    Unlink(n);
    by_id_.erase(n);
    (*this)[n] = Item();
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
    Item& item = (*this)[n];
    item.list = list;
    item.held = false;
    item.before = before;
    item.after = after;
    (before == kNoItem ? lists_[list].front : (*this)[before].after) = n;
    (after == kNoItem ? lists_[list].back : (*this)[after].before) = n;
    lists_[list].bytes += item.bytes;
    ++lists_[list].items;
  }
  void Unchain(ItemNumber n) {
    const Item& item = (*this)[n];
    if (item.held) return;
    List& list = lists_[item.list];
    (item.before == kNoItem ? list.front : (*this)[item.before].after) = item.after;
    (item.after == kNoItem ? list.back : (*this)[item.after].before) = item.before;
  }
  void Unlink(ItemNumber n) {
    Unchain(n);
    lists_[(*this)[n].list].bytes -= (*this)[n].bytes;
    --lists_[(*this)[n].list].items;
  }

  static constexpr ItemNumber kBlock = 1024;
  // An item's number stands for its id.
  struct HashId {
    using is_transparent = void;
    size_t operator()(uint64_t id) const { return absl::Hash<uint64_t>()(id); }
    size_t operator()(ItemNumber n) const { return (*this)((*items)[n].id); }
    const ItemLists* items;
  };
  struct SameId {
    using is_transparent = void;
    bool operator()(ItemNumber a, uint64_t id) const { return (*items)[a].id == id; }
    bool operator()(ItemNumber a, ItemNumber b) const { return a == b; }
    const ItemLists* items;
  };

  std::vector<std::unique_ptr<Item[]>> blocks_;
  ItemNumber made_ = 0;  // numbers below it were given once
  std::vector<ItemNumber> free_;
  std::vector<List> lists_;
  absl::flat_hash_set<ItemNumber, HashId, SameId> by_id_{0, HashId{this}, SameId{this}};
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_ITEM_LISTS_H_
