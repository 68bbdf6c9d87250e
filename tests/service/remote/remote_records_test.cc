// RemoteRecords: which beliefs stay.
#include "service/remote/remote_records.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/service/remote/memory_remote_store.h"

namespace kvstow {
namespace {

RemoteTag TagOfNumber(uint64_t i) {
  RemoteTag tag;
  std::memcpy(tag.bytes.data(), &i, sizeof(i));
  return tag;
}

class RemoteRecordsTest : public ::testing::Test {
 protected:
  void Find(uint64_t i) { records_.Learn(TagOfNumber(i), record_); }
  void Miss(uint64_t i) { records_.Learn(TagOfNumber(i), nullptr); }
  bool Known(uint64_t i) { return records_.Known(TagOfNumber(i)).has_value(); }

  const RemoteRecord record_ = std::make_shared<const PageRecord>();
  ManualClock clock_;
  MemoryRemoteStore store_;
  RemoteCounters counters_;
  RemoteRecords records_{"p", store_, counters_, clock_};
};

TEST_F(RemoteRecordsTest, TheOldestBeliefsGoFirst) {
  for (uint64_t i = 0; i < RemoteRecords::kMost; ++i) {
    Find(i);
    clock_.Advance(Duration(1));
  }
  for (uint64_t i = 0; i < 10; ++i) Find(RemoteRecords::kMost + i);
  for (uint64_t i = 0; i < RemoteRecords::kMost + 10; ++i) ASSERT_EQ(Known(i), i >= 10) << i;
  Miss(RemoteRecords::kMost + 20);
  EXPECT_TRUE(Known(10)) << "misses take no place of what was found";
}

TEST_F(RemoteRecordsTest, ABeliefThatWasLearntAgainIsYoung) {
  Miss(0);
  clock_.Advance(Duration(1));
  Find(0);
  clock_.Advance(RemoteRecords::kMissedFor);
  Miss(1);  // it forgets what ended
  EXPECT_TRUE(Known(0));
  clock_.Advance(RemoteRecords::kFoundFor);
  EXPECT_FALSE(Known(0));
}

}  // namespace
}  // namespace kvstow
