// RedisCluster against servers that a test scripts: what is refused, retried, followed, given up.
#include "service/remote/redis_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/remote/redis_reply.h"
#include "tests/service/remote/blocking_remote.h"
#include "tests/service/remote/fake_redis.h"
#include "tests/service/remote/test_cluster.h"
#include "tests/storage/status_matchers.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Said = FakeRedis::Said;
using Words = FakeRedis::Words;

std::unique_ptr<RemoteStore> Open(RedisOptions options) {
  auto store = OpenRedis(options);
  EXPECT_OK(store.status());
  return *std::move(store);
}

Said NoCluster() { return {"-ERR This instance has cluster support disabled\r\n"}; }

// A single Redis; `script` answers all but CLUSTER SLOTS.
FakeRedis::Script Single(FakeRedis::Script script) {
  return [script = std::move(script)](const Words& words) {
    return words[0] == "CLUSTER" ? NoCluster() : script(words);
  };
}

// What a call for one name answers, and how long that took.
struct Timed {
  absl::Status status;
  milliseconds took{};
};
Timed TimedGet(RemoteStore& store, milliseconds patience, const std::string& name = "a") {
  const Time begin = Clock::Real().Now();
  BlockingRemote calls(store, patience);
  const absl::Status status = calls.GetText(name).status();
  return {status, std::chrono::duration_cast<milliseconds>(Clock::Real().Now() - begin)};
}

TEST(RedisOptionsTest, NamesTheOptionThatIsWrong) {
  const auto message = [](const RedisOptions& options) {
    const auto store = OpenRedis(options);
    EXPECT_THAT(store.status(), HasCode(StatusCode::kInvalidArgument));
    return std::string(store.status().message());
  };
  EXPECT_THAT(message({}), testing::HasSubstr("seeds"));
  EXPECT_THAT(message({.seeds = {"host"}}), testing::HasSubstr("seeds: 'host'"));
  EXPECT_THAT(message({.seeds = {"host:0"}}), testing::HasSubstr("seeds"));
  EXPECT_THAT(message({.seeds = {"h:1"}, .user = "u"}), testing::HasSubstr("user"));
  EXPECT_THAT(message({.seeds = {"h:1"}, .password_file = "/nowhere"}),
              testing::HasSubstr("password_file: '/nowhere'"));
  EXPECT_THAT(message({.seeds = {"h:1"}, .tls_files = {.ca = "x"}}), testing::HasSubstr("tls"));
  EXPECT_THAT(message({.seeds = {"h:1"}, .tls = true, .tls_files = {.ca = "/nowhere"}}),
              testing::HasSubstr("/nowhere"));
  EXPECT_THAT(message({.seeds = {"h:1"}, .queue_commands = 0}),
              testing::HasSubstr("queue_commands"));
}

TEST(RedisClusterTest, TalksToASingleRedis) {
  std::map<std::string, std::string> values;
  FakeRedis server(Single([&](const Words& w) -> Said {
    if (w[0] == "SET") {
      values[w[1]] = w[2] + (w.size() == 5 ? w[3] + w[4] : "");
      return {"+OK\r\n"};
    }
    if (w[0] == "UNLINK") return {absl::StrCat(":", values.erase(w[1]), "\r\n")};
    if (w[0] == "EXISTS") return {absl::StrCat(":", values.count(w[1]), "\r\n")};
    return {values.contains(w[1]) ? FakeRedis::Bulk(values[w[1]]) : "$-1\r\n"};
  }));
  const auto store = Open({.seeds = {server.address()}});
  BlockingRemote calls(*store);
  EXPECT_OK(calls.PutText("a", "1"));
  EXPECT_OK(calls.PutText("b", "2", milliseconds(1500)));
  EXPECT_EQ(*calls.GetText("a"), "1");
  EXPECT_EQ(*calls.GetText("b"), "2PX1500");
  EXPECT_OK(calls.Exists({"a"})[0]);
  EXPECT_OK(calls.Erase({"a"})[0]);
  EXPECT_OK(calls.Erase({"a"})[0]);
  EXPECT_THAT(calls.Exists({"a"})[0], HasCode(StatusCode::kNotFound));
  EXPECT_THAT(calls.PutText(std::string(kMaxRedisNameBytes + 1, 'x'), ""),
              HasCode(StatusCode::kInvalidArgument));
  EXPECT_EQ(store->name(), "redis " + server.address());
}

TEST(RedisClusterTest, LogsInFirst) {
  TempDir folder;
  std::ofstream(folder.path() + "/password") << "secret\n";
  std::atomic<int> logins{0};
  FakeRedis server(
      [&](const Words& w) -> Said {
        if (w[0] == "AUTH") {
          const bool good = w == Words{"AUTH", "me", "secret"};
          logins += good ? 1 : 0;
          return {good ? "+OK\r\n" : "-WRONGPASS invalid username-password pair\r\n"};
        }
        if (logins == 0) return {"-NOAUTH Authentication required.\r\n"};
        if (w[0] == "PING") return {"+PONG\r\n"};
        if (w[0] == "GET") return {FakeRedis::Bulk("value")};
        return NoCluster();
      },
      /*raw=*/true);
  RedisOptions options{.seeds = {server.address()}, .user = "me", .password = "wrong"};
  for (const bool late : {false, true}) {
    const auto store = Open(options);
    const Timed got = TimedGet(*store, seconds(5));
    EXPECT_THAT(got.status, HasCode(StatusCode::kPermissionDenied)) << late;
    EXPECT_LT(got.took, seconds(3));
    EXPECT_FALSE(absl::StrContains(got.status.message(), options.password));
  }
  EXPECT_THAT(CheckRedis(options, Clock::Real().Now() + seconds(5)),
              HasCode(StatusCode::kPermissionDenied));
  options.password = "";
  options.password_file = folder.path() + "/password";
  const auto store = Open(options);
  EXPECT_OK(TimedGet(*store, seconds(5)).status);
  EXPECT_EQ(logins, 1);
  options = {.seeds = {server.address()}};
  logins = 0;
  EXPECT_THAT(TimedGet(*Open(options), seconds(5)).status, HasCode(StatusCode::kPermissionDenied));
}

TEST(RedisClusterTest, BadRepliesFailTheCallAndNothingElse) {
  for (const Said& said : std::vector<Said>{{"$67108865\r\n"},
                                            {"$99999999999999999999\r\n"},
                                            {"*2147483647\r\n"},
                                            {"nonsense\r\n"},
                                            {"$3\r\nabcdef\r\n"},
                                            {"$5\r\nab", true},
                                            {"", true},
                                            {":1\r\n"},
                                            {"*1\r\n$1\r\nx\r\n"},
                                            {"+one\r\n+two\r\n"}}) {
    FakeRedis server(Single([&](const Words&) { return said; }));
    const auto store = Open({.seeds = {server.address()}});
    const Timed got = TimedGet(*store, seconds(10));
    EXPECT_THAT(got.status, HasCode(StatusCode::kUnavailable)) << said.bytes;
    EXPECT_LT(got.took, seconds(5));
  }
}

TEST(RedisClusterTest, ErrorsHaveTheirCodes) {
  std::string error;
  FakeRedis server(Single([&](const Words&) { return Said{"-" + error + "\r\n"}; }));
  const auto store = Open({.seeds = {server.address()}});
  for (const auto& [text, code] : std::vector<std::pair<std::string, StatusCode>>{
           {"OOM command not allowed", StatusCode::kResourceExhausted},
           {"NOPERM no", StatusCode::kPermissionDenied},
           {"WRONGTYPE no", StatusCode::kInvalidArgument},
           {"READONLY You can't write against a read only replica.", StatusCode::kUnavailable},
           {"MOVED garbage", StatusCode::kUnavailable},
           {"ERR whatever", StatusCode::kUnavailable}}) {
    error = text;
    EXPECT_THAT(TimedGet(*store, seconds(5)).status, HasCode(code)) << text;
  }
}

TEST(RedisClusterTest, RetriesWhatPasses) {
  std::atomic<int> bad{4};
  FakeRedis server(Single([&](const Words&) -> Said {
    if (bad-- > 0) return {bad % 2 == 0 ? "-LOADING data\r\n" : "-TRYAGAIN later\r\n"};
    return {FakeRedis::Bulk("value")};
  }));
  const auto store = Open({.seeds = {server.address()}});
  EXPECT_OK(TimedGet(*store, seconds(5)).status);
  bad = 1'000'000;
  const Timed got = TimedGet(*store, milliseconds(300));
  EXPECT_THAT(got.status, HasCode(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(std::string(got.status.message()), testing::HasSubstr("last of all"));
  EXPECT_GE(got.took, milliseconds(299));
  EXPECT_LT(got.took, milliseconds(1000));
}

TEST(RedisClusterTest, FollowsMovedAndAsk) {
  std::atomic<int> asking{0}, got{0};
  FakeRedis home([&](const Words& w) -> Said {
    if (w[0] == "ASKING") {
      ++asking;
      return {"+OK\r\n"};
    }
    if (w[0] == "CLUSTER") return {"-LOADING its data\r\n"};
    ++got;
    return {FakeRedis::Bulk("value")};
  });
  std::string kind = "ASK";
  FakeRedis* self = nullptr;
  FakeRedis seed([&](const Words& w) -> Said {
    if (w[0] == "CLUSTER") return {FakeRedis::AllSlotsAt(self->port())};
    return {absl::StrCat("-", kind, " ", 15495, " 127.0.0.1:", home.port(), "\r\n")};
  });
  self = &seed;
  const auto store = Open({.seeds = {seed.address()}});
  EXPECT_OK(TimedGet(*store, seconds(5)).status);
  EXPECT_EQ(asking, 1);
  EXPECT_EQ(store->counters().redirects, 1u);
  kind = "MOVED";
  EXPECT_OK(TimedGet(*store, seconds(5)).status);
  EXPECT_EQ(asking, 1);
  EXPECT_EQ(store->counters().redirects, 2u);
  EXPECT_EQ(got, 2);
}

TEST(RedisClusterTest, EndsALoopOfRedirections) {
  FakeRedis *one = nullptr, *two = nullptr;
  FakeRedis a([&](const Words& w) -> Said {
    if (w[0] == "CLUSTER") return {FakeRedis::AllSlotsAt(one->port())};
    return {absl::StrCat("-MOVED 15495 127.0.0.1:", two->port(), "\r\n")};
  });
  FakeRedis b([&](const Words& w) -> Said {
    if (w[0] == "CLUSTER") return {FakeRedis::AllSlotsAt(one->port())};
    if (w[0] == "ASKING") return {"+OK\r\n"};
    return {absl::StrCat("-ASK 15495 127.0.0.1:", one->port(), "\r\n")};
  });
  one = &a;
  two = &b;
  const auto store = Open({.seeds = {a.address()}});
  const Timed got = TimedGet(*store, seconds(5));
  EXPECT_THAT(got.status, HasCode(StatusCode::kUnavailable));
  EXPECT_LT(got.took, seconds(3));
  EXPECT_EQ(store->counters().redirects, 6u);
}

TEST(RedisClusterTest, ARedirectionToNowhereIsToldAtTheDeadlineAtLatest) {
  const int nowhere = TestRedis::FreePort();
  FakeRedis* self = nullptr;
  FakeRedis seed([&](const Words& w) -> Said {
    if (w[0] == "CLUSTER") return {FakeRedis::AllSlotsAt(self->port())};
    return {absl::StrCat("-MOVED 15495 127.0.0.1:", nowhere, "\r\n")};
  });
  self = &seed;
  const auto store = Open({.seeds = {seed.address()}});
  const Timed got = TimedGet(*store, milliseconds(500));
  EXPECT_FALSE(got.status.ok());
  EXPECT_LT(got.took, milliseconds(1200));
}

TEST(RedisClusterTest, ASilentNodeHoldsUpNobodyElse) {
  std::atomic<bool> silent{true};
  std::string map;
  const auto slots = [&](const Words& w) -> std::optional<Said> {
    if (w[0] == "CLUSTER") return Said{map};
    return std::nullopt;
  };
  FakeRedis quick([&](const Words& w) { return slots(w).value_or(Said{FakeRedis::Bulk("q")}); });
  FakeRedis slow([&](const Words& w) -> Said {
    if (silent) return {};
    return slots(w).value_or(Said{FakeRedis::Bulk("s")});
  });
  const auto range = [](int first, int last, int port) {
    return absl::StrCat("*3\r\n:", first, "\r\n:", last, "\r\n*2\r\n", FakeRedis::Bulk("127.0.0.1"),
                        ":", port, "\r\n");
  };
  map = absl::StrCat("*2\r\n", range(0, 8191, quick.port()), range(8192, 16383, slow.port()));
  const auto store = Open({.seeds = {quick.address()}});
  BlockingRemote calls(*store, milliseconds(200));
  // "b" is in slot 3300, "a" in 15495. A call for both has both results.
  const auto both = calls.Get({"a", "b"});
  EXPECT_THAT(both[0].status(), HasCode(StatusCode::kDeadlineExceeded));
  EXPECT_OK(both[1].status());
  bool refused = false;
  for (int i = 0; i < 20 && !refused; ++i) {
    const Timed got = TimedGet(*store, milliseconds(150), "a");
    EXPECT_LT(got.took, milliseconds(600));
    refused = absl::IsUnavailable(got.status);
    EXPECT_OK(TimedGet(*store, seconds(5), "b").status);
  }
  EXPECT_TRUE(refused) << "the breaker never opened";
  EXPECT_GT(store->counters().refused, 0u);
  silent = false;
  EXPECT_TRUE(Eventually([&] { return TimedGet(*store, seconds(5), "a").status.ok(); }));
  EXPECT_GE(store->counters().reconnects, 1u);
}

TEST(RedisClusterTest, ALateReplyIsDropped) {
  std::atomic<bool> first{true};
  FakeRedis server(Single([&](const Words& w) -> Said {
    if (first.exchange(false)) std::this_thread::sleep_for(milliseconds(150));
    return {FakeRedis::Bulk("value of " + w[1])};
  }));
  const auto store = Open({.seeds = {server.address()}});
  EXPECT_THAT(TimedGet(*store, milliseconds(50), "a").status,
              HasCode(StatusCode::kDeadlineExceeded));
  BlockingRemote calls(*store);
  EXPECT_EQ(*calls.GetText("b"), "value of b");
  EXPECT_EQ(*calls.GetText("c"), "value of c");
}

TEST(RedisClusterTest, ALargeCallLeavesRoomForSmallOnes) {
  FakeRedis server(Single([](const Words& w) { return Said{w[0] == "EXISTS" ? ":1\r\n" : ""}; }));
  const auto store = Open({.seeds = {server.address()}, .queue_commands = 1000});
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(absl::StrCat(i));
  EXPECT_OK(BlockingRemote(*store).Exists({"a"})[0]) << "it knows its servers";
  std::atomic<bool> over{false};
  std::atomic<int> full{0};
  const Time deadline = Clock::Real().Now() + milliseconds(400);
  store->Get(names, deadline, [&](const auto& results) {
    for (const auto& result : results) full += absl::IsResourceExhausted(result.status()) ? 1 : 0;
    over = true;
  });
  ASSERT_TRUE(Eventually([&] { return store->counters().refused == 250; }));
  EXPECT_THAT(TimedGet(*store, milliseconds(50)).status,
              testing::Not(HasCode(StatusCode::kResourceExhausted)));
  ASSERT_TRUE(Eventually([&] { return over.load(); }));
  EXPECT_EQ(full, 250);
}

TEST(RedisClusterTest, QueuesHaveBounds) {
  FakeRedis server(Single([](const Words&) { return Said{}; }));
  const auto store =
      Open({.seeds = {server.address()}, .queue_bytes = 1 << 20, .queue_commands = 100});
  std::atomic<int> full{0}, late{0}, others{0};
  constexpr int kCalls = 300;
  const Time deadline = Clock::Real().Now() + milliseconds(400);
  const auto count = [&](const absl::Status& status) {
    full += absl::IsResourceExhausted(status) ? 1 : 0;
    late += absl::IsDeadlineExceeded(status) ? 1 : 0;
    others += absl::IsUnavailable(status) ? 1 : 0;
  };
  for (int i = 0; i < kCalls; ++i) {
    store->Get({absl::StrCat(i)}, deadline, [&](auto r) { count(r[0].status()); });
  }
  ASSERT_TRUE(Eventually([&] { return full + late + others == kCalls; }));
  EXPECT_GE(full, 100);
  EXPECT_GE(late, 50);
  EXPECT_GE(store->counters().refused, 100u);
  full = late = others = 0;
  const SharedBytes value = SharedBytes::Take(std::string(300'000, 'x'));
  for (int i = 0; i < 10; ++i) {
    store->Put({{absl::StrCat(i), {value}}}, Duration(0), Clock::Real().Now() + milliseconds(300),
               [&](auto r) { count(r[0]); });
  }
  ASSERT_TRUE(Eventually([&] { return full + late + others == 10; }));
  EXPECT_GE(full + others, 6);
}

TEST(RedisClusterTest, TheDestructorAnswersAll) {
  FakeRedis server(Single([](const Words&) { return Said{}; }));
  auto store = Open({.seeds = {server.address()}});
  std::atomic<int> cancelled{0};
  for (int i = 0; i < 50; ++i) {
    store->Get({"a", "b"}, Clock::Real().Now() + seconds(60), [&](auto r) {
      cancelled += absl::IsCancelled(r[0].status()) && absl::IsCancelled(r[1].status()) ? 1 : 0;
    });
  }
  store.reset();
  EXPECT_EQ(cancelled, 50);
}

TEST(RedisClusterTest, NobodyThereIsToldSoon) {
  const std::string nowhere = absl::StrCat("127.0.0.1:", TestRedis::FreePort());
  const auto store = Open({.seeds = {nowhere}});
  const Timed got = TimedGet(*store, seconds(10));
  EXPECT_THAT(got.status, HasCode(StatusCode::kUnavailable));
  EXPECT_LT(got.took, seconds(3));
  EXPECT_THAT(TimedGet(*Open({.seeds = {"no.such.host.invalid:1"}}), seconds(3)).status,
              testing::Not(HasCode(StatusCode::kOk)));
}

TEST(RedisClusterTest, OneGoodSeedIsEnough) {
  FakeRedis server(Single([](const Words&) { return Said{FakeRedis::Bulk("value")}; }));
  const std::string nowhere = absl::StrCat("127.0.0.1:", TestRedis::FreePort());
  for (int i = 0; i < 4; ++i) {
    const auto store = Open({.seeds = {nowhere, "no.such.host.invalid:1", server.address()}});
    EXPECT_OK(TimedGet(*store, seconds(5)).status);
  }
}

TEST(RedisClusterTest, CountsANodeOnceUnderTwoNames) {
  FakeRedis* self = nullptr;
  FakeRedis server([&](const Words& w) -> Said {
    if (w[0] == "CLUSTER") return {FakeRedis::AllSlotsAt(self->port())};
    return {FakeRedis::Bulk("value")};
  });
  self = &server;
  const auto store = Open({.seeds = {absl::StrCat("localhost:", server.port())}});
  EXPECT_OK(TimedGet(*store, seconds(5)).status);
  EXPECT_TRUE(Eventually([&] { return store->counters().connected == 1; }));
  EXPECT_EQ(store->counters().nodes, 1u);
}

TEST(RedisClusterTest, LiesInTheMapAreNotTaken) {
  std::string map = "*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\na\r\n:1\r\n";
  FakeRedis* self = nullptr;
  std::atomic<bool> lies{true};
  FakeRedis server([&](const Words& w) -> Said {
    if (w[0] == "CLUSTER") return {lies ? map : FakeRedis::AllSlotsAt(self->port())};
    return {FakeRedis::Bulk("value")};
  });
  self = &server;
  const auto store = Open({.seeds = {server.address()}});
  EXPECT_THAT(TimedGet(*store, seconds(5)).status, HasCode(StatusCode::kUnavailable));
  lies = false;
  EXPECT_TRUE(Eventually([&] { return TimedGet(*store, seconds(5)).status.ok(); }));
}

TEST(CheckRedisTest, SaysWhatIsWrong) {
  const auto check = [](const std::string& seed) {
    return CheckRedis({.seeds = {seed}}, Clock::Real().Now() + seconds(2));
  };
  EXPECT_THAT(check("no.such.host.invalid:1"), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(check(absl::StrCat("127.0.0.1:", TestRedis::FreePort())),
              HasCode(StatusCode::kUnavailable));
  FakeRedis web([](const Words&) { return Said{"HTTP/1.1 400 Bad Request\r\n\r\n", true}; }, true);
  EXPECT_THAT(check(web.address()), HasCode(StatusCode::kInvalidArgument));
  std::string info, state;
  FakeRedis server(
      [&](const Words& w) { return Said{FakeRedis::Bulk(w[0] == "INFO" ? info : state)}; });
  info = "redis_version:5.0.14\r\nrole:master\r\n";
  EXPECT_THAT(check(server.address()), HasCode(StatusCode::kFailedPrecondition));
  info = "redis_version:7.0.15\r\nrole:slave\r\ncluster_enabled:0\r\n";
  EXPECT_THAT(check(server.address()), HasCode(StatusCode::kFailedPrecondition));
  info = "redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:1\r\n";
  state = "cluster_state:fail\r\n";
  EXPECT_THAT(check(server.address()), HasCode(StatusCode::kUnavailable));
  state = "cluster_state:ok\r\n";
  EXPECT_OK(check(server.address()));
}

}  // namespace
}  // namespace kvstow
