#include "tests/service/remote/memory_remote_store.h"

#include "tests/conformance/remote_store_conformance.h"

namespace kvstow {
namespace {

using std::chrono::seconds;

INSTANTIATE_TEST_SUITE_P(None, RemoteStoreConformance,
                         testing::Values(RemoteStoreCase{"none", [] {
                                                           return std::shared_ptr<RemoteStore>(
                                                               &NoRemoteStore(),
                                                               [](RemoteStore*) {});
                                                         }}));
INSTANTIATE_TEST_SUITE_P(Memory, RemoteStoreConformance,
                         testing::Values(RemoteStoreCase{
                             "memory", [] { return std::make_shared<MemoryRemoteStore>(); }}));

TEST(MemoryRemoteStoreTest, FailsAsItIsTold) {
  MemoryRemoteStore store;
  BlockingRemote calls(store);
  ASSERT_OK(calls.PutText("a", "a"));
  store.FailNext(absl::UnavailableError("gone"), 2);
  EXPECT_THAT(calls.PutText("a", "other"), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_THAT(calls.GetText("a").status(), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_EQ(*calls.GetText("a"), "a");
  store.FailName("a", absl::PermissionDeniedError("no"));
  EXPECT_THAT(calls.GetText("a").status(), HasCode(absl::StatusCode::kPermissionDenied));
  EXPECT_OK(calls.PutText("b", "b"));
  store.FailName("a", absl::OkStatus());
  EXPECT_EQ(*calls.GetText("a"), "a");
  store.FailAll(absl::UnavailableError("gone"));
  EXPECT_THAT(calls.Erase({"a"})[0], HasCode(absl::StatusCode::kUnavailable));
  store.FailAll(absl::OkStatus());
  EXPECT_OK(calls.Exists({"a"})[0]);
}

TEST(MemoryRemoteStoreTest, HoldsAnswersUntilTheyAreReleasedOrLate) {
  ManualClock clock;
  MemoryRemoteStore store({.clock = &clock});
  store.Hold();
  std::vector<absl::StatusCode> codes;
  const auto note = [&](std::vector<absl::Status> r) { codes.push_back(r[0].code()); };
  store.Put({{"a", {}}}, Duration(0), clock.Now() + seconds(5), note);
  store.Exists({"a"}, clock.Now() + seconds(50), note);
  EXPECT_TRUE(codes.empty());
  EXPECT_EQ(store.held(), 2u);
  clock.Advance(seconds(6));
  store.Tick();
  EXPECT_THAT(codes, testing::ElementsAre(absl::StatusCode::kDeadlineExceeded));
  store.Release();
  EXPECT_THAT(codes,
              testing::ElementsAre(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kOk));
}

TEST(MemoryRemoteStoreTest, DamagesAndSwapsValues) {
  MemoryRemoteStore store;
  BlockingRemote calls(store);
  ASSERT_OK(calls.PutText("a", "aaaa"));
  ASSERT_OK(calls.PutText("b", "bbbb"));
  EXPECT_TRUE(store.Corrupt("a", 5));
  EXPECT_EQ(*calls.GetText("a"), "a`aa");
  EXPECT_TRUE(store.Swap("a", "b"));
  EXPECT_EQ(*calls.GetText("b"), "a`aa");
  EXPECT_TRUE(store.Truncate("b", 2));
  EXPECT_EQ(*store.Peek("b"), "a`");
  EXPECT_TRUE(store.Drop("b"));
  EXPECT_FALSE(store.Drop("b"));
  EXPECT_FALSE(store.Corrupt("b", 0));
  EXPECT_THAT(store.names(), testing::ElementsAre("a"));
}

TEST(MemoryRemoteStoreTest, ForgetsByTimeAndByRoom) {
  ManualClock clock;
  MemoryRemoteStore store({.clock = &clock, .capacity_bytes = 1000});
  BlockingRemote calls(store);
  ASSERT_OK(calls.PutText("short", "x", seconds(5)));
  clock.Advance(seconds(4));
  EXPECT_OK(calls.Exists({"short"})[0]);
  clock.Advance(seconds(1));
  EXPECT_THAT(calls.Exists({"short"})[0], HasCode(absl::StatusCode::kNotFound));
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK(calls.PutText(absl::StrCat(i), std::string(100, 'x')));
  }
  EXPECT_EQ(store.names().size(), 10u);
  EXPECT_THAT(calls.PutText("large", std::string(1001, 'x')),
              HasCode(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace kvstow
