#include "storage/policies/value_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
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
    for (size_t rank = NextFilled(0); rank < kLeafLists; rank = NextFilled(rank + 1)) {
      const ItemNumber n = items_.FirstThat(may_go, by_value_[rank]);
      if (n != kNoItem) return items_[n].id;
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
  // Keeps the bitmaps: of leaf lists that have items to offer, and of other lists that may have
  // some.
  void Mark(size_t list) {
    if (list >= kLimbo) return;
    if (list >= kInner) {
      const uint64_t bit = uint64_t{1} << (list - kInner) % 64;
      if (items_.front(list) != kNoItem) others_[(list - kInner) / 64] |= bit;
      return;
    }
    const size_t rank = rank_[list], word = rank / 64;
    const uint64_t bit = uint64_t{1} << rank % 64;
    const bool filled = items_.front(list) != kNoItem;
    filled_[word] = filled ? filled_[word] | bit : filled_[word] & ~bit;
    const uint64_t word_bit = uint64_t{1} << word % 64;
    uint64_t& words = filled_words_[word / 64];
    words = filled_[word] != 0 ? words | word_bit : words & ~word_bit;
  }
  // Returns the first rank from `rank` on that has a list with items to offer; else one that is not
  // less than kLeafLists.
  size_t NextFilled(size_t rank) const {
    size_t word = rank / 64;
    if (word >= filled_.size()) return kLeafLists;
    const uint64_t bits = filled_[word] >> rank % 64;
    if (bits != 0) return rank + static_cast<size_t>(std::countr_zero(bits));
    for (++word; word < filled_.size(); word = (word / 64 + 1) * 64) {
      const uint64_t words = filled_words_[word / 64] >> word % 64;
      if (words == 0) continue;
      word += static_cast<size_t>(std::countr_zero(words));
      return word * 64 + static_cast<size_t>(std::countr_zero(filled_[word]));
    }
    return kLeafLists;
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
    // Those that have items now: more come to have some meanwhile.
    absl::InlinedVector<uint16_t, 64> lists;
    for (size_t rank = NextFilled(0); rank < kLeafLists; rank = NextFilled(rank + 1)) {
      lists.push_back(by_value_[rank]);
    }
    for (const size_t list : lists) AgeList(list);
    // An item may come into a list whose turn is still to come.
    for (size_t at = 0; at < 64 * others_.size(); ++at) {
      uint64_t& word = others_[at / 64];
      const uint64_t bits = word >> at % 64;
      if (bits == 0) {
        at |= 63;
        continue;
      }
      at += static_cast<size_t>(std::countr_zero(bits));
      AgeList(kInner + at);
      if (items_.front(kInner + at) == kNoItem) word &= ~(uint64_t{1} << at % 64);
    }
  }
  void AgeList(size_t list) {
    for (ItemNumber n = items_.front(list); n != kNoItem; n = items_.front(list)) {
      const size_t older = items_[n].age + size_t{1};
      if (older == kAges || clock_ - items_[n].used < estimator_.StartOf(older)) return;
      GrowOlder(n);
    }
  }
  // By value, which is a rate times a power of two, and then by number. So the rates are sorted by
  // their mantissas, and the lists are dealt out by their exponents: a store of many tenants has
  // many policies, each of which does this often.
  void SortLists() {
    struct Kind {
      double mantissa;
      int exponent;
      size_t kind;
    };
    std::vector<Kind> kinds;
    kinds.reserve(kClasses * kAges);
    size_t rank = 0;
    for (size_t kind = 0; kind < kClasses * kAges; ++kind) {
      const size_t c = kind / kAges;
      const double bonus = c >= kOrigins && c != kEndClass ? kUsedAgainBonus : 1;
      const double rate = bonus * estimator_.Rate(c, kind % kAges);
      Kind row{.mantissa = 0, .exponent = 0, .kind = kind};
      row.mantissa = std::frexp(rate, &row.exponent);
      if (rate > 0) kinds.push_back(row);
      for (size_t worth = 0; worth < (rate > 0 ? 1 : kWorths); ++worth) {
        SetRank(kind * kWorths + worth, rank++);
      }
    }
    if (!kinds.empty()) DealOut(kinds, rank);
    filled_.fill(0);
    filled_words_.fill(0);
    for (size_t list = 0; list < kLeafLists; ++list) Mark(list);
  }
  // Gives the lists of these kinds that are worth something the ranks from `first` on.
  template <typename Kinds>
  void DealOut(Kinds& kinds, size_t first) {
    std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
      return std::pair(a.mantissa, a.kind) < std::pair(b.mantissa, b.kind);
    });
    const auto [least, most] =
        std::minmax_element(kinds.begin(), kinds.end(),
                            [](const auto& a, const auto& b) { return a.exponent < b.exponent; });
    const int base = least->exponent;
    // First how many lists have each exponent, then the rank that comes next.
    std::vector<size_t> next(most->exponent - base + kWorths + 1);
    for (const auto& kind : kinds) {
      for (size_t worth = 1; worth < kWorths; ++worth) ++next[kind.exponent - base + worth];
    }
    for (size_t& rank : next) first += std::exchange(rank, first);
    for (const auto& kind : kinds) {
      for (size_t worth = 1; worth < kWorths; ++worth) {
        SetRank(kind.kind * kWorths + worth, next[kind.exponent - base + worth]++);
      }
    }
  }
  void SetRank(size_t list, size_t rank) {
    by_value_[rank] = static_cast<uint16_t>(list);
    rank_[list] = static_cast<uint16_t>(rank);
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
  std::vector<uint16_t> by_value_ = std::vector<uint16_t>(kLeafLists), rank_ = by_value_;
  // By rank, and which words of that are not 0: so a look at few lists touches few lines of memory.
  std::array<uint64_t, (kLeafLists + 63) / 64> filled_{};
  std::array<uint64_t, (kLeafLists / 64 + 64) / 64> filled_words_{};
  std::array<uint64_t, (kLimbo - kInner + 63) / 64> others_{};
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeValuePolicy(uint64_t capacity_bytes) {
  return std::make_unique<ValuePolicy>(capacity_bytes);
}

}  // namespace kvstow
