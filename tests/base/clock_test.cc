#include "base/clock.h"

#include <gtest/gtest.h>

namespace kvstow {
namespace {

TEST(ClockTest, TheRealClockNeverGoesBack) {
  const Clock& clock = Clock::Real();
  Time last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const Time now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, AManualClockMovesOnlyByHand) {
  ManualClock clock;
  const Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(clock.Now() - start, std::chrono::milliseconds(1500));
}

}  // namespace
}  // namespace kvstow
