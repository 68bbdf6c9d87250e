// ARC: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST'03. Names are
// the paper's: T1 and T2 hold items that were used once and more often, B1 and B2 their ghosts.
#include <algorithm>

#include "storage/policies/list_policies.h"
#include "storage/policies/list_policy.h"

namespace kvstow {
namespace {

class Arc final : public ListPolicy<> {
 public:
  explicit Arc(uint64_t capacity_bytes)
      : ListPolicy(2, 2), capacity_(static_cast<double>(capacity_bytes)) {}

  void SetCapacity(uint64_t bytes) override {
    capacity_ = static_cast<double>(bytes);
    target_ = std::min(target_, capacity_);
  }
  void Insert(uint64_t id, const PolicyItem& item) override {
    const ItemNumber ghost = lists_.Find(id);
    if (ghost == kNoItem) {
      lists_.Add(id, item.bytes, kT1);
      return;
    }
    const double b1 = Bytes(kB1), b2 = Bytes(kB2), bytes = static_cast<double>(item.bytes);
    if (lists_[ghost].list == kB1) {
      target_ = std::min(capacity_, target_ + bytes * std::max(1.0, b2 / std::max(b1, 1.0)));
    } else {
      target_ = std::max(0.0, target_ - bytes * std::max(1.0, b1 / std::max(b2, 1.0)));
    }
    lists_.Resize(ghost, item.bytes);
    lists_.MoveToBack(ghost, kT2);
  }
  void Touch(uint64_t id) override {
    if (const ItemNumber n = Resident(id); n != kNoItem) lists_.MoveToBack(n, kT2);
  }
  void Remove(uint64_t id, bool evicted) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    if (!evicted) return lists_.Forget(n);
    lists_.MoveToBack(n, lists_[n].list == kT1 ? kB1 : kB2);
    while (lists_.items(kB1) > 0 && Bytes(kT1) + Bytes(kB1) > capacity_) {
      lists_.Forget(lists_.front(kB1));
    }
    while (lists_.items(kB2) > 0 &&
           Bytes(kT1) + Bytes(kT2) + Bytes(kB1) + Bytes(kB2) > 2 * capacity_) {
      lists_.Forget(lists_.front(kB2));
    }
  }
  std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t)> may_go) override {
    const bool from_t1 = Bytes(kT1) > target_;
    for (const size_t list : {from_t1 ? kT1 : kT2, from_t1 ? kT2 : kT1}) {
      const ItemNumber n = lists_.FirstThat(may_go, list);
      if (n != kNoItem) return lists_[n].id;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kT1 = 0, kT2 = 1, kB1 = 2, kB2 = 3;

  double Bytes(size_t list) const { return static_cast<double>(lists_.bytes(list)); }

  double capacity_;
  double target_ = 0;  // bytes that T1 should have: the paper's p
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeArc(uint64_t capacity_bytes) {
  return std::make_unique<Arc>(capacity_bytes);
}

}  // namespace kvstow
