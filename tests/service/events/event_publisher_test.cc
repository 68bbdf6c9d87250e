// The publisher over real sockets: what subscribers get, and that nobody holds it up.
#include "service/events/event_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/service/events/events.h"

namespace kvstow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::KeyOf;
using testing::Router;

constexpr char kTopic[] = "kv@node@m1";
constexpr int kPatience = 20'000;  // milliseconds, for what must come

using Socket = std::unique_ptr<void, int (*)(void*)>;

// A ZeroMQ socket that waits for messages, with a deadline.
class Peer {
 public:
  explicit Peer(int type) : socket_(zmq_socket(context_.get(), type), zmq_close) {
    const int none = 0;
    zmq_setsockopt(socket_.get(), ZMQ_LINGER, &none, sizeof(none));
    zmq_setsockopt(socket_.get(), ZMQ_RCVTIMEO, &kPatience, sizeof(kPatience));
  }
  void Connect(const std::string& address) {
    ASSERT_EQ(zmq_connect(socket_.get(), ("tcp://" + address).c_str()), 0);
  }
  void Watch() {
    ASSERT_EQ(zmq_socket_monitor(socket_.get(), "inproc://watch", ZMQ_EVENT_DISCONNECTED), 0);
    watch_.reset(zmq_socket(context_.get(), ZMQ_PAIR));
    zmq_setsockopt(watch_.get(), ZMQ_RCVTIMEO, &kPatience, sizeof(kPatience));
    ASSERT_EQ(zmq_connect(watch_.get(), "inproc://watch"), 0);
  }
  // Waits until the other side hangs up, after Watch().
  bool IsHungUpOn() {
    char event[16];
    return zmq_recv(watch_.get(), event, sizeof(event), 0) > 0;
  }
  std::string Bind() {
    EXPECT_EQ(zmq_bind(socket_.get(), "tcp://127.0.0.1:*"), 0);
    char endpoint[256];
    size_t size = sizeof(endpoint);
    EXPECT_EQ(zmq_getsockopt(socket_.get(), ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
    return std::string(endpoint).substr(6);
  }
  void Subscribe(const std::string& topic) {
    zmq_setsockopt(socket_.get(), ZMQ_SUBSCRIBE, topic.data(), topic.size());
  }
  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      ASSERT_GE(zmq_send(socket_.get(), frames[i].data(), frames[i].size(), more), 0);
    }
  }
  std::vector<std::string> Receive() {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_.get(), 0) < 0) return {};
      frames.emplace_back(static_cast<char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  Socket context_{zmq_ctx_new(), zmq_ctx_term};
  Socket socket_;
  Socket watch_{nullptr, zmq_close};
};

uint64_t NumberOf(const std::string& frame) {
  uint64_t number = 0;
  for (const char byte : frame) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

class EventPublisherTest : public ::testing::Test {
 protected:
  // The store has the pages of there_.
  void Start(EventPublisher::Options options) {
    options.log.name = "node";
    auto publisher = EventPublisher::Start(
        std::move(options), queue_,
        [](SpaceId space) { return EventLog::Label{.model = absl::StrCat("m", space)}; },
        [this] {
          queue_.Restart(there_.size());
          for (const uint64_t hash : there_) Came(hash);
        });
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    publisher_ = *std::move(publisher);
  }
  void Came(uint64_t hash) { queue_.PageCame(1, KeyOf(hash), 64); }
  void Went(uint64_t hash) { queue_.PageWent(1, KeyOf(hash)); }
  // Takes batches until the topic has these pages.
  void TakeUntil(Peer& peer, Router& router, const std::set<uint64_t>& pages) {
    while (router.Of(kTopic) != pages) {
      const std::vector<std::string> frames = peer.Receive();
      ASSERT_EQ(frames.size(), 3u) << "nothing came any more";
      if (NumberOf(frames[1]) < next_) continue;  // a replay had it
      router.Take(frames[0], frames[2]);
    }
  }
  // All that a replay from `first` on brings; numbers must be first, first + 1, ...
  void TakeReplay(Peer& dealer, uint64_t first, Router& router, uint64_t* batches = nullptr) {
    std::string number(8, '\0');
    for (int i = 0; i < 8; ++i) number[i] = static_cast<char>(first >> (56 - 8 * i));
    dealer.Send({"", number});
    for (uint64_t next = first;; ++next) {
      const std::vector<std::string> frames = dealer.Receive();
      ASSERT_EQ(frames.size(), 4u);
      ASSERT_EQ(frames[0], "");
      if (NumberOf(frames[2]) == UINT64_MAX) {
        EXPECT_EQ(frames[3], "");
        if (batches != nullptr) *batches = next - first;
        next_ = next;
        return;
      }
      ASSERT_EQ(NumberOf(frames[2]), next);
      router.Take(frames[1], frames[3]);
    }
  }
  bool Eventually(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatience);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Changes until the subscriber hears one: a subscription takes a while to arrive.
  void AwaitSubscription(Peer& peer) {
    std::atomic<bool> heard = false;
    std::thread changes([&] {
      while (!heard) {
        Came(1'000'000);
        Went(1'000'000);
        Eventually([&] { return heard || queue_.size() == 0; });
      }
    });
    EXPECT_FALSE(peer.Receive().empty());
    heard = true;
    changes.join();
  }

  EventQueue queue_;
  std::set<uint64_t> there_;
  uint64_t next_ = 0;  // the number of the batch after the last replay
  std::unique_ptr<EventPublisher> publisher_;
};

TEST_F(EventPublisherTest, ASubscriberHearsWhatChangesAndAReplaySaysWhatWasBefore) {
  there_ = {1, 2, 3};
  Start({.listen = "127.0.0.1:0", .replay_listen = "127.0.0.1:0"});
  Peer subscriber(ZMQ_SUB), dealer(ZMQ_DEALER);
  subscriber.Subscribe("kv@");
  subscriber.Connect(publisher_->address());
  dealer.Connect(publisher_->replay_address());
  AwaitSubscription(subscriber);
  Router router;
  TakeReplay(dealer, 0, router);
  Came(4);
  Went(2);
  ASSERT_TRUE(Eventually([&] { return publisher_->counters().log.removed > 0; }));
  router = {};
  TakeReplay(dealer, 0, router);
  EXPECT_THAT(router.Of(kTopic), ::testing::IsSupersetOf({1, 3, 4}));
  Came(5);
  TakeUntil(subscriber, router, {1, 3, 4, 5});
  EXPECT_EQ(publisher_->counters().replays, 2u);
}

TEST_F(EventPublisherTest, ARouterThatListensItselfHearsAllPagesOnceItIsThere) {
  there_ = {1, 2};
  Peer router(ZMQ_SUB);
  router.Subscribe("kv@");
  const std::string address = router.Bind();
  Start({.connect = address});
  Router heard;
  TakeUntil(router, heard, {1, 2});
  Came(3);
  TakeUntil(router, heard, {1, 2, 3});
}

TEST_F(EventPublisherTest, ARouterThatComesAgainHearsAllPagesAgain) {
  there_ = {1, 2};
  Start({.listen = "127.0.0.1:0", .connect = "127.0.0.1:9"});
  for (int i = 0; i < 2; ++i) {
    Peer again(ZMQ_SUB);
    again.Subscribe("kv@");
    again.Connect(publisher_->address());
    Router heard;
    TakeUntil(again, heard, {1, 2});
  }
}

// One that never reads: what it is sent fills its buffers and is dropped, for it alone.
TEST_F(EventPublisherTest, ASubscriberThatSleepsHoldsUpNobody) {
  Start({.listen = "127.0.0.1:0", .log = {.max_batches = 10, .hashes_of_batch = 1}});
  Peer sleeper(ZMQ_SUB), subscriber(ZMQ_SUB);
  for (Peer* peer : {&sleeper, &subscriber}) {
    peer->Subscribe("kv@");
    peer->Connect(publisher_->address());
    AwaitSubscription(*peer);
  }
  for (uint64_t hash = 1; hash <= 150'000; ++hash) {
    Came(hash);
    if (hash > 1) Went(hash - 1);
    if (hash % 1000 > 0) continue;
    ASSERT_TRUE(Eventually([&] { return queue_.size() < 1000; }));
  }
  EXPECT_EQ(queue_.lost(), 0u);
  EXPECT_TRUE(Eventually([&] { return publisher_->counters().log.removed >= 149'999; }));
}

TEST_F(EventPublisherTest, AReplayThatNobodyReadsHoldsUpNobody) {
  for (uint64_t hash = 1; hash <= 9'000; ++hash) there_.insert(hash);
  Start({.listen = "127.0.0.1:0", .replay_listen = "127.0.0.1:0", .log = {.hashes_of_batch = 1}});
  ASSERT_TRUE(Eventually([&] { return publisher_->counters().log.stored == 9'000; }));
  Peer sleeper(ZMQ_DEALER), dealer(ZMQ_DEALER);
  sleeper.Connect(publisher_->replay_address());
  sleeper.Send({"", std::string(8, '\0')});
  ASSERT_TRUE(Eventually([&] { return publisher_->counters().replays == 1; }));
  dealer.Connect(publisher_->replay_address());
  Router router;
  uint64_t batches = 0;
  TakeReplay(dealer, 0, router, &batches);
  EXPECT_EQ(router.Of(kTopic), there_);
  EXPECT_EQ(batches, 9'001u);
}

TEST_F(EventPublisherTest, NonsenseIsNotAnswered) {
  there_ = {1};
  Start({.listen = "127.0.0.1:0", .replay_listen = "127.0.0.1:0"});
  Peer dealer(ZMQ_DEALER);
  dealer.Connect(publisher_->replay_address());
  dealer.Send({"hello"});
  dealer.Send({"", "short"});
  dealer.Send({"", std::string(8, '\0'), "more"});
  dealer.Send(std::vector<std::string>(1000, ""));
  Router router;
  TakeReplay(dealer, 0, router);
  EXPECT_THAT(router.Of(kTopic), ElementsAre(1));
  EXPECT_EQ(publisher_->counters().replays, 1u);
}

TEST_F(EventPublisherTest, APeerThatSendsLargeFramesIsHungUpOn) {
  there_ = {1};
  Start({.listen = "127.0.0.1:0", .replay_listen = "127.0.0.1:0"});
  for (const auto& [type, address] : {std::pair(ZMQ_DEALER, publisher_->replay_address()),
                                      std::pair(ZMQ_XSUB, publisher_->address())}) {
    Peer peer(type);
    peer.Watch();
    peer.Connect(address);
    peer.Send({std::string(8 << 10, '\x01')});  // for XSUB: subscribe to this topic
    EXPECT_TRUE(peer.IsHungUpOn()) << address;
  }
  Peer dealer(ZMQ_DEALER);
  dealer.Connect(publisher_->replay_address());
  Router router;
  TakeReplay(dealer, 0, router);
  EXPECT_THAT(router.Of(kTopic), ElementsAre(1));
}

// The store outruns the publisher: the pages are told anew, and a subscriber ends up with the
// truth.
TEST_F(EventPublisherTest, WhatWasLostIsToldAnew) {
  EventQueue small(10);
  std::atomic<int> told = 0;
  auto publisher = EventPublisher::Start(
      {.listen = "127.0.0.1:0", .replay_listen = "127.0.0.1:0", .log = {.name = "node"}}, small,
      [](SpaceId) { return EventLog::Label{.model = "m1"}; },
      [&] {
        small.Restart(1);
        small.PageCame(1, KeyOf(77), 64);
        ++told;
      });
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  ASSERT_TRUE(Eventually([&] { return told == 1 && small.size() == 0; }));
  while (small.lost() == 0) small.PageCame(1, KeyOf(5), 64);
  ASSERT_TRUE(Eventually([&] { return told >= 2 && small.size() == 0; }));
  Peer dealer(ZMQ_DEALER);
  dealer.Connect((*publisher)->replay_address());
  ASSERT_TRUE(Eventually([&] { return (*publisher)->counters().log.cleared >= 2; }));
  Router router;
  TakeReplay(dealer, 0, router);
  EXPECT_THAT(router.Of(kTopic), ::testing::Contains(77));
}

TEST_F(EventPublisherTest, AnAddressThatCannotBeBoundIsNamed) {
  Start({.listen = "127.0.0.1:0"});
  const auto start = [&](EventPublisher::Options options) {
    return std::string(EventPublisher::Start(
                           std::move(options), queue_,
                           [](SpaceId) -> std::optional<EventLog::Label> { return std::nullopt; },
                           [] {})
                           .status()
                           .message());
  };
  EXPECT_THAT(start({.listen = publisher_->address()}), HasSubstr("kv-events-listen: 127.0.0.1:"));
  EXPECT_THAT(start({.listen = "no.such.host:1"}), HasSubstr("kv-events-listen: no.such.host:1"));
  EXPECT_THAT(start({.replay_listen = publisher_->address()}),
              HasSubstr("kv-events-replay-listen: "));
}

}  // namespace
}  // namespace kvstow
