// Servers with a master key over a real Redis Cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "tests/service/remote/remote_node.h"
#include "tests/service/remote/shared_cluster.h"

namespace kvstow::testing {
namespace {

class SealedClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestRedis::Program().empty()) GTEST_SKIP() << kNoRedis;
    ASSERT_TRUE(SharedCluster().Heal());
    SharedCluster().FlushAll();
  }
  static Config ConfigOf(uint8_t master) {
    Config config = SealedBy(master);
    config.remote = absl::StrJoin(SharedCluster().seeds(), ",");
    config.remote_wait = std::chrono::seconds(2);
    return config;
  }
  // All that the cluster's servers hold, by name.
  static std::map<std::string, std::string> Values() {
    std::map<std::string, std::string> out;
    for (size_t i = 0; i < SharedCluster().size(); ++i) {
      TestRedis& redis = SharedCluster().node(i);
      for (const RedisReply& name : redis.Ask({"KEYS", "*"}).elements) {
        const std::string text(name.view());
        if (std::string value = redis.AskText({"GET", text}); !absl::StartsWith(value, "MOVED")) {
          out[text] = std::move(value);
        }
      }
    }
    return out;
  }
};

TEST_F(SealedClusterTest, TheSecondServerReadsWhatNobodyElseCan) {
  Node a(ConfigOf(1)), b(ConfigOf(1)), other(ConfigOf(2));
  for (Node* node : {&a, &b, &other}) node->Open("raw");
  a.PutAll();
  const auto values = Values();
  EXPECT_GE(values.size(), 2u * kPages + 2);
  for (const auto& [name, value] : values) {
    EXPECT_FALSE(absl::StrContains(value, "page-")) << name;
    for (int i = 0; i < kPages; ++i) {
      const std::string raw = Node::PageAt(i).raw;
      for (size_t at = 0; at + 12 <= raw.size(); at += 97) {
        ASSERT_FALSE(absl::StrContains(value, raw.substr(at, 12))) << name;
      }
    }
  }
  EXPECT_TRUE(Eventually([&] { return b.Lookup().pages() == kPages; }));
  for (int i = 0; i < kPages; ++i) {
    EXPECT_TRUE(b.Get(i).data == Node::PageAt(i).raw) << i;
    EXPECT_EQ(other.Get(i).reply.status(), v1::MISS) << i;
  }
  EXPECT_EQ(other.Row("remote_locked_keys"), 1);
  EXPECT_EQ(Values().size(), values.size()) << "the other fleet wrote nothing";
}

TEST_F(SealedClusterTest, ServersThatStartAtOnceAgree) {
  Node a(ConfigOf(1)), b(ConfigOf(1));
  std::thread first([&] { a.Open("raw"); }), second([&] { b.Open("raw"); });
  first.join();
  second.join();
  a.server->remote().Flush();
  b.server->remote().Flush();
  a.PutAll();
  EXPECT_TRUE(Eventually([&] { return b.Lookup().pages() == kPages; }));
  for (int i = 0; i < kPages; ++i) EXPECT_TRUE(b.Get(i).data == Node::PageAt(i).raw) << i;
}

TEST_F(SealedClusterTest, ADroppedTenantIsGoneEverywhere) {
  Node a(ConfigOf(1)), b(ConfigOf(1));
  a.Open("raw");
  b.Open("raw");
  a.PutAll();
  EXPECT_TRUE(Eventually([&] { return b.Get(0).data == Node::PageAt(0).raw; }));
  EXPECT_EQ(a.DropTenant(), absl::StatusCode::kOk);
  EXPECT_EQ(Values().count(KeyName("kvstow", KeyTagOf(""))), 0u);
  EXPECT_TRUE(Eventually([&] { return b.Row("remote_keys") == 0; }));
  for (int i = 0; i < kPages; ++i) EXPECT_EQ(b.Get(i).reply.status(), v1::MISS) << i;
}

}  // namespace
}  // namespace kvstow::testing
