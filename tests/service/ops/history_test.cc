#include "service/ops/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvstow {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

Work Keys(uint64_t keys) { return {.lookup_keys = keys}; }

TEST(History, HasNoIntervalBeforeTimePasses) {
  ManualClock clock;
  History history;
  EXPECT_TRUE(history.Intervals().empty());
  history.Observe(clock.Now(), Keys(7));
  EXPECT_TRUE(history.Intervals().empty());
}

TEST(History, TheIntervalUnderWayHasWhatCameSinceTheFirstLook) {
  ManualClock clock;
  History history;
  history.Observe(clock.Now(), Keys(7));
  clock.Advance(seconds(10));
  history.Observe(clock.Now(), {.lookup_keys = 9, .put_raw_bytes = 100});
  const auto intervals = history.Intervals();
  ASSERT_EQ(intervals.size(), 1u);
  EXPECT_EQ(intervals[0].end - intervals[0].begin, seconds(10));
  EXPECT_EQ(intervals[0].work, (Work{.lookup_keys = 2, .put_raw_bytes = 100}));
}

TEST(History, EachMinuteHasItsOwnWork) {
  ManualClock clock;
  History history;
  for (uint64_t s = 0; s <= 180; ++s) {
    history.Observe(clock.Now(), Keys(s * s));
    clock.Advance(seconds(1));
  }
  const auto intervals = history.Intervals();
  ASSERT_EQ(intervals.size(), 3u);
  uint64_t from = 0;
  for (const uint64_t to : {60, 120, 180}) {
    const auto& interval = intervals[to / 60 - 1];
    EXPECT_EQ(interval.end - interval.begin, minutes(1));
    EXPECT_EQ(interval.work, Keys(to * to - from * from));
    from = to;
  }
}

TEST(History, ALongSilenceIsOneInterval) {
  ManualClock clock;
  History history;
  history.Observe(clock.Now(), Keys(0));
  clock.Advance(minutes(10));
  history.Observe(clock.Now(), Keys(5));
  const auto intervals = history.Intervals();
  ASSERT_EQ(intervals.size(), 1u);
  EXPECT_EQ(intervals[0].end - intervals[0].begin, minutes(10));
  EXPECT_EQ(intervals[0].work, Keys(5));
}

TEST(History, SixHoursStayAndWhatIsOlderGoes) {
  ManualClock clock;
  History history;
  for (uint64_t minute = 0; minute <= 500; ++minute) {
    history.Observe(clock.Now(), Keys(minute));
    clock.Advance(minutes(1));
  }
  const auto intervals = history.Intervals();
  ASSERT_EQ(intervals.size(), History::kSteps);
  EXPECT_EQ(intervals.back().end - intervals.front().begin, std::chrono::hours(6));
  EXPECT_EQ(intervals.back().end, clock.Now() - minutes(1));
}

}  // namespace
}  // namespace kvstow
