// Servers with a master key over one remote store: nobody without the key reads anything there, and
// the end of a key is the end of what it sealed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/service/remote/remote_node.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::testing {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;

class SealedTierTest : public ::testing::Test {
 protected:
  static std::string KeyRecordName() { return KeyName("kvstow", KeyTagOf("")); }
  std::vector<std::string> NamesThatEnd(const std::string& end) {
    std::vector<std::string> out;
    for (const std::string& name : remote_.names()) {
      if (absl::EndsWith(name, end)) out.push_back(name);
    }
    return out;
  }
  static void ExpectMisses(Node& node) {
    EXPECT_EQ(node.Lookup().pages(), 0u);
    for (int i = 0; i < kPages; ++i) EXPECT_EQ(node.Get(i).reply.status(), v1::MISS) << i;
  }
  static void ExpectPages(Node& node) {
    EXPECT_EQ(node.Lookup().pages(), static_cast<uint32_t>(kPages));
    for (int i = 0; i < kPages; ++i) EXPECT_TRUE(node.Get(i).data == Node::PageAt(i).raw) << i;
  }

  MemoryRemoteStore remote_;
  Node a_{remote_, SealedBy(1)};
  Node b_{remote_, SealedBy(1)};
};

TEST_F(SealedTierTest, NoValueAndNoNameHoldsAnythingOfAPage) {
  a_.Open("raw");
  a_.PutAll();
  a_.Delete(0);
  a_.server->remote().Flush();
  b_.Open("raw");
  EXPECT_TRUE(b_.Get(1).data == Node::PageAt(1).raw) << "who has the key reads it";
  v1::OpenSpaceResponse opened;
  ASSERT_TRUE(a_.client->FindSpace("s", &opened).ok());
  std::vector<std::string> secrets = {"page-", opened.fingerprint(), opened.spec().model()};
  for (int i = 0; i < kPages; ++i) {
    const std::string raw = Node::PageAt(i).raw;
    for (size_t at = 0; at + 12 <= raw.size(); at += 97) secrets.push_back(raw.substr(at, 12));
  }
  size_t values = 0;
  for (const std::string& name : remote_.names()) {
    const std::string value = remote_.Peek(name).value_or("");
    for (const std::string& secret : secrets) {
      ASSERT_FALSE(absl::StrContains(value, secret)) << name;
    }
    ++values;
  }
  EXPECT_GE(values, 2u * (kPages - 1) + 3) << "pages, a space, a purge record and a key";
  // An attacker who knows the space and a page's key cannot see whether the page is there.
  Space space;
  space.name = "s";
  std::ranges::copy(opened.fingerprint(), space.fingerprint.begin());
  EXPECT_THAT(remote_.names(),
              Not(Contains(RecordName("kvstow", TagOf(space, 0, Node::KeyOf(1))))));
}

TEST_F(SealedTierTest, AServerWithAnotherMasterKeyMissesAndLeavesAllAsItIs) {
  a_.Open("raw");
  a_.PutAll();
  const auto names = remote_.names();
  const auto key = remote_.Peek(KeyRecordName());
  Node other(remote_, SealedBy(2));
  other.Open("raw");
  ExpectMisses(other);
  other.PutAll();
  ExpectPages(other);
  EXPECT_EQ(other.Row("remote_locked_keys"), 1);
  EXPECT_EQ(other.Row("remote_unsent_pages_total"), kPages);
  EXPECT_EQ(other.Row("remote_damaged_values_total"), 0);
  EXPECT_EQ(other.RotateKey(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(remote_.names(), names);
  EXPECT_EQ(remote_.Peek(KeyRecordName()), key);
  b_.Open("raw");
  ExpectPages(b_);
}

TEST_F(SealedTierTest, AServerWithoutAMasterKeyHasItsOwnPagesThere) {
  a_.Open("raw");
  a_.PutAll();
  const auto sealed = remote_.names();
  Node clear(remote_);
  clear.Open("raw");
  ExpectMisses(clear);
  clear.PutAll();
  EXPECT_THAT(remote_.names(), IsSupersetOf(sealed));
  b_.Open("raw");
  ExpectPages(b_);
  EXPECT_EQ(b_.Row("remote_damaged_values_total"), 0) << "they never meet";
  EXPECT_EQ(clear.Row("remote_damaged_values_total"), 0);
}

TEST_F(SealedTierTest, AValueThatFailsItsTagIsAMissAndGoes) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  const auto bodies = NamesThatEnd(":0");
  ASSERT_EQ(bodies.size(), static_cast<size_t>(kPages));
  for (const std::string& name : bodies) ASSERT_TRUE(remote_.Corrupt(name, 1000));
  for (int i = 0; i < kPages; ++i) EXPECT_EQ(b_.Get(i).reply.status(), v1::MISS) << i;
  EXPECT_EQ(b_.Row("remote_damaged_values_total"), kPages);
  EXPECT_TRUE(NamesThatEnd(":0").empty());
}

TEST_F(SealedTierTest, ADroppedTenantIsGoneEverywhere) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  const auto record = remote_.Peek(KeyRecordName());
  const auto pages = NamesThatEnd(":r");
  ASSERT_EQ(pages.size(), static_cast<size_t>(kPages));
  EXPECT_EQ(b_.Row("remote_keys"), 1);
  EXPECT_EQ(a_.DropTenant(), absl::StatusCode::kOk);
  EXPECT_FALSE(remote_.Peek(KeyRecordName()).has_value());
  b_.server->remote().Flush();
  EXPECT_EQ(b_.Row("remote_keys"), 0);
  EXPECT_THAT(remote_.names(), IsSupersetOf(pages)) << "they are noise until they run out";
  ExpectMisses(b_);
  Node c(remote_, SealedBy(1));
  c.Open("raw");
  ExpectMisses(c);
  a_.Open("raw");
  ExpectMisses(a_);
  a_.PutAll();  // a new life
  EXPECT_NE(remote_.Peek(KeyRecordName()), record);
  EXPECT_TRUE(Eventually([&] { return c.Lookup().pages() == kPages; }));
  ExpectPages(c);
}

TEST_F(SealedTierTest, WithoutAnAnswerOfTheStoreTheEndOfATenantIsToldLater) {
  a_.Open("raw");
  a_.PutAll();
  remote_.FailAll(absl::UnavailableError("down"));
  EXPECT_EQ(a_.DropTenant(), absl::StatusCode::kUnavailable);
  remote_.FailAll(absl::OkStatus());
  a_.server->remote().Flush();
  EXPECT_FALSE(remote_.Peek(KeyRecordName()).has_value());
}

TEST_F(SealedTierTest, ANewKeyServesWhatIsSentFromThenOn) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  const auto record = remote_.Peek(KeyRecordName());
  EXPECT_EQ(a_.RotateKey(), absl::StatusCode::kOk);
  EXPECT_TRUE(a_.Get(1).data == Node::PageAt(1).raw) << "what is here stays";
  b_.server->remote().Flush();
  EXPECT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  EXPECT_EQ(b_.Get(1).reply.status(), v1::MISS) << "the old key's values are noise";
  Node d(remote_, SealedBy(1));
  d.Open("raw");
  d.PutAll();
  EXPECT_TRUE(remote_.Peek(KeyRecordName()).has_value());
  EXPECT_NE(remote_.Peek(KeyRecordName()), record);
  Node c(remote_, SealedBy(1));
  EXPECT_TRUE(c.client->FindSpace("s").ok()) << "the space is told again";
  EXPECT_EQ(c.Lookup().pages(), static_cast<uint32_t>(kPages));
  ExpectPages(c);
}

TEST_F(SealedTierTest, AStoreThatForgotTheKeyGetsANewOneAndPagesHereStay) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  remote_.DropAll();
  a_.server->remote().Flush();
  b_.server->remote().Flush();
  ExpectPages(a_);
  Node c(remote_, SealedBy(1));
  // Two servers that make the key at once agree on one within a second. What the other one sealed
  // is lost: such pages are put again.
  EXPECT_TRUE(Eventually([&] {
    b_.PutAll();
    return c.client->FindSpace("s").ok() && c.Lookup().pages() == static_cast<uint32_t>(kPages);
  }));
  ExpectPages(c);
}

TEST_F(SealedTierTest, ADeleteIsToldUnderTheNextKeyToo) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  remote_.DropAll();
  a_.Delete(0);
  a_.server->remote().Flush();
  b_.server->remote().Flush();
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
}

TEST_F(SealedTierTest, DisksAndTheRemoteStoreHaveKeysOfTheirOwn) {
  const TempDir folder;
  Config config = SealedBy(1);
  config.disk_path = folder.path() + "/disk";
  config.disk_bytes = 64 << 20;
  Node c(remote_, config);
  c.Open("raw");
  c.PutAll();
  b_.Open("raw");
  ExpectPages(b_);
  EXPECT_EQ(c.DropTenant(), absl::StatusCode::kOk);
  b_.server->remote().Flush();
  ExpectMisses(b_);
}

TEST_F(SealedTierTest, InClearThereIsNoKeyToEndAndADroppedTenantIsGoneEverywhere) {
  Node clear(remote_), other(remote_);
  clear.Open("raw");
  other.Open("raw");
  clear.PutAll();
  ExpectPages(other);
  EXPECT_EQ(clear.RotateKey(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(clear.DropTenant(), absl::StatusCode::kOk);
  clear.server->remote().Flush();
  other.server->remote().Flush();
  ExpectMisses(other);
}

}  // namespace
}  // namespace kvstow::testing
