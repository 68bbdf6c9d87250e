#include "storage/trace/lru_stack.h"

#include <gtest/gtest.h>

#include <list>
#include <random>

namespace kvstow {
namespace {

// The definition: a list, the last touched in front.
class ListStack {
 public:
  void Touch(uint32_t item, uint32_t weight) {
    Remove(item);
    items_.emplace_front(item, weight);
  }
  void Remove(uint32_t item) {
    items_.remove_if([&](const auto& entry) { return entry.first == item; });
  }
  // 0 = not there.
  uint64_t Distance(uint32_t item) const {
    uint64_t sum = 0;
    for (const auto& [other, weight] : items_) {
      sum += weight;
      if (other == item) return sum;
    }
    return 0;
  }
  size_t size() const { return items_.size(); }

 private:
  std::list<std::pair<uint32_t, uint32_t>> items_;
};

TEST(LruStack, DistancesAreThoseOfAList) {
  std::mt19937 random(7);
  for (const uint32_t items : {1u, 3u, 40u, 700u}) {
    LruStack stack;
    ListStack list;
    uint64_t weight = 0;
    for (int step = 0; step < 4000; ++step) {
      const uint32_t item = random() % items;
      ASSERT_EQ(stack.Contains(item), list.Distance(item) > 0);
      if (stack.Contains(item)) {
        ASSERT_EQ(stack.Distance(item), list.Distance(item)) << step;
      }
      if (random() % 8 == 0) {
        stack.Remove(item);
        list.Remove(item);
      } else {
        weight = 1 + random() % 1000;
        stack.Touch(item, weight);
        list.Touch(item, weight);
        ASSERT_EQ(stack.Distance(item), weight) << "it is on top";
      }
      ASSERT_EQ(stack.items(), list.size());
    }
  }
}

TEST(LruStack, OrderAndWeightAreKept) {
  LruStack stack;
  EXPECT_EQ(stack.weight(), 0u);
  EXPECT_FALSE(stack.Contains(9));
  stack.Remove(9);
  stack.Touch(9, UINT32_MAX);
  stack.Touch(2, UINT32_MAX);
  EXPECT_TRUE(stack.TouchedBefore(9, 2));
  EXPECT_EQ(stack.Distance(9), uint64_t{UINT32_MAX} * 2) << "weights do not wrap at 32 bits";
  stack.Touch(9, 5);
  EXPECT_TRUE(stack.TouchedBefore(2, 9));
  EXPECT_EQ(stack.weight(), uint64_t{UINT32_MAX} + 5);
}

TEST(LruStack, MemoryFollowsTheItemsNotTheTouches) {
  LruStack stack;
  for (uint32_t i = 0; i < 1000; ++i) stack.Touch(i, 1);
  for (uint32_t i = 0; i < 200000; ++i) stack.Touch(i % 1000, 1);
  EXPECT_LT(stack.memory_bytes(), 40000u);
}

}  // namespace
}  // namespace kvstow
