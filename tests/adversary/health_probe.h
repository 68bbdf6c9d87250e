// Asks a server whether it is well, over and over, while a test does its worst.
#ifndef KVSTOW_TESTS_ADVERSARY_HEALTH_PROBE_H_
#define KVSTOW_TESTS_ADVERSARY_HEALTH_PROBE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "tests/service/server_fixture.h"

namespace kvstow::testing {

// Asks from its construction to its destruction. A test fails where an answer was not "ok", or
// where kTries connections in a row ended without one: a burst of others can push out a connection
// that has not asked yet (http.h), and probes ask again. The destructor prints how long the slowest
// answer took: no test depends on that.
class HealthProbe {
 public:
  explicit HealthProbe(std::string http_address)
      : address_(std::move(http_address)), asking_([this] { Ask(); }) {}
  ~HealthProbe() {
    stop_ = true;
    asking_.join();
    const double ms = std::chrono::duration<double, std::milli>(slowest_).count();
    std::printf("/healthz: %d answers, the slowest after %.1f ms\n", answers_, ms);
  }
  HealthProbe(const HealthProbe&) = delete;
  HealthProbe& operator=(const HealthProbe&) = delete;

 private:
  using Stopwatch = std::chrono::steady_clock;
  static constexpr int kTries = 3;  // as many as Kubernetes makes before it acts

  void Ask() {
    do {
      const auto start = Stopwatch::now();
      std::string answer;
      for (int i = 0; i < kTries && answer.empty(); ++i) answer = HttpGet(address_, "/healthz");
      EXPECT_EQ(answer, "ok\n");
      slowest_ = std::max(slowest_, Stopwatch::now() - start);
      ++answers_;
    } while (!stop_);
  }

  const std::string address_;
  Stopwatch::duration slowest_{};
  int answers_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread asking_;  // last: it uses the others
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_ADVERSARY_HEALTH_PROBE_H_
