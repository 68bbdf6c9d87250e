// Who a peer is, and what stays of that when the file is read again.
#include "service/access/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/log.h"
#include "service/access/tickets.h"
#include "tests/service/access/tenants.h"

namespace kvstow::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() { EXPECT_TRUE(SetUpLog("error", "text").ok()); }
  ~AccessTest() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_) << text; }
  void Open() {
    Write(file_.dump());
    auto opened = Access::Open(path_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    access_ = *std::move(opened);
  }
  CallerPtr WithToken(const std::string& token) {
    const auto caller = access_->Identify({.bearer_token = token});
    return caller.ok() ? *caller : nullptr;
  }

  const std::string path_ =
      ::testing::TempDir() + "kvstow_access_" + std::to_string(getpid()) + ".json";
  Json file_ = AccessJson();
  std::unique_ptr<Access> access_;
};

TEST_F(AccessTest, WithoutAFileEverybodyIsAnAdminOfNoTenant) {
  const auto caller = Access::ForEverybody().Identify({});
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ((*caller)->tenant, "");
  EXPECT_EQ((*caller)->role, Role::kAdmin);
  EXPECT_TRUE(IsOperator(**caller));
}

TEST_F(AccessTest, IdentifiesByTokenCertificateOrUser) {
  file_["identities"].push_back({{"certificate", "dns:x"}, {"tenant", "c"}, {"role", "worker"}});
  file_["identities"].push_back({{"uid", 7}, {"tenant", "b"}, {"role", "reader"}});
  Open();
  EXPECT_EQ(WithToken("a.worker")->identity, "token:a.worker");
  EXPECT_EQ(WithToken("a.worker")->tenant, "a");
  EXPECT_EQ((*access_->Identify({.certificate_names = {"cn:y", "dns:x"}}))->tenant, "c");
  EXPECT_EQ((*access_->Identify({.certificate_names = {}, .bearer_token = {}, .uid = 7}))->tenant,
            "b");
  // A token decides alone.
  const PeerFacts wrong = {.certificate_names = {"dns:x"}, .bearer_token = "guessed", .uid = 7};
  EXPECT_TRUE(absl::IsUnauthenticated(access_->Identify(wrong).status()));
  // A certificate that nobody knows does not fall back to the user.
  const PeerFacts stranger = {.certificate_names = {"dns:y"}, .bearer_token = {}, .uid = 7};
  EXPECT_TRUE(absl::IsUnauthenticated(access_->Identify(stranger).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(access_->Identify({}).status()));
  const auto counters = access_->counters();
  EXPECT_EQ(counters.refusals[static_cast<size_t>(Refusal::kUnknownIdentity)], 2u);
  EXPECT_EQ(counters.refusals[static_cast<size_t>(Refusal::kNoIdentity)], 1u);
}

TEST_F(AccessTest, ACertificateOfTwoIdentitiesIsNone) {
  for (const char* name : {"dns:x", "dns:y"}) {
    file_["identities"].push_back({{"certificate", name}, {"tenant", "c"}, {"role", "worker"}});
  }
  Open();
  EXPECT_TRUE(access_->Identify({.certificate_names = {"dns:x"}}).ok());
  const auto both = access_->Identify({.certificate_names = {"dns:x", "dns:y"}});
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("two identities"));
}

TEST_F(AccessTest, RolesInclude) {
  Open();
  constexpr Right kPut = RightOf("/kvstow.v1.KvCache/Put");
  constexpr Right kFlush = RightOf("/kvstow.v1.Admin/Flush");
  EXPECT_TRUE(absl::IsPermissionDenied(access_->MayCall(*WithToken("a.reader"), kPut)));
  EXPECT_TRUE(access_->MayCall(*WithToken("a.worker"), kPut).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(access_->MayCall(*WithToken("a.worker"), kFlush)));
  EXPECT_TRUE(access_->MayCall(*WithToken("operator"), kPut).ok());
  EXPECT_TRUE(access_->MayCall(*WithToken("operator"), kFlush).ok());
}

TEST_F(AccessTest, ANameMeansTheTenantsOwnSpaceOrOneThatIsShared) {
  Open();
  EXPECT_EQ(access_->MeaningOf("a", "docs").owner, "a");
  EXPECT_TRUE(access_->MeaningOf("a", "docs").write);
  EXPECT_EQ(access_->MeaningOf("b", "docs").owner, "a");
  EXPECT_FALSE(access_->MeaningOf("b", "docs").write);
  EXPECT_FALSE(access_->MeaningOf("b", "docs").own);
  EXPECT_TRUE(access_->MeaningOf("b", "pool").write);
  EXPECT_EQ(access_->MeaningOf("c", "docs").owner, "c");
  EXPECT_EQ(access_->MeaningOf("b", "other").owner, "b");
}

TEST_F(AccessTest, ReloadKeepsWhoIsUnchangedAndForgetsTheOthers) {
  file_["tenants"]["a"]["pages"] = 5;
  file_["tenants"]["b"]["kv_events"] = true;
  Open();
  EXPECT_FALSE(access_->PublishesKvEvents("a"));
  EXPECT_TRUE(access_->PublishesKvEvents("b"));
  EXPECT_FALSE(access_->PublishesKvEvents("")) << "spaces from before there were identities";
  EXPECT_THAT(access_->Tenants(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(access_->Limits("a").pages, 5u);
  const CallerPtr worker = WithToken("a.worker"), reader = WithToken("a.reader"),
                  other = WithToken("b.worker");
  const uint64_t version = access_->version();
  file_["tenants"]["a"]["pages"] = 6;
  file_["identities"][1]["role"] = "worker";  // a.reader
  file_["identities"][2]["token_sha256"] = TokenHash("a fresh token");
  Write(file_.dump());
  ASSERT_TRUE(access_->Reload().ok());
  EXPECT_GT(access_->version(), version);
  EXPECT_EQ(access_->Limits("a").pages, 6u);
  EXPECT_TRUE(access_->Knows(worker));
  EXPECT_EQ(WithToken("a.worker"), worker);
  EXPECT_FALSE(access_->Knows(reader)) << "its role is another one";
  EXPECT_FALSE(access_->Knows(other)) << "its token was replaced";
  EXPECT_EQ(WithToken("b.worker"), nullptr);
  EXPECT_NE(WithToken("a fresh token"), nullptr);
}

TEST_F(AccessTest, ABrokenFileChangesNothing) {
  Open();
  const CallerPtr worker = WithToken("a.worker");
  const uint64_t version = access_->version();
  Write("{");
  EXPECT_THAT(std::string(access_->Reload().message()), HasSubstr(path_));
  std::filesystem::remove(path_);
  EXPECT_TRUE(absl::IsNotFound(access_->Reload()));
  EXPECT_EQ(access_->counters().failed_reloads, 2u);
  EXPECT_EQ(access_->counters().reloads, 0u);
  EXPECT_EQ(access_->version(), version);
  EXPECT_EQ(WithToken("a.worker"), worker);
}

TEST_F(AccessTest, ATicketIsGoodOnceAndForAWhile) {
  Open();
  ManualClock clock;
  Tickets tickets(std::chrono::seconds(30), clock);
  const CallerPtr caller = WithToken("a.worker");
  const std::string used = tickets.New(caller), late = tickets.New(caller);
  EXPECT_EQ(used.size(), Tickets::kBytes);
  EXPECT_EQ(tickets.Take(used), caller);
  EXPECT_EQ(tickets.Take(used), nullptr);
  EXPECT_EQ(tickets.Take(""), nullptr);
  EXPECT_EQ(tickets.Take(std::string(Tickets::kBytes, '\0')), nullptr);
  clock.Advance(std::chrono::seconds(31));
  EXPECT_EQ(tickets.Take(late), nullptr);
}

TEST_F(AccessTest, ATenantThatAsksForManyTicketsLosesItsOwnAlone) {
  Open();
  Tickets tickets(std::chrono::hours(1));
  const CallerPtr a = WithToken("a.worker"), b = WithToken("b.worker");
  const std::string first = tickets.New(a), others = tickets.New(b);
  for (size_t i = 0; i < Tickets::kMostOfTenant; ++i) EXPECT_EQ(tickets.New(a).size(), 16u);
  EXPECT_EQ(tickets.Take(first), nullptr);
  EXPECT_EQ(tickets.Take(others), b);
}

}  // namespace
}  // namespace kvstow::testing
