// The common part of policies that keep items in lists. The first lists hold residents, the others
// ghosts. Only residents are touched, resized, held and removed.
//
// A base of policies, not an interface of its own. Not thread-safe, as policies are not.
#ifndef KVSTOW_STORAGE_POLICIES_LIST_POLICY_H_
#define KVSTOW_STORAGE_POLICIES_LIST_POLICY_H_

#include <cstddef>
#include <cstdint>

#include "storage/policies/eviction_policy.h"
#include "storage/policies/item_lists.h"

namespace kvstow {

struct NoFacts {};

// `Facts` is the policy's data about each item.
template <typename Facts = NoFacts>
class ListPolicy : public EvictionPolicy {
 public:
  void Resize(uint64_t id, uint64_t bytes, double) override {
    if (const ItemNumber n = Resident(id); n != kNoItem) lists_.Resize(n, bytes);
  }
  void Remove(uint64_t id, bool) override {
    if (const ItemNumber n = Resident(id); n != kNoItem) lists_.Forget(n);
  }
  void Hold(uint64_t id) override {
    if (const ItemNumber n = Resident(id); n != kNoItem) lists_.Hold(n);
  }
  void Release(uint64_t id) override {
    if (const ItemNumber n = Resident(id); n != kNoItem) lists_.PutBack(n);
  }

 protected:
  explicit ListPolicy(size_t resident_lists, size_t ghost_lists = 0)
      : lists_(resident_lists + ghost_lists), resident_lists_(resident_lists) {}

  ItemNumber Resident(uint64_t id) const {
    const ItemNumber n = lists_.Find(id);
    return n != kNoItem && lists_[n].list < resident_lists_ ? n : kNoItem;
  }
  // Moves the oldest items of `from` to the back of `to` until `from` has no more than `bytes`, or
  // the rest of it is held.
  void Overflow(size_t from, uint64_t bytes, size_t to) {
    while (lists_.bytes(from) > bytes && lists_.front(from) != kNoItem) {
      lists_.MoveToBack(lists_.front(from), to);
    }
  }

  ItemLists<Facts> lists_;

 private:
  const size_t resident_lists_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_LIST_POLICY_H_
