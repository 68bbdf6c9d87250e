// LRU and SLRU.
#include "storage/policies/list_policies.h"
#include "storage/policies/list_policy.h"

namespace kvstow {
namespace {

// One list, or two when `protected_share` is not 0: then items are put into the first, go to the
// second when they are used, and back when that is over its share of the capacity.
class SegmentedLru final : public ListPolicy<> {
 public:
  SegmentedLru(uint64_t capacity_bytes, double protected_share)
      : ListPolicy(2), protected_share_(protected_share) {
    SetCapacity(capacity_bytes);
  }

  void SetCapacity(uint64_t bytes) override {
    protected_bytes_ = static_cast<uint64_t>(protected_share_ * static_cast<double>(bytes));
  }

  void Insert(uint64_t id, const PolicyItem& item) override {
    lists_.Add(id, item.bytes, kProbation);
  }
  void Touch(uint64_t id) override {
    const ItemNumber n = lists_.Find(id);
    if (n == kNoItem) return;
    lists_.MoveToBack(n, protected_bytes_ == 0 ? kProbation : kProtected);
    Overflow(kProtected, protected_bytes_, kProbation);
  }
  std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t)> may_go) override {
    for (const size_t list : {kProbation, kProtected}) {
      const ItemNumber n = lists_.FirstThat(may_go, list);
      if (n != kNoItem) return lists_[n].id;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kProbation = 0, kProtected = 1;

  const double protected_share_;
  uint64_t protected_bytes_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLru(uint64_t capacity_bytes) {
  return std::make_unique<SegmentedLru>(capacity_bytes, 0);
}

std::unique_ptr<EvictionPolicy> MakeSlru(uint64_t capacity_bytes) {
  return std::make_unique<SegmentedLru>(capacity_bytes, 0.2);
}

}  // namespace kvstow
