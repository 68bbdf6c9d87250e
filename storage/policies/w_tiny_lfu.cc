// W-TinyLFU: Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy",
// ACM TOS 2017, with the window of 1 % and the segmented main part (80 % protected) of its
// section 4.
#include <algorithm>
#include <array>
#include <vector>

#include "storage/policies/list_policies.h"
#include "storage/policies/list_policy.h"

namespace kvstow {
namespace {

// How often ids were used of late: a count-min sketch of 4-bit counts (a byte each here) with
// conservative update, all of which are halved after ten uses for each item that it is made for.
// Most blocks of a trace are used once, so many more are seen between two halvings than are kept:
// with a column an item every count is noise, with this many it is nearly exact.
class UseSketch {
 public:
  void Add(uint64_t id) {
    const auto at = Places(id);
    uint8_t least = kMax;
    for (const size_t i : at) least = std::min(least, counts_[i]);
    if (least < kMax) {
      for (const size_t i : at) counts_[i] = std::max<uint8_t>(counts_[i], least + 1);
    }
    if (++uses_ < 10 * columns_ / kColumnsAnItem) return;
    uses_ /= 2;
    for (uint8_t& count : counts_) count /= 2;
  }
  uint8_t Count(uint64_t id) const {
    uint8_t least = kMax;
    for (const size_t i : Places(id)) least = std::min(least, counts_[i]);
    return least;
  }
  // Keeps enough columns for so many items. Each column becomes two with the same counts.
  void GrowTo(size_t items) {
    while (columns_ < kColumnsAnItem * items) {
      std::vector<uint8_t> wider(counts_.size() * 2);
      for (size_t i = 0; i < wider.size(); ++i) {
        wider[i] = counts_[i / (2 * columns_) * columns_ + i % columns_];
      }
      counts_ = std::move(wider);
      columns_ *= 2;
    }
  }

 private:
  static constexpr size_t kRows = 4, kColumnsAnItem = 16;
  static constexpr uint8_t kMax = 15;

  std::array<size_t, kRows> Places(uint64_t id) const {
    std::array<size_t, kRows> at;
    uint64_t mixed = id;
    for (size_t row = 0; row < kRows; ++row) {
      mixed = (mixed ^ (mixed >> 31)) * 0x9E3779B97F4A7C15u + row + 1;
      at[row] = row * columns_ + ((mixed >> 32) & (columns_ - 1));
    }
    return at;
  }

  size_t columns_ = 1024;  // a power of 2
  std::vector<uint8_t> counts_ = std::vector<uint8_t>(kRows * 1024);
  size_t uses_ = 0;
};

class WTinyLfu final : public ListPolicy<> {
 public:
  explicit WTinyLfu(uint64_t capacity_bytes) : ListPolicy(3) { SetCapacity(capacity_bytes); }

  void SetCapacity(uint64_t bytes) override {
    window_bytes_ = bytes / 100;
    main_bytes_ = bytes - window_bytes_;
    protected_bytes_ = main_bytes_ / 5 * 4;
  }

  void Insert(uint64_t id, const PolicyItem& item) override {
    lists_.Add(id, item.bytes, kWindow);
    sketch_.GrowTo(lists_.size());
    sketch_.Add(id);
  }
  void Touch(uint64_t id) override {
    const ItemNumber n = lists_.Find(id);
    if (n == kNoItem) return;
    sketch_.Add(id);
    lists_.MoveToBack(n, lists_[n].list == kWindow ? kWindow : kProtected);
    Overflow(kProtected, protected_bytes_, kProbation);
  }
  std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t)> may_go) override {
    // Items that overflow the window enter the main part freely while that has room.
    while (lists_.bytes(kWindow) > window_bytes_) {
      const ItemNumber n = lists_.front(kWindow);
      if (n == kNoItem) break;  // the rest is held
      if (lists_.bytes(kProbation) + lists_.bytes(kProtected) + lists_[n].bytes > main_bytes_) {
        break;
      }
      lists_.MoveToBack(n, kProbation);
    }
    ItemNumber old = lists_.FirstThat(may_go, kProbation);
    if (old == kNoItem) old = lists_.FirstThat(may_go, kProtected);
    const ItemNumber candidate = lists_.FirstThat(may_go, kWindow);
    if (candidate != kNoItem) {
      if (old == kNoItem || sketch_.Count(lists_[candidate].id) <= sketch_.Count(lists_[old].id)) {
        return lists_[candidate].id;
      }
      if (lists_.bytes(kWindow) > window_bytes_) lists_.MoveToBack(candidate, kProbation);
    }
    return old == kNoItem ? std::nullopt : std::optional(lists_[old].id);
  }

 private:
  static constexpr size_t kWindow = 0, kProbation = 1, kProtected = 2;

  uint64_t window_bytes_ = 0, main_bytes_ = 0, protected_bytes_ = 0;
  UseSketch sketch_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeWTinyLfu(uint64_t capacity_bytes) {
  return std::make_unique<WTinyLfu>(capacity_bytes);
}

}  // namespace kvstow
