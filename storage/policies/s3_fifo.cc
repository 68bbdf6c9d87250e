// S3-FIFO: Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23, algorithm 1.
#include <algorithm>

#include "storage/policies/list_policies.h"
#include "storage/policies/list_policy.h"

namespace kvstow {
namespace {

struct Uses {
  uint8_t uses = 0;  // since it was put, or moved; at most kMaxUses
};

class S3Fifo final : public ListPolicy<Uses> {
 public:
  explicit S3Fifo(uint64_t capacity_bytes) : ListPolicy(2, 1) { SetCapacity(capacity_bytes); }

  void SetCapacity(uint64_t bytes) override {
    small_bytes_ = bytes / 10;
    ghost_bytes_ = bytes - small_bytes_;
  }

  void Insert(uint64_t id, const PolicyItem& item) override {
    const ItemNumber ghost = lists_.Find(id);
    if (ghost == kNoItem) {
      lists_.Add(id, item.bytes, kSmall);
      return;
    }
    lists_.Resize(ghost, item.bytes);
    lists_[ghost].uses = 0;
    lists_.MoveToBack(ghost, kMain);
  }
  void Touch(uint64_t id) override {
    const ItemNumber n = Resident(id);
    if (n != kNoItem) lists_[n].uses = std::min<uint8_t>(lists_[n].uses + 1, kMaxUses);
  }
  void Remove(uint64_t id, bool evicted) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    if (!evicted || lists_[n].list == kMain) return lists_.Forget(n);
    lists_.MoveToBack(n, kGhost);
    while (lists_.bytes(kGhost) > ghost_bytes_) lists_.Forget(lists_.front(kGhost));
  }
  std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t)> may_go) override {
    if (lists_.bytes(kSmall) >= small_bytes_) {
      if (const ItemNumber n = FromSmall(may_go); n != kNoItem) return lists_[n].id;
    }
    if (const ItemNumber n = FromMain(may_go); n != kNoItem) return lists_[n].id;
    const ItemNumber n = lists_.FirstThat(may_go, kSmall);
    return n == kNoItem ? std::nullopt : std::optional(lists_[n].id);
  }

 private:
  static constexpr size_t kSmall = 0, kMain = 1, kGhost = 2;
  static constexpr uint8_t kMaxUses = 3;

  // The oldest that was not used twice; those before it that were move to the main queue.
  ItemNumber FromSmall(absl::FunctionRef<bool(uint64_t)> may_go) {
    for (ItemNumber n = lists_.front(kSmall), after; n != kNoItem; n = after) {
      after = lists_.after(n);
      if (lists_[n].uses > 1) {
        lists_[n].uses = 0;
        lists_.MoveToBack(n, kMain);
      } else if (may_go(lists_[n].id)) {
        return n;
      }
    }
    return kNoItem;
  }
  // The oldest that was not used; those before it that were go round once more.
  ItemNumber FromMain(absl::FunctionRef<bool(uint64_t)> may_go) {
    ItemNumber n = lists_.front(kMain);
    // Each turn takes a use from an item, or goes on to the next.
    while (n != kNoItem) {
      const ItemNumber after = lists_.after(n);
      if (!may_go(lists_[n].id)) {
        n = after;
        continue;
      }
      if (lists_[n].uses == 0) return n;
      --lists_[n].uses;
      lists_.MoveToBack(n, kMain);
      n = after == kNoItem ? n : after;
    }
    return kNoItem;
  }

  uint64_t small_bytes_ = 0, ghost_bytes_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeS3Fifo(uint64_t capacity_bytes) {
  return std::make_unique<S3Fifo>(capacity_bytes);
}

}  // namespace kvstow
