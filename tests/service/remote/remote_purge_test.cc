// RemotePurge: what servers tell each other by one small value, over a store that others write too.
// The clock stands still until a test moves it.
#include "service/remote/remote_purge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "tests/service/remote/blocking_remote.h"
#include "tests/service/remote/memory_remote_store.h"
#include "tests/service/server_fixture.h"

namespace kvstow {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Pages = RemotePurge::Pages;

std::shared_ptr<const Space> SpaceNamed(const std::string& name) {
  auto space = std::make_shared<Space>();
  space->id = name == "s" ? 1 : 2;
  space->name = name;
  return space;
}

// One server's view, which notes what the others did.
class OneServer {
 public:
  OneServer(RemoteStore& store, const Clock& clock)
      : keys_(
            "p", store, nullptr, [](const std::string&) {}, counters_),
        purge_("p", store, keys_,
               {.dropped =
                    [this](const auto&, Pages pages, const auto& stopping) {
                      Note(absl::StrCat("drop", On(pages)));
                      while (blocks_ && !stopping()) std::this_thread::yield();
                      return !fails_;
                    },
                .deleted = [this](const auto&, const std::string& key,
                                  Pages pages) { Note(absl::StrCat(key, On(pages))); },
                .current =
                    [this](const auto&, const SavedEra& era) {
                      MutexLock lock(mu_);
                      saved_.push_back(era);
                    }},
               counters_, clock) {}

  RemotePurge& purge() { return purge_; }
  uint64_t damaged() const { return counters_.damaged_values; }
  uint64_t untold() const { return counters_.unwritten_purges; }
  // From now on, dropping takes until the server ends, or leaves pages.
  void Block() { blocks_ = true; }
  void Fail() { fails_ = true; }
  std::vector<SavedEra> Saved() {
    MutexLock lock(mu_);
    return saved_;
  }
  absl::StatusOr<RemoteEra> Era(const std::shared_ptr<const Space>& space) {
    return EraOf(purge_, space, RemoteKeys::Use::kRead,
                 Clock::Real().Now() + std::chrono::seconds(5));
  }
  // Returns what it was told since the last time.
  std::vector<std::string> Told() {
    purge_.Flush();
    return Take();
  }
  std::vector<std::string> Take() {
    MutexLock lock(mu_);
    return std::exchange(told_, {});
  }

 private:
  static std::string On(Pages pages) { return pages == Pages::kFromDisk ? " on disk" : ""; }
  void Note(std::string what) {
    MutexLock lock(mu_);
    told_.push_back(std::move(what));
  }

  std::atomic<bool> blocks_ = false, fails_ = false;
  Mutex mu_;
  std::vector<std::string> told_ KVSTOW_GUARDED_BY(mu_);
  std::vector<SavedEra> saved_ KVSTOW_GUARDED_BY(mu_);
  RemoteCounters counters_;
  RemoteKeys keys_;
  RemotePurge purge_;
};

class RemotePurgeTest : public ::testing::Test {
 protected:
  static RemotePlace Place(const Space& space) { return PlaceAt(SpaceTagOf(space), nullptr); }
  static std::string Name(const Space& space) { return PurgeName("p", SpaceTagOf(space)); }
  // The record as it is there.
  absl::StatusOr<PurgeRecord> There() {
    const auto value = store_.Peek(Name(*space_));
    if (!value.has_value()) return absl::NotFoundError("no record");
    return ParsePurgeValue(Place(*space_), SharedBytes::Take(std::string(*value)));
  }
  void PutThere(const PurgeRecord& record) {
    ASSERT_TRUE(
        BlockingRemote(store_).Put({{Name(*space_), PurgeValue(Place(*space_), record)}})[0].ok());
  }
  void Open(OneServer& server) { ASSERT_TRUE(server.Era(space_).ok()); }

  const std::shared_ptr<const Space> space_ = SpaceNamed("s");
  ManualClock clock_;
  MemoryRemoteStore store_;
  OneServer a_{store_, clock_};
  OneServer b_{store_, clock_};
};

TEST_F(RemotePurgeTest, ADeletionIsMetOnceAndLeavesTheRecord) {
  Open(a_);
  Open(b_);
  a_.purge().Delete(*space_, "k");
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), ElementsAre("k"));
  const std::string key = "k";
  EXPECT_EQ(b_.purge().CountLive(*space_, {&key, 1}), 0u);
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(RemotePurge::kKept / 4);
    EXPECT_THAT(a_.Told(), IsEmpty());
    EXPECT_THAT(b_.Told(), IsEmpty());
  }
  EXPECT_THAT(There()->deleted, IsEmpty());
  EXPECT_EQ(b_.purge().CountLive(*space_, {&key, 1}), 1u);
  OneServer c(store_, clock_);
  Open(c);
  EXPECT_THAT(c.Told(), IsEmpty());
}

TEST_F(RemotePurgeTest, ALateWriterDoesNotMakeADeletionNew) {
  Open(a_);
  Open(b_);
  a_.purge().Delete(*space_, "k");
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), ElementsAre("k"));
  const PurgeRecord old = There().value();
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(RemotePurge::kKept / 2);
    PutThere(old);
    EXPECT_THAT(a_.Told(), IsEmpty());
    EXPECT_THAT(b_.Told(), IsEmpty());
  }
  EXPECT_THAT(There()->deleted, IsEmpty());
}

TEST_F(RemotePurgeTest, ADeletionThatWasWrittenOverIsToldAgain) {
  Open(a_);
  Open(b_);
  a_.purge().Delete(*space_, "k");
  EXPECT_THAT(a_.Told(), IsEmpty());
  PutThere({.generation = 0, .deleted = {{7, "another"}}});
  EXPECT_THAT(a_.Told(), ElementsAre("another"));
  EXPECT_THAT(b_.Told(), ::testing::UnorderedElementsAre("k", "another"));
}

TEST_F(RemotePurgeTest, ADeletionWaitsForTheStoreHoweverLong) {
  Open(a_);
  Open(b_);
  store_.FailAll(absl::UnavailableError("down"));
  a_.purge().Delete(*space_, "k");
  EXPECT_THAT(a_.Told(), IsEmpty());
  clock_.Advance(3 * RemotePurge::kKept);
  store_.FailAll(absl::OkStatus());
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), ElementsAre("k"));
}

TEST_F(RemotePurgeTest, WhatTheFirstReadingTellsConcernsPagesOfTheDiskAlone) {
  Open(a_);
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  a_.purge().Delete(*space_, "k");
  EXPECT_THAT(a_.Told(), IsEmpty());
  OneServer c(store_, clock_);
  c.purge().Watch(space_, {});
  EXPECT_THAT(c.Told(), ElementsAre("drop on disk", "k on disk"));
  EXPECT_EQ(c.Era(space_)->generation, 1u);
  a_.purge().Delete(*space_, "l");
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(c.Told(), ElementsAre("l"));
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(c.Told(), ElementsAre("drop"));
  EXPECT_EQ(c.Era(space_)->generation, 2u);
}

TEST_F(RemotePurgeTest, PagesOfTheDiskStayWhereItsRecordHasTheGeneration) {
  Open(a_);
  Open(b_);
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), ElementsAre("drop"));
  const SavedEra first{.key = 0, .generation = 1}, second{.key = 0, .generation = 2};
  EXPECT_THAT(b_.Saved(), ElementsAre(first));
  OneServer c(store_, clock_);
  c.purge().Watch(space_, first);
  EXPECT_THAT(c.Told(), IsEmpty());
  EXPECT_THAT(c.Saved(), IsEmpty());
  b_.Fail();
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), ElementsAre("drop"));
  EXPECT_THAT(b_.Saved(), ElementsAre(first)) << "old pages are left";
  OneServer d(store_, clock_);
  d.purge().Watch(space_, first);
  EXPECT_THAT(d.Told(), ElementsAre("drop on disk"));
  EXPECT_THAT(d.Saved(), ElementsAre(second));
  OneServer e(store_, clock_);
  e.purge().Watch(space_, {.key = 7, .generation = 2});
  EXPECT_THAT(e.Told(), ElementsAre("drop on disk")) << "it counts under another key";
}

TEST_F(RemotePurgeTest, ARecordThatWasLostIsGeneration0ForAllThatStart) {
  Open(b_);
  a_.purge().Watch(space_, {.key = 0, .generation = 3});
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), IsEmpty()) << "it keeps what was put since";
  EXPECT_THAT(a_.Saved(), ElementsAre(SavedEra()));
  EXPECT_EQ(There().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RemotePurgeTest, ManyDeletionsAreToldOneByOneAndNothingElseGoes) {
  Open(a_);
  Open(b_);
  constexpr size_t kMore = 10;
  for (size_t i = 0; i < RemotePurge::kMostDeleted + kMore; ++i) {
    a_.purge().Delete(*space_, absl::StrCat(i));
  }
  EXPECT_THAT(a_.Told(), IsEmpty());
  std::vector<std::string> told = b_.Told();
  EXPECT_EQ(told.size(), RemotePurge::kMostDeleted);
  EXPECT_EQ(There()->deleted.size(), RemotePurge::kMostDeleted);
  const std::string last = absl::StrCat(RemotePurge::kMostDeleted + kMore - 1);
  EXPECT_EQ(a_.purge().CountLive(*space_, {&last, 1}), 0u) << "it waits";
  clock_.Advance(RemotePurge::kKept);
  EXPECT_TRUE(Eventually([&] {
    const std::vector<std::string> rest = b_.Told();
    told.insert(told.end(), rest.begin(), rest.end());
    return told.size() == RemotePurge::kMostDeleted + kMore;
  }));
  std::ranges::sort(told);
  EXPECT_EQ(std::ranges::adjacent_find(told), told.end());
  EXPECT_FALSE(std::ranges::binary_search(told, "drop"));
  EXPECT_EQ(There()->generation, 0u);
}

TEST_F(RemotePurgeTest, MoreThanMayWaitAreADrop) {
  Open(a_);
  Open(b_);
  store_.FailAll(absl::UnavailableError("down"));
  for (size_t i = 0; i <= RemotePurge::kMostWaiting; ++i) {
    a_.purge().Delete(*space_, absl::StrCat(i));
  }
  store_.FailAll(absl::OkStatus());
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), ElementsAre("drop"));
}

TEST_F(RemotePurgeTest, ADropThatWasWrittenOverIsToldAgain) {
  Open(a_);
  Open(b_);
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(a_.Told(), IsEmpty()) << "it read it back";
  PutThere({.generation = 0, .deleted = {{7, "k"}}});
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_EQ(There()->generation, 1u);
  EXPECT_THAT(b_.Told(), Contains("drop"));
  EXPECT_EQ(b_.Era(space_)->generation, 1u);
}

TEST_F(RemotePurgeTest, ADamagedRecordIsWrittenAnewByWhoKnowsTheGeneration) {
  Open(a_);
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  Open(a_);
  OneServer c(store_, clock_);
  ASSERT_TRUE(store_.Corrupt(Name(*space_), 40));
  EXPECT_TRUE(Eventually([&] { return c.Era(space_).ok(); })) << "once it is written";
  EXPECT_EQ(There()->generation, 1u);
  EXPECT_EQ(c.Era(space_)->generation, 1u);
  EXPECT_EQ(a_.damaged(), 1u);
}

TEST_F(RemotePurgeTest, WhereNobodyKnowsTheGenerationAllTakeTheSameNewOne) {
  PutThere({.generation = 5, .deleted = {}});
  ASSERT_TRUE(store_.Corrupt(Name(*space_), 40));
  a_.purge().Watch(space_, {});
  b_.purge().Watch(space_, {});
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(a_.Told(), IsEmpty());
    EXPECT_FALSE(a_.purge().Known(*space_).has_value()) << "it may be 5";
  }
  EXPECT_THAT(b_.Told(), IsEmpty());
  EXPECT_EQ(a_.damaged(), 1u) << "it is one value";
  clock_.Advance(RemotePurge::kKept);
  EXPECT_THAT(a_.Told(), ElementsAre("drop on disk"));
  EXPECT_THAT(b_.Told(), ElementsAre("drop on disk"));
  EXPECT_GE(a_.Era(space_)->generation, uint64_t{1} << 63);
  EXPECT_EQ(a_.Era(space_)->generation, b_.Era(space_)->generation);
  EXPECT_EQ(There()->generation, a_.Era(space_)->generation);
}

TEST_F(RemotePurgeTest, ARecordOfALaterVersionStaysAndCountsAsNoAnswer) {
  Open(a_);
  std::string later;
  for (const SharedBytes& part : PurgeValue(Place(*space_), {.generation = 5, .deleted = {}})) {
    later += std::string(AsString(part.span()));
  }
  later[4] = 2;  // the version
  ASSERT_TRUE(BlockingRemote(store_).PutText(Name(*space_), later).ok());
  ASSERT_EQ(There().status().code(), absl::StatusCode::kFailedPrecondition);
  const auto value = store_.Peek(Name(*space_));
  Log().set_level(spdlog::level::warn);
  ::testing::internal::CaptureStderr();
  a_.purge().Delete(*space_, "k");
  EXPECT_THAT(a_.Told(), IsEmpty());
  b_.purge().Watch(space_, {});
  EXPECT_THAT(b_.Told(), IsEmpty());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(Name(*space_)));
  EXPECT_THAT(said, HasSubstr("delete the value, if no newer kvstow writes there"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << "once a minute: " << said;
  EXPECT_GT(a_.untold(), 0u);
  EXPECT_EQ(b_.untold(), 0u) << "it has nothing to tell";
  ::testing::internal::CaptureStderr();
  clock_.Advance(2 * RemotePurge::kKept);
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_THAT(b_.Told(), IsEmpty());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(Name(*space_))) << "once more";
  Log().set_level(spdlog::level::err);
  EXPECT_EQ(store_.Peek(Name(*space_)), value);
  EXPECT_FALSE(a_.purge().Known(*space_).has_value());
  EXPECT_EQ(a_.Era(space_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(a_.damaged() + b_.damaged(), 0u);
}

TEST_F(RemotePurgeTest, ADropThatTakesLongHoldsUpNobody) {
  const auto other = SpaceNamed("other");
  Open(a_);
  auto c = std::make_unique<OneServer>(store_, clock_);
  c->Block();
  Open(*c);
  a_.purge().Drop(*space_);
  EXPECT_THAT(a_.Told(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return c->Take() == std::vector<std::string>{"drop"}; }));
  c->purge().Delete(*other, "k");
  EXPECT_TRUE(Eventually([&] { return store_.Peek(Name(*other)).has_value(); }));
  c.reset();  // it does not wait for the pages
}

TEST_F(RemotePurgeTest, AValueThatIsWrittenAgainIsNotErased) {
  BlockingRemote calls(store_);
  store_.FailName("v", absl::UnavailableError("away"));
  a_.purge().Erase({"v"});
  a_.purge().Flush();
  a_.purge().Unerase("v");
  store_.FailName("v", absl::OkStatus());
  ASSERT_TRUE(calls.PutText("v", "new").ok());
  a_.purge().Flush();
  EXPECT_TRUE(store_.Peek("v").has_value());
}

}  // namespace
}  // namespace kvstow
