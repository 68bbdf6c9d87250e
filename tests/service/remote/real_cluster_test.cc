// RedisCluster on real servers: failover, frozen nodes, slots that move, full memory, logins, TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/remote/redis_cluster.h"
#include "service/remote/redis_slots.h"
#include "tests/conformance/remote_store_conformance.h"
#include "tests/proto/certificates.h"
#include "tests/service/remote/shared_cluster.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<RemoteStore> Open(RedisOptions options) {
  auto store = OpenRedis(options);
  EXPECT_OK(store.status());
  return *std::move(store);
}

std::shared_ptr<RemoteStore> OpenShared() {
  if (TestRedis::Program().empty()) return nullptr;
  return Open({.seeds = SharedCluster().seeds()});
}

std::shared_ptr<RemoteStore> OpenSingle() {
  if (TestRedis::Program().empty()) return nullptr;
  static TempDir folder;
  struct Both {
    TestRedis server{folder.path(), {}};
    std::unique_ptr<RemoteStore> store;
  };
  auto both = std::make_shared<Both>();
  EXPECT_TRUE(Eventually([&] { return both->server.Answers(); }));
  both->store = Open({.seeds = {both->server.address()}});
  return {both, both->store.get()};
}

INSTANTIATE_TEST_SUITE_P(Cluster, RemoteStoreConformance,
                         ::testing::Values(RemoteStoreCase{"cluster", OpenShared},
                                           RemoteStoreCase{"single", OpenSingle}));

class RealClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestRedis::Program().empty()) GTEST_SKIP() << kNoRedis;
    ASSERT_TRUE(SharedCluster().Heal());
  }
  // Names that lie in slots of all three primaries.
  static std::vector<std::string> Names() {
    std::vector<std::string> out;
    for (int i = 0; i < 60; ++i) out.push_back(absl::StrCat("page{", i, "}"));
    return out;
  }
  static void PutAll(BlockingRemote& calls) {
    std::vector<RemoteValue> values;
    for (const std::string& name : Names()) {
      values.push_back({name, {SharedBytes::Take("value of " + name)}});
    }
    for (const absl::Status& status : calls.Put(std::move(values))) ASSERT_OK(status);
  }
  static size_t GoodOf(const std::vector<absl::Status>& results) {
    size_t good = 0;
    for (const absl::Status& status : results) good += status.ok() ? 1 : 0;
    return good;
  }
  static std::vector<absl::Status> Statuses(const std::vector<absl::StatusOr<SharedBytes>>& got) {
    std::vector<absl::Status> out;
    for (const auto& result : got) out.push_back(result.status());
    return out;
  }
};

TEST_F(RealClusterTest, OutlivesAPrimary) {
  const auto store = Open({.seeds = SharedCluster().seeds()});
  BlockingRemote calls(*store, seconds(2));
  PutAll(calls);
  ASSERT_TRUE(SharedCluster().CatchUp());
  const uint16_t slot = RedisSlotOf(Names()[0]);
  const int primary = SharedCluster().PrimaryOf(slot, 0);
  ASSERT_GE(primary, 0);
  SharedCluster().node(primary).Kill();
  // Reads go to the replica, before the cluster has a new primary.
  EXPECT_TRUE(Eventually([&] { return GoodOf(Statuses(calls.Get(Names()))) == 60; }, 2));
  const auto put_all = [&] {
    std::vector<RemoteValue> values;
    for (const std::string& name : Names()) values.push_back({name, {SharedBytes::Take("new")}});
    return GoodOf(calls.Put(std::move(values)));
  };
  EXPECT_GE(put_all(), 30u) << "other slots take values meanwhile";
  EXPECT_TRUE(Eventually([&] { return put_all() == 60; }));
  EXPECT_TRUE(Eventually([&] { return calls.GetText(Names()[0]).value_or("") == "new"; }));
}

TEST_F(RealClusterTest, OutlivesAReplica) {
  const auto store = Open({.seeds = SharedCluster().seeds(), .replica_reads = true});
  BlockingRemote calls(*store, seconds(2));
  PutAll(calls);
  ASSERT_TRUE(SharedCluster().CatchUp());
  EXPECT_EQ(GoodOf(Statuses(calls.Get(Names()))), 60u);
  const auto replicas = SharedCluster().ReplicasOf(RedisSlotOf(Names()[0]), 0);
  ASSERT_FALSE(replicas.empty());
  SharedCluster().node(replicas[0]).Kill();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(GoodOf(Statuses(calls.Get(Names()))), 60u) << "round " << i;
  }
}

TEST_F(RealClusterTest, AFrozenPrimaryHoldsUpNobody) {
  const auto store = Open({.seeds = SharedCluster().seeds()});
  BlockingRemote calls(*store, seconds(2));
  PutAll(calls);
  ASSERT_TRUE(SharedCluster().CatchUp());
  const int primary = SharedCluster().PrimaryOf(RedisSlotOf(Names()[0]), 0);
  ASSERT_GE(primary, 0);
  std::vector<std::string> theirs, others;
  for (const std::string& name : Names()) {
    const bool frozen = SharedCluster().PrimaryOf(RedisSlotOf(name), 0) == primary;
    (frozen ? theirs : others).push_back(name);
  }
  ASSERT_FALSE(theirs.empty() || others.empty());
  SharedCluster().node(primary).Signal(SIGSTOP);
  BlockingRemote hasty(*store, milliseconds(150));
  milliseconds longest{0};
  bool back = false;
  const Time end = Clock::Real().Now() + seconds(10);
  while (!back && Clock::Real().Now() < end) {
    const Time begin = Clock::Real().Now();
    const size_t good = GoodOf(Statuses(hasty.Get(theirs)));
    longest =
        std::max(longest, std::chrono::duration_cast<milliseconds>(Clock::Real().Now() - begin));
    EXPECT_EQ(GoodOf(Statuses(calls.Get(others))), others.size());
    back = good == theirs.size();
  }
  EXPECT_TRUE(back) << "a replica takes over";
  EXPECT_LT(longest, milliseconds(600)) << "the deadline is 150 ms";
  EXPECT_TRUE(Eventually([&] { return calls.PutText(theirs[0], "new").ok(); }));
}

TEST_F(RealClusterTest, FollowsASlotThatMovesUnderLoad) {
  const auto store = Open({.seeds = SharedCluster().seeds()});
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(absl::StrCat("{moving}", i));
  BlockingRemote calls(*store);
  for (const std::string& name : names) ASSERT_OK(calls.PutText(name, name));
  const uint16_t slot = RedisSlotOf(names[0]);
  const int from = SharedCluster().PrimaryOf(slot, 0);
  int to = -1;
  for (uint16_t s = 0; to < 0 || to == from; s += 1000) to = SharedCluster().PrimaryOf(s, 0);
  ASSERT_TRUE(SharedCluster().BeginMove(slot, from, to));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, rounds{0};
  std::vector<std::thread> load;
  for (int t = 0; t < 2; ++t) {
    load.emplace_back([&, t] {
      BlockingRemote mine(*store);
      for (size_t i = static_cast<size_t>(t); !stop; ++i, ++rounds) {
        const std::string& name = names[i % names.size()];
        wrong += mine.GetText(name).value_or("") == name ? 0 : 1;
        wrong += mine.PutText(name, name).ok() ? 0 : 1;
      }
    });
  }
  EXPECT_TRUE(SharedCluster().MoveNames(slot, from, to));
  const int at = rounds;
  EXPECT_TRUE(Eventually([&] { return rounds > at + 50; }));
  EXPECT_TRUE(SharedCluster().EndMove(slot, from, to));
  const int later = rounds;
  EXPECT_TRUE(Eventually([&] { return rounds > later + 50; }));
  stop = true;
  for (std::thread& thread : load) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(store->counters().redirects, 50u);
  EXPECT_EQ(SharedCluster().PrimaryOf(slot, static_cast<size_t>(to)), to);
}

TEST_F(RealClusterTest, ForgetsAllAtFlushall) {
  const auto store = Open({.seeds = SharedCluster().seeds()});
  BlockingRemote calls(*store);
  PutAll(calls);
  SharedCluster().FlushAll();
  for (const auto& status : Statuses(calls.Get(Names()))) {
    EXPECT_THAT(status, HasCode(StatusCode::kNotFound));
  }
  EXPECT_OK(CheckRedis({.seeds = SharedCluster().seeds()}, Clock::Real().Now() + seconds(5)));
}

class RealRedisTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestRedis::Program().empty()) GTEST_SKIP() << kNoRedis;
  }
  std::unique_ptr<TestRedis> Start(std::vector<std::string> arguments) {
    auto out = std::make_unique<TestRedis>(folder_.path(), std::move(arguments));
    EXPECT_TRUE(Eventually([&] { return out->Answers(); }));
    return out;
  }
  // Puts 100 values of 256 KiB; counts what became of them.
  static std::map<StatusCode, int> Fill(BlockingRemote& calls) {
    std::map<StatusCode, int> out;
    for (int i = 0; i < 100; ++i) {
      ++out[calls.PutText(absl::StrCat(i), std::string(256 << 10, 'x')).code()];
    }
    return out;
  }
  TempDir folder_;
};

TEST_F(RealRedisTest, FullMemoryIsResourceExhausted) {
  const auto server = Start({"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"});
  const auto store = Open({.seeds = {server->address()}});
  BlockingRemote calls(*store);
  const auto codes = Fill(calls);
  EXPECT_GT(codes.at(StatusCode::kOk), 10);
  EXPECT_GT(codes.at(StatusCode::kResourceExhausted), 50);
  EXPECT_EQ(codes.size(), 2u);
  EXPECT_OK(calls.Exists({"0"})[0]);
}

TEST_F(RealRedisTest, AnEngineThatEvictsMisses) {
  const auto server = Start({"--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"});
  const auto store = Open({.seeds = {server->address()}});
  BlockingRemote calls(*store);
  EXPECT_EQ(Fill(calls).at(StatusCode::kOk), 100);
  std::map<StatusCode, int> codes;
  for (int i = 0; i < 100; ++i) ++codes[calls.GetText(absl::StrCat(i)).status().code()];
  EXPECT_GT(codes.at(StatusCode::kNotFound), 50);
  EXPECT_GT(codes.at(StatusCode::kOk), 5);
}

TEST_F(RealRedisTest, WrongPasswordsAreToldAtOnce) {
  const auto server =
      Start({"--requirepass", "secret", "--user", "me", "on", ">mine", "~*", "+@all"});
  RedisOptions options{.seeds = {server->address()}, .password = "wrong"};
  const auto deadline = [] { return Clock::Real().Now() + seconds(5); };
  for (const char* const password : {"wrong", ""}) {
    options.password = password;
    EXPECT_THAT(CheckRedis(options, deadline()), HasCode(StatusCode::kPermissionDenied));
  }
  const auto bad = Open(options);
  EXPECT_THAT(BlockingRemote(*bad).PutText("a", "b"), HasCode(StatusCode::kPermissionDenied));
  options.password = "secret";
  EXPECT_OK(CheckRedis(options, deadline()));
  const auto good = Open(options);
  EXPECT_OK(BlockingRemote(*good).PutText("a", "b"));
  options.user = "me";
  options.password = "mine";
  const auto mine = Open(options);
  EXPECT_EQ(*BlockingRemote(*mine).GetText("a"), "b");
}

TEST_F(RealRedisTest, AUserWithoutRightsIsRefused) {
  const auto server =
      Start({"--user", "me", "on", ">mine", "~kv:*", "+get", "+set", "+cluster|slots"});
  const auto store = Open({.seeds = {server->address()}, .user = "me", .password = "mine"});
  BlockingRemote calls(*store);
  EXPECT_OK(calls.PutText("kv:a", "b"));
  EXPECT_EQ(*calls.GetText("kv:a"), "b");
  EXPECT_THAT(calls.PutText("other", "b"), HasCode(StatusCode::kPermissionDenied));
  EXPECT_THAT(calls.Erase({"kv:a"})[0], HasCode(StatusCode::kPermissionDenied));
}

TEST_F(RealRedisTest, TimesToLiveEnd) {
  const auto server = Start({});
  const auto store = Open({.seeds = {server->address()}});
  BlockingRemote calls(*store);
  ASSERT_OK(calls.PutText("a", "b", milliseconds(50)));
  EXPECT_TRUE(Eventually([&] { return absl::IsNotFound(calls.GetText("a").status()); }));
}

TEST_F(RealRedisTest, ComesBackAfterARestart) {
  const auto server = Start({});
  const auto store = Open({.seeds = {server->address()}});
  BlockingRemote calls(*store);
  ASSERT_OK(calls.PutText("a", "b"));
  server->Kill();
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable(calls.GetText("a").status()); }));
  server->Start();
  EXPECT_TRUE(Eventually([&] { return calls.PutText("a", "c").ok(); }));
  EXPECT_EQ(*calls.GetText("a"), "c");
}

TEST_F(RealRedisTest, SpeaksTls) {
  const testing::Certificates certificates(folder_.path());
  const int port = TestRedis::FreePort();
  const auto server =
      Start({"--tls-port", absl::StrCat(port), "--tls-cert-file",
             certificates.ca.certificate("server"), "--tls-key-file", certificates.ca.key("server"),
             "--tls-ca-cert-file", certificates.ca.file()});
  if (!server->Answers()) GTEST_SKIP() << "this redis has no TLS";
  RedisOptions options{.seeds = {absl::StrCat("127.0.0.1:", port)}, .tls = true};
  options.tls_files = certificates.anyone();
  const auto deadline = [] { return Clock::Real().Now() + seconds(5); };
  EXPECT_FALSE(CheckRedis(options, deadline()).ok()) << "the server wants a certificate";
  options.tls_files = certificates.worker();
  EXPECT_OK(CheckRedis(options, deadline()));
  const auto store = Open(options);
  BlockingRemote calls(*store);
  for (const size_t size : {0, 1, 16384, 100'000, 5'000'000}) {
    const std::string value(size, 'v');
    ASSERT_OK(calls.PutText("a", value));
    const auto got = calls.GetText("a");
    ASSERT_OK(got.status());
    EXPECT_TRUE(*got == value);
  }
  options.tls_name = "another.example";
  const auto wrong = Open(options);
  EXPECT_THAT(BlockingRemote(*wrong).GetText("a").status(), HasCode(StatusCode::kPermissionDenied));
}

}  // namespace
}  // namespace kvstow
