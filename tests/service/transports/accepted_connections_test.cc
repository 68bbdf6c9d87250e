// Connections that come when there are as many as there may be.
#include "service/transports/accepted_connections.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

struct Facts {
  std::optional<Time> idle_since;
  std::atomic<bool> started{false}, hung_up{false}, gone{false};
};

// What comes is said by the test.
class FakeSocket {
 public:
  struct Queue {
    Mutex mu;
    CondVar changed;
    std::vector<Facts*> coming KVSTOW_GUARDED_BY(mu);
    bool hung_up KVSTOW_GUARDED_BY(mu) = false;
  };
  FakeSocket(Queue* queue, Facts* facts) : queue_(queue), facts_(facts) {}
  absl::StatusOr<FakeSocket> Accept() const {
    MutexLock lock(queue_->mu);
    while (queue_->coming.empty() && !queue_->hung_up) queue_->changed.Wait(queue_->mu);
    if (queue_->hung_up) return absl::UnavailableError("stopped");
    const FakeSocket out(queue_, queue_->coming.front());
    queue_->coming.erase(queue_->coming.begin());
    return out;
  }
  void HangUp() const {
    MutexLock lock(queue_->mu);
    queue_->hung_up = true;
    queue_->changed.NotifyAll();
  }
  Facts& facts() const { return *facts_; }

 private:
  Queue* queue_;
  Facts* facts_;
};

class FakeConnection {
 public:
  explicit FakeConnection(Facts& facts) : facts_(facts) {}
  ~FakeConnection() { facts_.gone = true; }
  absl::Status Start() {
    facts_.started = true;
    return absl::OkStatus();
  }
  void HangUp() { facts_.hung_up = true; }
  bool ended() const { return facts_.hung_up; }
  std::optional<Time> idle_since() const { return facts_.idle_since; }

 private:
  Facts& facts_;
};

class AcceptedConnectionsTest : public ::testing::Test {
 protected:
  // Waits until it was taken or refused.
  void Come(Facts& facts) {
    const uint64_t refused = all_.refused();
    {
      MutexLock lock(queue_.mu);
      queue_.coming.push_back(&facts);
      queue_.changed.NotifyAll();
    }
    EXPECT_TRUE(Eventually([&] { return facts.started || all_.refused() > refused; }));
  }
  static Time Ago(int seconds) { return Clock::Real().Now() - std::chrono::seconds(seconds); }

  Facts facts_[5];  // outlive the connections
  FakeSocket::Queue queue_;
  AcceptedConnections<FakeSocket, FakeConnection> all_{
      FakeSocket(&queue_, nullptr),
      {.listener = "test", .most = 3, .idle = std::chrono::seconds(1000)},
      [](FakeSocket socket) { return std::make_unique<FakeConnection>(socket.facts()); }};
};

TEST_F(AcceptedConnectionsTest, TheOneThatIsIdleLongestGivesWay) {
  facts_[0].idle_since = Ago(2000);
  facts_[1].idle_since = Ago(3000);
  facts_[2].idle_since = std::nullopt;
  for (Facts& f : facts_) Come(f);
  EXPECT_TRUE(facts_[1].hung_up);
  EXPECT_TRUE(facts_[1].gone);
  EXPECT_TRUE(facts_[0].hung_up);
  EXPECT_FALSE(facts_[2].hung_up);
  EXPECT_TRUE(facts_[3].started);
  EXPECT_TRUE(facts_[4].started);
  EXPECT_EQ(all_.refused(), 0u);
}

TEST_F(AcceptedConnectionsTest, WhereNoneIsIdleLongEnoughTheNewcomerIsRefused) {
  facts_[0].idle_since = Ago(10);
  for (int i = 0; i < 4; ++i) Come(facts_[i]);
  EXPECT_FALSE(facts_[3].started);
  EXPECT_EQ(all_.refused(), 1u);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(facts_[i].hung_up) << i;
}

}  // namespace
}  // namespace kvstow::testing
