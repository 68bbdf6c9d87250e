#include "storage/policies/value_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/policies/item_lists.h"
#include "storage/policies/reuse_estimator.h"

namespace kvstow {
namespace {

constexpr size_t kAges = ReuseEstimator::kAges;
constexpr uint8_t kMaxUses = 255;
// Classes: an item that was used once by its origin, or as the end of a prompt; another by its
// uses.
constexpr size_t kOrigins = 5, kEndClass = 9, kClasses = 10;
// Worth in octaves; a worth of 1 is level kWorthOfOne. Level 0 is for a worth of 0.
constexpr size_t kWorths = 24, kWorthOfOne = 16;
constexpr size_t kGhostsForEachItem = 4;
constexpr size_t kMinUses = 100;  // between two estimates, which cost as much as some uses
// Items that were used again are held on to more than their rate says: it rests on fewer of them.
constexpr double kUsedAgainBonus = 2;

// The value of an item with `uses` uses before an unknown child was put behind it.
uint8_t OriginBehind(uint8_t uses) {
  return uses <= 1 ? 1 : uses == 2 ? 2 : uses == 3 ? 3 : uses <= 15 ? 4 : 0;
}

struct ItemFacts {
  uint64_t used = 0;  // the clock at its last use
  uint64_t parent = PolicyItem::kNoParent;
  uint32_t children = 0;  // that are resident
  uint32_t uses : 8 = 0, origin : 4 = 0, age : 6 = 0, worth : 6 = 0;
  uint32_t resident : 1 = false, had_child : 1 = false;
};

size_t ClassOf(const ItemFacts& item) {
  if (item.uses > 1) return kOrigins + (item.uses > 2) + (item.uses > 4) + (item.uses > 10);
  // A prompt's last page is often not full, and then of no use to another; what has just been put
  // may still get a child.
  return item.age > 0 && !item.had_child ? kEndClass : item.origin;
}

class ValuePolicy final : public EvictionPolicy {
 public:
  explicit ValuePolicy(uint64_t capacity_bytes)
      : unit_(UnitOf(capacity_bytes)),
        period_(PeriodOf(capacity_bytes)),
        estimator_(kClasses, unit_) {
    SortLists();
  }

  // Ages are told in other units then, so what was learned of them is learned again.
  void SetCapacity(uint64_t bytes) override {
    unit_ = UnitOf(bytes);
    period_ = PeriodOf(bytes);
    estimator_ = ReuseEstimator(kClasses, unit_);
    std::vector<ItemNumber> all = items_.Numbers();
    std::sort(all.begin(), all.end(), [&](ItemNumber a, ItemNumber b) {
      return std::pair(items_[a].used, a) < std::pair(items_[b].used, b);
    });
    for (const ItemNumber n : all) {
      items_[n].age = estimator_.AgeBucket(clock_ - items_[n].used);
      estimator_.CountEntered(ClassOf(items_[n]), items_[n].age);
      Place(n);
    }
    SortLists();
  }

  void Insert(uint64_t id, const PolicyItem& item) override {
    ItemNumber n = items_.Find(id);
    if (n == kNoItem) {
      n = items_.Add(id, item.bytes, kLimbo);
      if (const auto waiting = waiting_.find(id); waiting != waiting_.end()) {
        items_[n].children = waiting->second;
        items_[n].had_child = true;
        waiting_.erase(waiting);
      }
      const ItemNumber parent = items_.Find(item.parent);
      if (parent != kNoItem) items_[n].origin = OriginOf(items_[parent]);
    } else {
      --ghosts_;
      CountUse(n);
      items_.MoveToBack(n, kLimbo);
      items_.Resize(n, item.bytes);
    }
    items_[n].resident = true;
    items_[n].parent = item.parent;
    items_[n].worth = WorthLevel(item.worth);
    ++residents_;
    StandOn(item.parent);
    Use(n);
  }
  void Touch(uint64_t id) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    CountUse(n);
    Use(n);
  }
  void Resize(uint64_t id, uint64_t bytes, double worth) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    items_.Resize(n, bytes);
    items_[n].worth = WorthLevel(worth);
    Place(n);
  }
  void SetParent(uint64_t id, uint64_t parent) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem || items_[n].parent != PolicyItem::kNoParent) return;
    items_[n].parent = parent;
    StandOn(parent);
  }
  void Remove(uint64_t id, bool evicted) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    const uint64_t parent = items_[n].parent;
    --residents_;
    items_[n].resident = false;
    Place(n);
    if (evicted) {
      RememberGhost(n);
    } else {
      Forget(n);
    }
    StepOff(parent);
    while (ghosts_ > kGhostsForEachItem * residents_) ForgetOldestGhost();
  }
  void Hold(uint64_t id) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    items_.Hold(n);
    Mark(items_[n].list);
  }
  void Release(uint64_t id) override {
    const ItemNumber n = Resident(id);
    if (n == kNoItem) return;
    items_.PutBack(n);
    Mark(items_[n].list);
  }
  std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t)> may_go) override {
    for (size_t word = 0; word < filled_.size(); ++word) {
      for (uint64_t bits = filled_[word]; bits != 0; bits &= bits - 1) {
        const size_t rank = word * 64 + static_cast<size_t>(std::countr_zero(bits));
        const ItemNumber n = items_.FirstThat(may_go, by_value_[rank]);
        if (n != kNoItem) return items_[n].id;
      }
    }
    // Only those are left that something stands on that may not go.
    for (size_t list = kInner; list < kGhosts; ++list) {
      const ItemNumber n = items_.FirstThat(may_go, list);
      if (n != kNoItem) return items_[n].id;
    }
    return std::nullopt;
  }

 private:
  using Items = ItemLists<ItemFacts>;
  using Item = Items::Item;
  // A ghost, in the order of leaving.
  struct Left {
    ItemNumber item;
    uint32_t used;
  };
  // Lists of leaves come first, then those of items that have children, of ghosts, and one for an
  // item on its way.
  static constexpr size_t kLeafLists = kClasses * kAges * kWorths;
  static constexpr size_t kInner = kLeafLists, kGhosts = kInner + kClasses * kAges;
  static constexpr size_t kLimbo = kGhosts + kClasses * kAges;

  static uint64_t UnitOf(uint64_t capacity_bytes) {
    return std::max<uint64_t>(1, capacity_bytes / 32);
  }
  static uint64_t PeriodOf(uint64_t capacity_bytes) {
    return std::max<uint64_t>(1, capacity_bytes / 4);
  }
  static uint8_t WorthLevel(double worth) {
    if (worth <= 0) return 0;
    const double level = std::round(std::log2(worth)) + kWorthOfOne;
    return static_cast<uint8_t>(std::clamp(level, 1.0, kWorths - 1.0));
  }
  // Returns that of a new item behind `parent`, which the same prompt touched or put already.
  static uint8_t OriginOf(const Item& parent) {
    return parent.uses <= 1 ? parent.origin : OriginBehind(parent.uses - 1);
  }
  ItemNumber Resident(uint64_t id) const {
    const ItemNumber n = items_.Find(id);
    return n != kNoItem && items_[n].resident ? n : kNoItem;
  }
  size_t ListOf(const Item& item) const {
    const size_t kind = ClassOf(item) * kAges + item.age;
    if (!item.resident) return kGhosts + kind;
    return item.children > 0 ? kInner + kind : kind * kWorths + item.worth;
  }
  // Puts an item where it belongs now: among those of its age, whose order is about that of use.
  void Place(ItemNumber n, bool at_front = false) {
    const size_t from = items_[n].list, to = ListOf(items_[n]);
    const bool held = items_[n].held;  // and stays so, whatever happens to its children
    items_.MoveInOrder(n, to, at_front, [](const Item& item) { return item.used; });
    if (held && items_[n].resident) items_.Hold(n);
    Mark(from);
    Mark(to);
  }
  // A resident has come that stands on `parent`, which need not be here (any longer, or yet).
  void StandOn(uint64_t parent) {
    if (parent == PolicyItem::kNoParent) return;
    const ItemNumber n = items_.Find(parent);
    if (n == kNoItem) {
      ++waiting_[parent];
    } else if (items_[n].children++ == 0 && items_[n].resident) {
      items_[n].had_child = true;
      Place(n);
    }
  }
  void StepOff(uint64_t parent) {
    if (parent == PolicyItem::kNoParent) return;
    const ItemNumber n = items_.Find(parent);
    if (n == kNoItem) {
      const auto waiting = waiting_.find(parent);
      if (--waiting->second == 0) waiting_.erase(waiting);
    } else if (--items_[n].children == 0 && items_[n].resident) {
      Place(n, true);
    }
  }
  void Forget(ItemNumber n) {
    if (items_[n].children > 0) waiting_[items_[n].id] = items_[n].children;
    items_.Forget(n);
  }
  // Keeps the bitmap of lists that have items to offer.
  void Mark(size_t list) {
    if (list >= kLeafLists) return;
    const size_t rank = rank_[list];
    const uint64_t bit = uint64_t{1} << rank % 64;
    const bool filled = items_.front(list) != kNoItem;
    filled_[rank / 64] = filled ? filled_[rank / 64] | bit : filled_[rank / 64] & ~bit;
  }

  // The item, resident or ghost, is used: what its class and age were has proved useful.
  void CountUse(ItemNumber n) {
    const size_t age = estimator_.AgeBucket(clock_ - items_[n].used);
    while (items_[n].age < age) GrowOlder(n);
    estimator_.CountUsed(ClassOf(items_[n]), items_[n].age);
  }
  void GrowOlder(ItemNumber n) {
    Item& item = items_[n];
    ++item.age;
    estimator_.CountEntered(ClassOf(item), item.age);
    Place(n);
  }
  void Use(ItemNumber n) {
    Item& item = items_[n];
    item.uses = std::min<uint8_t>(item.uses, kMaxUses - 1) + 1;
    item.age = 0;
    clock_ += item.bytes;
    item.used = clock_;
    estimator_.CountEntered(ClassOf(item), 0);
    Place(n);
    if (clock_ - aged_ >= unit_ / 4) AgeAll();
    if (++uses_ >= kMinUses && clock_ - estimated_ >= period_) {
      estimator_.Estimate();
      estimated_ = clock_;
      uses_ = 0;
      SortLists();
    }
  }
  // Moves those that outgrew their bucket on. A list's front is its oldest, or nearly so.
  void AgeAll() {
    aged_ = clock_;
    const std::vector<uint64_t> filled = filled_;
    for (size_t word = 0; word < filled.size(); ++word) {
      for (uint64_t bits = filled[word]; bits != 0; bits &= bits - 1) {
        AgeList(by_value_[word * 64 + static_cast<size_t>(std::countr_zero(bits))]);
      }
    }
    for (size_t list = kInner; list < kLimbo; ++list) AgeList(list);
  }
  void AgeList(size_t list) {
    for (ItemNumber n = items_.front(list); n != kNoItem; n = items_.front(list)) {
      const size_t older = items_[n].age + size_t{1};
      if (older == kAges || clock_ - items_[n].used < estimator_.StartOf(older)) return;
      GrowOlder(n);
    }
  }
  void SortLists() {
    std::vector<double> value(kLeafLists);
    for (size_t list = 0; list < kLeafLists; ++list) {
      const size_t kind = list / kWorths, worth = list % kWorths, c = kind / kAges;
      const double bonus = c >= kOrigins && c != kEndClass ? kUsedAgainBonus : 1;
      const double rate = bonus * estimator_.Rate(c, kind % kAges);
      value[list] = worth == 0 ? 0 : std::ldexp(rate, static_cast<int>(worth));
      by_value_[list] = list;
    }
    std::stable_sort(by_value_.begin(), by_value_.end(),
                     [&](size_t a, size_t b) { return value[a] < value[b]; });
    for (size_t rank = 0; rank < kLeafLists; ++rank) rank_[by_value_[rank]] = rank;
    std::fill(filled_.begin(), filled_.end(), 0);
    for (size_t list = 0; list < kLeafLists; ++list) Mark(list);
  }
  void RememberGhost(ItemNumber n) {
    ++ghosts_;
    left_.push_back({n, Stamp(items_[n])});
    if (left_.size() < 2 * ghosts_ + 64) return;
    std::erase_if(left_, [&](const Left& ghost) { return !IsGhost(ghost); });
  }
  // When it was used last, cut short: a ghost that is taken for another goes too soon, no more.
  static uint32_t Stamp(const Item& item) { return static_cast<uint32_t>(item.used); }
  // Else it came back since, and perhaps left again.
  bool IsGhost(const Left& ghost) const {
    const Item& item = items_[ghost.item];
    return item.list >= kGhosts && item.list < kLimbo && Stamp(item) == ghost.used;
  }
  void ForgetOldestGhost() {
    while (!IsGhost(left_.front())) left_.pop_front();
    Forget(left_.front().item);
    left_.pop_front();
    --ghosts_;
  }

  uint64_t unit_, period_;
  ReuseEstimator estimator_;
  Items items_{kLimbo + 1};
  uint64_t clock_ = 0, aged_ = 0, estimated_ = 0;  // in bytes used
  std::deque<Left> left_;
  absl::flat_hash_map<uint64_t, uint32_t> waiting_;  // children of items that are not known
  size_t uses_ = 0;                                  // since the last estimate
  size_t residents_ = 0, ghosts_ = 0;
  std::vector<size_t> by_value_ = std::vector<size_t>(kLeafLists), rank_ = by_value_;
  std::vector<uint64_t> filled_ = std::vector<uint64_t>((kLeafLists + 63) / 64);  // by rank
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeValuePolicy(uint64_t capacity_bytes) {
  return std::make_unique<ValuePolicy>(capacity_bytes);
}

}  // namespace kvstow
