#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvstow {
namespace {

struct Counter {
  Mutex mu;
  CondVar changed;
  int value KVSTOW_GUARDED_BY(mu) = 0;
};

TEST(MutexTest, NoIncrementIsLost) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < 10'000; ++i) {
        MutexLock lock(counter.mu);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(counter.mu);
  EXPECT_EQ(counter.value, 40'000);
}

TEST(CondVarTest, WakesWhoWaits) {
  Counter counter;
  std::thread other([&counter] {
    MutexLock lock(counter.mu);
    counter.value = 1;
    counter.changed.NotifyAll();
    while (counter.value != 2) counter.changed.Wait(counter.mu);
    counter.value = 3;
    counter.changed.NotifyOne();
  });
  {
    MutexLock lock(counter.mu);
    while (counter.value != 1) counter.changed.Wait(counter.mu);
    counter.value = 2;
    counter.changed.NotifyAll();
    while (counter.value != 3) counter.changed.Wait(counter.mu);
  }
  other.join();
}

TEST(CondVarTest, WaitForEndsWhenNobodyWakesIt) {
  Mutex mu;
  CondVar never;
  MutexLock lock(mu);
  const auto start = std::chrono::steady_clock::now();
  const auto timeout = std::chrono::milliseconds(1);
  // A wake-up without a cause is allowed: wait again until the time has passed.
  while (never.WaitFor(mu, timeout)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, timeout);
}

}  // namespace
}  // namespace kvstow
