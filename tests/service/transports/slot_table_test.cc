// Slots: who has which part of the memory, under which name.
#include "service/transports/slot_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "base/shared_memory.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;

v1::Slot NameOf(const SlotTable::Allocated& a) {
  v1::Slot slot;
  slot.set_index(a.index);
  slot.set_generation(a.generation);
  return slot;
}
v1::SlotRange RangeIn(const v1::Slot& slot, uint64_t offset, uint64_t bytes) {
  v1::SlotRange range;
  *range.mutable_slot() = slot;
  range.set_offset(offset);
  range.set_bytes(bytes);
  return range;
}

class SlotTableTest : public ::testing::Test {
 protected:
  static constexpr size_t kPages = 64;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(kPages * kSharedPageBytes);
  SlotTable table_{memory_};
};

TEST_F(SlotTableTest, LendsPagesThatDoNotOverlapAndJoinsWhatComesBack) {
  std::mt19937 random(1);
  std::vector<SlotTable::Allocated> lent;
  for (int step = 0; step < 20'000; ++step) {
    if (lent.empty() || random() % 2 == 0) {
      const auto slot = table_.Allocate(1 + random() % (8 * kSharedPageBytes));
      if (slot.ok()) {
        lent.push_back(*slot);
      } else {
        ASSERT_TRUE(absl::IsResourceExhausted(slot.status())) << slot.status();
      }
    } else {
      const size_t i = random() % lent.size();
      ASSERT_TRUE(table_.Free(NameOf(lent[i])).ok());
      lent.erase(lent.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::map<uint64_t, uint64_t> ranges;
    uint64_t used = 0;
    for (const auto& a : lent) {
      ASSERT_EQ(a.offset % kSharedPageBytes, 0u);
      ASSERT_LE(a.offset + a.bytes, memory_.size());
      ASSERT_TRUE(ranges.emplace(a.offset, a.bytes).second);
      used += RoundUpToSharedPage(a.bytes);
    }
    uint64_t end = 0;
    for (const auto& [offset, bytes] : ranges) {
      ASSERT_GE(offset, end) << "two slots share bytes";
      end = offset + RoundUpToSharedPage(bytes);
    }
    ASSERT_EQ(table_.free_bytes(), memory_.size() - used);
    ASSERT_EQ(table_.slots(), lent.size());
  }
  for (const auto& a : lent) ASSERT_TRUE(table_.Free(NameOf(a)).ok());
  EXPECT_TRUE(table_.Allocate(memory_.size()).ok()) << "all of it is one piece again";
}

TEST_F(SlotTableTest, AFreedNameIsRefusedForEver) {
  const v1::Slot old = NameOf(*table_.Allocate(100));
  ASSERT_TRUE(table_.Free(old).ok());
  const v1::Slot fresh = NameOf(*table_.Allocate(100));
  EXPECT_EQ(fresh.index(), old.index());
  EXPECT_NE(fresh.generation(), old.generation());
  const auto used = table_.Use(RangeIn(old, 0, 10));
  EXPECT_TRUE(absl::IsFailedPrecondition(used.status()));
  EXPECT_THAT(used.status().message(), HasSubstr("was freed"));
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.Free(old)));
  EXPECT_TRUE(table_.Use(RangeIn(fresh, 0, 10)).ok());
}

TEST_F(SlotTableTest, NamesThatNeverWereAreRefused) {
  const v1::Slot slot = NameOf(*table_.Allocate(100));
  v1::Slot next = slot, later = slot, none = slot;
  next.set_index(slot.index() + 1);
  later.set_generation(slot.generation() + 1);
  none.set_generation(0);
  for (const v1::Slot& wrong : {next, later, none, v1::Slot()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(table_.Use(RangeIn(wrong, 0, 1)).status()))
        << wrong.ShortDebugString();
  }
}

TEST_F(SlotTableTest, RangesOutsideTheSlotAreRefused) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  const v1::Slot slot = NameOf(*table_.Allocate(5000));
  for (const auto& [offset, bytes] :
       std::initializer_list<std::pair<uint64_t, uint64_t>>{{0, 5001},
                                                            {5000, 1},
                                                            {5001, 0},
                                                            {most, 1},
                                                            {1, most},
                                                            {most, most},
                                                            {4096, most - 4095}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(table_.Use(RangeIn(slot, offset, bytes)).status()))
        << bytes << " at " << offset;
  }
  const auto whole = table_.Use(RangeIn(slot, 0, 5000));
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->bytes().size(), 5000u);
  EXPECT_TRUE(table_.Use(RangeIn(slot, 5000, 0)).ok());
}

TEST_F(SlotTableTest, MemoryComesBackWhenItsLastUserIsGone) {
  const v1::Slot slot = NameOf(*table_.Allocate(memory_.size()));
  auto first = std::make_optional(*table_.Use(RangeIn(slot, 0, 10)));
  auto second = std::make_optional(*table_.Use(RangeIn(slot, 5, 10)));
  ASSERT_TRUE(table_.Free(slot).ok());
  EXPECT_EQ(table_.slots(), 0u);
  first.reset();
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Allocate(1).status())) << "it is still in use";
  second.reset();
  EXPECT_TRUE(table_.Allocate(memory_.size()).ok());
}

TEST_F(SlotTableTest, SizesThatCannotBeAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Allocate(0).status()));
  for (const uint64_t bytes : {memory_.size() + 1, std::numeric_limits<uint64_t>::max(),
                               std::numeric_limits<uint64_t>::max() - kSharedPageBytes}) {
    EXPECT_TRUE(absl::IsResourceExhausted(table_.Allocate(bytes).status())) << bytes;
  }
}

TEST_F(SlotTableTest, ThereIsAMostOfThem) {
  std::vector<uint8_t> memory((kMaxSlots + 1) * kSharedPageBytes);
  SlotTable table(memory);
  for (size_t i = 0; i < kMaxSlots; ++i) ASSERT_TRUE(table.Allocate(1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.Allocate(1).status()));
}

}  // namespace
}  // namespace kvstow
