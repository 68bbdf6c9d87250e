// GDSF: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
// Policy", HP Labs 1998. Priority = inflation + uses x cost / size; `worth` is cost / size here.
#include <tuple>

#include "absl/container/btree_set.h"
#include "storage/policies/item_lists.h"
#include "storage/policies/list_policies.h"

namespace kvstow {
namespace {

struct Priority {
  double worth = 1, uses = 0, priority = 0;
  uint64_t use = 0;  // number of its last use: of equals, the one used longest ago goes first
};

class Gdsf final : public EvictionPolicy {
 public:
  void Insert(uint64_t id, const PolicyItem& item) override {
    const ItemNumber n = items_.Add(id, item.bytes, 0);
    items_[n].worth = item.worth;
    Use(n);
  }
  void Touch(uint64_t id) override {
    const ItemNumber n = items_.Find(id);
    if (n == kNoItem) return;
    order_.erase(Rank(n));
    Use(n);
  }
  void Resize(uint64_t id, uint64_t bytes, double worth) override {
    const ItemNumber n = items_.Find(id);
    if (n == kNoItem) return;
    items_.Resize(n, bytes);
    order_.erase(Rank(n));
    items_[n].priority += items_[n].uses * (worth - items_[n].worth);
    items_[n].worth = worth;
    order_.insert(Rank(n));
  }
  void Remove(uint64_t id, bool evicted) override {
    const ItemNumber n = items_.Find(id);
    if (n == kNoItem) return;
    if (evicted) inflation_ = items_[n].priority;
    order_.erase(Rank(n));
    items_.Forget(n);
  }
  void Hold(uint64_t id) override {
    if (const ItemNumber n = items_.Find(id); n != kNoItem) order_.erase(Rank(n));
  }
  void Release(uint64_t id) override {
    if (const ItemNumber n = items_.Find(id); n != kNoItem) order_.insert(Rank(n));
  }
  std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t)> may_go) override {
    for (const auto& [priority, use, n] : order_) {
      if (may_go(items_[n].id)) return items_[n].id;
    }
    return std::nullopt;
  }

 private:
  std::tuple<double, uint64_t, ItemNumber> Rank(ItemNumber n) const {
    return {items_[n].priority, items_[n].use, n};
  }
  void Use(ItemNumber n) {
    items_[n].uses += 1;
    items_[n].priority = inflation_ + items_[n].uses * items_[n].worth;
    items_[n].use = ++use_;
    order_.insert(Rank(n));
  }

  double inflation_ = 0;
  uint64_t use_ = 0;
  ItemLists<Priority> items_{1};
  absl::btree_set<std::tuple<double, uint64_t, ItemNumber>> order_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeGdsf(uint64_t) { return std::make_unique<Gdsf>(); }

}  // namespace kvstow
