// Who is let in, who waits, who makes way and who is refused.
#include "service/pages/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace kvstow::testing {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPage = 1'000'000;

TEST(ByteBudgetTest, BytesAreGivenInTheOrderInWhichTheyWereAskedFor) {
  ByteBudget budget(10);
  auto first = budget.Try(8);
  ASSERT_TRUE(first.has_value());
  std::vector<int> order;
  std::vector<ByteBudget::Held> held;
  const auto wait = [&](int who, uint64_t bytes) {
    return budget.Wait(bytes, [&, who](ByteBudget::Held h) {
      order.push_back(who);
      held.push_back(std::move(h));
    });
  };
  const auto a = wait(1, 6), b = wait(2, 1), c = wait(3, 1);
  EXPECT_THAT(order, IsEmpty()) << "the second would fit, but is not first";
  EXPECT_FALSE(budget.Try(1).has_value()) << "nobody passes those who wait";
  EXPECT_EQ(budget.waiting(), 3u);
  EXPECT_TRUE(budget.Leave(b));
  EXPECT_FALSE(budget.Leave(b));
  first->Resize(4);
  EXPECT_THAT(order, ElementsAre(1));
  first.reset();
  EXPECT_THAT(order, ElementsAre(1, 3));
  EXPECT_FALSE(budget.Leave(c)) << "it was served";
  EXPECT_EQ(budget.used(), 7u);
  held.clear();
  EXPECT_EQ(budget.used(), 0u);
}

TEST(ByteBudgetTest, WhoLeavesTheLineLetsOthersPass) {
  ByteBudget budget(10);
  const auto held = budget.Try(5);
  bool served = false;
  const auto large = budget.Wait(9, [](ByteBudget::Held) {});
  const auto small = budget.Wait(5, [&](ByteBudget::Held) { served = true; });
  EXPECT_FALSE(served);
  EXPECT_TRUE(budget.Leave(large));
  EXPECT_TRUE(served);
}

TEST(ByteBudgetTest, WhatIsLargerThanAllIsTakenAlone) {
  ByteBudget budget(10);
  auto large = budget.Try(1'000);
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(budget.Try(1).has_value());
  EXPECT_FALSE(budget.Try(1'000).has_value());
  large.reset();
  EXPECT_TRUE(budget.Try(10).has_value());
}

TEST(ByteBudgetTest, AThreadWaitsUntilItsBytesComeOrItsPatienceEnds) {
  ByteBudget budget(10);
  auto all = budget.Try(10);
  EXPECT_FALSE(budget.WaitFor(1, Duration::zero()).has_value());
  EXPECT_EQ(budget.waiting(), 0u) << "it has left the line";
  std::thread waits([&] { EXPECT_TRUE(budget.WaitFor(10, seconds(60)).has_value()); });
  while (budget.waiting() == 0) std::this_thread::yield();
  all.reset();
  waits.join();
  EXPECT_EQ(budget.used(), 0u);
}

// Serves a budget of one page at a time, and counts whose they were.
class Line {
 public:
  explicit Line(uint64_t limit) : budget_(limit), all_(budget_.Try(limit)) {}
  ~Line() {
    for (const auto& place : places_) budget_.Leave(place);
  }
  void Ask(uint32_t tenant, double weight, uint64_t bytes) {
    const auto take = [this, tenant](ByteBudget::Held held) {
      served_.push_back(tenant);
      bytes_[tenant] += held.bytes();
      held_.push_back(std::move(held));
    };
    places_.push_back(budget_.Wait(bytes, take, {.tenant = tenant, .weight = weight}));
  }
  // Lets `pages` of them pass, one after the other.
  void Serve(size_t pages) {
    for (size_t i = 0; i < pages; ++i) {
      std::vector<ByteBudget::Held> gone = std::exchange(held_, {});
      all_.reset();
    }
  }
  const std::vector<uint32_t>& served() const { return served_; }
  uint64_t bytes(uint32_t tenant) const { return bytes_.at(tenant); }

 private:
  ByteBudget budget_;
  std::optional<ByteBudget::Held> all_;
  std::vector<ByteBudget::Held> held_;
  std::vector<std::shared_ptr<ByteBudget::Place>> places_;
  std::vector<uint32_t> served_;
  std::map<uint32_t, uint64_t> bytes_;
};

TEST(FairBudgetTest, WhoAsksMuchMakesItsOwnWait) {
  Line line(10);
  for (int i = 0; i < 20; ++i) line.Ask(1, 1, 10);
  line.Ask(2, 1, 10);
  line.Serve(3);
  EXPECT_THAT(line.served(), ElementsAre(1, 2, 1));
}

TEST(FairBudgetTest, BytesAreServedByWeight) {
  Line line(10);
  for (int i = 0; i < 400; ++i) {
    line.Ask(1, 1, 10);
    line.Ask(2, 3, 5);
  }
  line.Serve(200);
  EXPECT_NEAR(static_cast<double>(line.bytes(2)) / static_cast<double>(line.bytes(1)), 3, 0.2);
}

// One asks ten times as often as the other. Both want more than there is.
TEST(FairBudgetTest, ANoisyNeighbourGetsItsShareAndNoMore) {
  Line line(10);
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 10; ++i) line.Ask(1, 1, 10);
    line.Ask(2, 1, 10);
    line.Serve(2);
  }
  EXPECT_NEAR(static_cast<double>(line.bytes(2)), static_cast<double>(line.bytes(1)), 30);
}

// Who has one request at a time gets no more than who has many.
TEST(FairBudgetTest, ComingBackAgainAndAgainBringsNothing) {
  Line line(10);
  for (int i = 0; i < 400; ++i) line.Ask(2, 9, 10);
  for (int round = 0; round < 200; ++round) {
    if (round == 0 || line.served().back() == 1) line.Ask(1, 1, 10);
    line.Serve(1);
  }
  EXPECT_LE(line.bytes(1), 30 * 10u);
}

class FakeStream final : public AdmittedStream {
 public:
  void End(const absl::Status& why) override { ended = why; }
  absl::Status ended;
  Admission::Place place;
};

class AdmissionTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeStream> Open(StreamKind kind = StreamKind::kGet) {
    auto stream = std::make_shared<FakeStream>();
    auto place = admission_.Admit(kind, stream);
    EXPECT_EQ(place.ok(), !absl::IsResourceExhausted(place.status())) << place.status();
    if (!place.ok()) return nullptr;
    stream->place = *std::move(place);
    return stream;
  }
  uint64_t Window(const absl::StatusOr<Admission::Bytes>& window) {
    return window.ok() ? Admission::WindowOf(*window) : 0;
  }

  Metrics metrics_{"test"};
  ManualClock clock_;
  Admission admission_{
      {.get_bytes = 4 * kPage, .put_bytes = 64 * kPage, .streams = 3, .patience = Duration::zero()},
      metrics_,
      clock_};
};

// Each byte counts twice, and a half is of direct connections: 16 pages of windows.
TEST_F(AdmissionTest, AWindowIsAQuarterOfWhatIsLeftButTwoPages) {
  std::vector<Admission::Bytes> windows;
  for (const uint64_t expected : {4 * kPage, 3 * kPage, 9 * kPage / 4, 2 * kPage, 2 * kPage}) {
    auto window = admission_.TakeWindow(100 * kPage, kPage);
    ASSERT_EQ(Window(window), expected);
    windows.push_back(*std::move(window));
  }
  EXPECT_EQ(admission_.put_bytes(), 2 * (13 * kPage + kPage / 4));
  windows.push_back(*admission_.TakeWindow(100 * kPage, kPage));
  EXPECT_EQ(Admission::WindowOf(windows.back()), 2 * kPage);
  EXPECT_FALSE(admission_.TakeWindow(100 * kPage, kPage).ok());
  windows.clear();
  EXPECT_EQ(admission_.put_bytes(), 0u);
  EXPECT_EQ(Window(admission_.TakeWindow(kPage / 2, kPage / 10)), kPage / 2);
}

TEST_F(AdmissionTest, LargePagesGetRoomForOneAndOneAloneIsNeverRefused) {
  const auto first = admission_.TakeWindow(100 * kPage, 10 * kPage);
  EXPECT_EQ(Window(first), 10 * kPage) << "two pages are more than there is";
  const auto huge = admission_.TakeWindow(100 * kPage, 100 * kPage);
  EXPECT_TRUE(absl::IsResourceExhausted(huge.status())) << huge.status();
  Admission empty({.put_bytes = 1}, metrics_);
  EXPECT_EQ(Window(empty.TakeWindow(100 * kPage, kPage)), kPage);
}

TEST_F(AdmissionTest, StreamsAndDirectConnectionsDoNotShutEachOtherOut) {
  std::vector<Admission::Bytes> windows, pages;
  for (auto window = admission_.TakeWindow(100 * kPage, kPage); window.ok();
       window = admission_.TakeWindow(100 * kPage, kPage)) {
    windows.push_back(*std::move(window));
  }
  for (auto page = admission_.TakePut(kPage); page.ok(); page = admission_.TakePut(kPage)) {
    pages.push_back(*std::move(page));
  }
  EXPECT_EQ(pages.size(), 16u);
  EXPECT_LE(admission_.put_bytes(), 64 * kPage);
  windows.clear();
  EXPECT_FALSE(admission_.TakePut(kPage).ok());
  EXPECT_TRUE(admission_.TakeWindow(100 * kPage, kPage).ok());
}

TEST_F(AdmissionTest, DirectGetsAreInTheBudgetOfStreams) {
  auto page = admission_.TakeGet(3 * kPage);
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(admission_.TakeGet(2 * kPage).status()));
  bool served = false;
  const auto place = admission_.gets().Wait(2 * kPage, [&](Admission::Bytes) { served = true; });
  EXPECT_EQ(admission_.waiting_gets(), 1u);
  page = absl::CancelledError();
  EXPECT_TRUE(served);
}

TEST_F(AdmissionTest, ANewcomerGetsThePlaceOfTheStreamThatIsIdleLongest) {
  const auto put = Open(StreamKind::kPut);
  clock_.Advance(seconds(5));
  const auto first = Open(), second = Open(), third = Open();
  EXPECT_EQ(Open(), nullptr) << "nobody is idle beyond the grace";
  clock_.Advance(seconds(1));
  first->place.Moved(/*busy=*/false, /*holding=*/false);
  second->place.Moved(/*busy=*/true, /*holding=*/true);
  clock_.Advance(seconds(20));
  third->place.Moved(/*busy=*/false, /*holding=*/true);
  clock_.Advance(seconds(2));
  const auto newcomer = Open();
  ASSERT_NE(newcomer, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(first->ended)) << first->ended;
  const auto another = Open();
  ASSERT_NE(another, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(third->ended)) << third->ended;
  EXPECT_EQ(Open(), nullptr) << "the server works for one, the others are new";
  EXPECT_TRUE(second->ended.ok());
  EXPECT_TRUE(put->ended.ok()) << "it is of the other kind";
  first->place = {};
  third->place = {};
  EXPECT_EQ(Open(), nullptr) << "their places went with their ends";
  second->place = {};
  EXPECT_NE(Open(), nullptr);
}

TEST_F(AdmissionTest, IdleStreamsEndAndBusyOnesDoNot) {
  const auto idle = Open(), busy = Open(), put = Open(StreamKind::kPut);
  busy->place.Moved(/*busy=*/true, /*holding=*/true);
  clock_.Advance(seconds(59));
  put->place.Moved(false, true);
  admission_.Reap();
  EXPECT_TRUE(idle->ended.ok());
  clock_.Advance(seconds(1));
  admission_.Reap();
  EXPECT_TRUE(absl::IsResourceExhausted(idle->ended)) << idle->ended;
  EXPECT_TRUE(busy->ended.ok());
  EXPECT_TRUE(put->ended.ok());
  busy->place.Moved(false, true);
  clock_.Advance(seconds(60));
  admission_.Reap();
  EXPECT_FALSE(busy->ended.ok());
  EXPECT_FALSE(put->ended.ok());
}

TEST_F(AdmissionTest, WhoHoldsBytesAndDoesNotMoveMakesWayForThoseWhoWait) {
  const auto holding = Open(), empty = Open(), moving = Open();
  holding->place.Moved(false, true);
  empty->place.Moved(false, false);
  auto page = admission_.gets().Try(4 * kPage);
  clock_.Advance(seconds(2));
  moving->place.Moved(false, true);
  admission_.Reap();
  EXPECT_TRUE(holding->ended.ok()) << "nobody waits";
  const auto place = admission_.gets().Wait(1, [](Admission::Bytes) {});
  admission_.Reap();
  EXPECT_FALSE(holding->ended.ok());
  EXPECT_TRUE(empty->ended.ok());
  EXPECT_TRUE(moving->ended.ok());
}

TEST_F(AdmissionTest, AnIdleStreamGivesUpItsWindow) {
  const auto idle = Open(StreamKind::kPut), newcomer = Open(StreamKind::kPut);
  idle->place.Moved(false, true);
  const auto window = admission_.TakeWindow(100 * kPage, 16 * kPage);
  ASSERT_TRUE(window.ok());
  EXPECT_FALSE(admission_.TakeWindow(100 * kPage, 16 * kPage).ok());
  EXPECT_TRUE(idle->ended.ok());
  clock_.Advance(seconds(1));
  EXPECT_FALSE(admission_.TakeWindow(100 * kPage, 16 * kPage).ok()) << "it will come back";
  EXPECT_FALSE(idle->ended.ok());
  EXPECT_TRUE(newcomer->ended.ok());
}

}  // namespace
}  // namespace kvstow::testing
