// The nodes of a client, whose questions and names this test answers. Nothing connects.
#include "client/connection/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Status kDead = absl::UnavailableError("dead");

class NodesTest : public testing::Test {
 protected:
  struct Question {
    std::string address;
    std::function<void(bool)> answer;
  };
  std::unique_ptr<Nodes> Make(const std::string& address) {
    return std::make_unique<Nodes>(
        *ParseAddresses(address),
        Nodes::Parts{.make =
                         [this](const std::string& at, const std::string& name) {
                           made_.push_back(name.empty() ? at : at + "=" + name);
                           return std::make_unique<Node>(
                               at, name, options_, [] { return absl::UnimplementedError(""); },
                               [] { return absl::UnimplementedError(""); });
                         },
                     .ask =
                         [this](Node& node, std::function<void(bool)> answer) {
                           questions_.push_back({node.address, std::move(answer)});
                         },
                     .resolve = [this](const std::string& name) { return Resolved(name); },
                     .own = [] { return OwnHost{.name = "me", .addresses = {"10.0.0.3"}}; },
                     .clock = clock_});
  }
  absl::StatusOr<std::vector<std::string>> Resolved(const std::string& name) {
    MutexLock lock(mu_);
    ++resolutions_;
    if (addresses_.empty()) return absl::UnavailableError(name + " has no address");
    return addresses_;
  }
  void SetAddresses(std::vector<std::string> addresses) {
    MutexLock lock(mu_);
    addresses_ = std::move(addresses);
  }
  int resolutions() {
    MutexLock lock(mu_);
    return resolutions_;
  }
  // Calls until the condition holds: a thread resolves.
  static void Await(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::yield();
  }

  ManualClock clock_;
  const ClientOptions options_ = {.shared_bytes = 0, .direct_connections = 0};
  std::vector<std::string> made_;
  std::vector<Question> questions_;
  Mutex mu_;
  std::vector<std::string> addresses_ KVSTOW_GUARDED_BY(mu_);
  int resolutions_ KVSTOW_GUARDED_BY(mu_) = 0;
};

TEST_F(NodesTest, ASingleAddressHasOneNodeWhateverHappens) {
  const auto nodes = Make("10.0.0.1:1");
  EXPECT_FALSE(nodes->several());
  Node& node = nodes->current();
  EXPECT_FALSE(nodes->Failed(node, kDead));
  EXPECT_FALSE(nodes->Failed(node, absl::DeadlineExceededError("late")));
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(&nodes->current(), &node);
  nodes->NoteLease(node, 7);
  EXPECT_EQ(nodes->LeaseAt(node, 7), 7u);
  EXPECT_THAT(questions_, IsEmpty());
  EXPECT_THAT(made_, ElementsAre("10.0.0.1:1"));
}

TEST_F(NodesTest, TheNodeOfThisHostComesFirstAndOthersAreMadeWhenTheyAreNeeded) {
  const auto nodes = Make("10.0.0.1:1,10.0.0.3:1,unix:/there");
  EXPECT_EQ(nodes->current().address, "unix:/there");
  EXPECT_THAT(made_, ElementsAre("unix:/there"));
  EXPECT_TRUE(nodes->Failed(nodes->current(), kDead));
  EXPECT_EQ(nodes->current().address, "10.0.0.3:1");
  EXPECT_TRUE(nodes->Failed(nodes->current(), kDead));
  EXPECT_EQ(nodes->serving().address, "10.0.0.1:1");
  EXPECT_EQ(nodes->serving().changes, 2u);
}

TEST_F(NodesTest, OnlyUnavailableWithoutATimeToComeBackMeansAnotherNode) {
  const auto nodes = Make("a:1,b:1");
  Node& a = nodes->current();
  absl::Status busy = kDead;
  busy.SetPayload(kPushbackKey, absl::Cord("100"));
  for (const absl::Status& status :
       {busy, absl::NotFoundError(""), absl::PermissionDeniedError(""), absl::CancelledError("")}) {
    EXPECT_FALSE(nodes->Failed(a, status)) << status;
    EXPECT_EQ(&nodes->current(), &a) << status;
  }
  EXPECT_TRUE(nodes->Failed(a, kDead));
  EXPECT_EQ(nodes->current().address, "b:1");
}

TEST_F(NodesTest, CallsAskThePreferredNodeAndComeBack) {
  const auto nodes = Make("a:1,b:1");
  Node& a = nodes->current();
  nodes->Failed(a, kDead);
  clock_.Advance(NodeList::kRest);
  EXPECT_THAT(questions_, IsEmpty()) << "nobody called";
  EXPECT_EQ(nodes->current().address, "b:1");
  nodes->current();
  ASSERT_EQ(questions_.size(), 1u);
  EXPECT_EQ(questions_[0].address, "a:1");
  questions_[0].answer(false);
  nodes->current();
  EXPECT_EQ(questions_.size(), 1u) << "it rests";
  clock_.Advance(NodeList::kRest);
  nodes->current();
  ASSERT_EQ(questions_.size(), 2u);
  questions_[1].answer(true);
  EXPECT_EQ(&nodes->current(), &a);
  EXPECT_EQ(nodes->serving().changes, 2u);
}

TEST_F(NodesTest, ANodeThatIsLateIsAskedWhetherItLives) {
  const auto nodes = Make("a:1,b:1");
  Node& a = nodes->current();
  EXPECT_FALSE(nodes->Failed(a, absl::DeadlineExceededError("late")));
  ASSERT_EQ(questions_.size(), 1u);
  questions_[0].answer(true);
  EXPECT_EQ(&nodes->current(), &a);
  nodes->Failed(a, absl::DeadlineExceededError("late"));
  ASSERT_EQ(questions_.size(), 2u);
  questions_[1].answer(false);
  EXPECT_EQ(nodes->current().address, "b:1");
}

TEST_F(NodesTest, ALeaseIsItsNodes) {
  const auto nodes = Make("a:1,b:1");
  Node& a = nodes->current();
  nodes->NoteLease(a, 7);
  nodes->Failed(a, kDead);
  Node& b = nodes->current();
  EXPECT_EQ(nodes->LeaseAt(a, 7), 7u);
  EXPECT_EQ(nodes->LeaseAt(b, 7), 0u);
  EXPECT_EQ(nodes->LeaseAt(b, 8), 8u) << "another client's may be this node's";
  EXPECT_TRUE(nodes->MayNotKnow(b, 8));
  EXPECT_FALSE(nodes->MayNotKnow(a, 7));
  EXPECT_FALSE(nodes->MayNotKnow(b, 0));
  for (uint64_t lease = 100; lease < 100 + LeaseOwners::kMost; ++lease) nodes->NoteLease(b, lease);
  EXPECT_EQ(nodes->LeaseAt(b, 7), 7u) << "it was forgotten";
  EXPECT_EQ(nodes->LeaseAt(a, 100), 0u);
}

TEST_F(NodesTest, EveryAddressOfANameIsANode) {
  SetAddresses({"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"});
  const auto nodes = Make("dns:///fleet:1");
  EXPECT_TRUE(nodes->several());
  Await([&] { return nodes->serving().address == "10.0.0.3:1"; });
  EXPECT_EQ(nodes->current().address, "10.0.0.3:1") << "that is this host";
  EXPECT_THAT(made_, ElementsAre("fleet:1", "10.0.0.3:1=fleet"));
  nodes->Failed(nodes->current(), kDead);
  const std::vector<std::string> spread = SpreadBy("me", {"10.0.0.1:1", "10.0.0.2:1"});
  EXPECT_EQ(nodes->current().address, spread[0]);
}

TEST_F(NodesTest, ANameThatHasNoAddressYetIsTriedAsItIs) {
  const auto nodes = Make("dns:///fleet:1");
  Await([&] { return resolutions() == 1; });
  EXPECT_EQ(nodes->current().address, "fleet:1");
  EXPECT_FALSE(nodes->Failed(nodes->current(), kDead)) << "there is no other";
  EXPECT_EQ(resolutions(), 1) << "that was just now";
  SetAddresses({"10.0.0.7:1"});
  clock_.Advance(Nodes::kResolveAgain);
  // The thread that resolved may still be about to end.
  Await([&] {
    nodes->Failed(nodes->current(), kDead);
    return nodes->serving().address == "10.0.0.7:1";
  });
}

TEST_F(NodesTest, AddressesThatANameGetsReplaceThoseThatItHad) {
  SetAddresses({"10.0.0.1:1"});
  const auto nodes = Make("dns:///fleet:1,10.0.0.9:1");
  Await([&] { return nodes->serving().address == "10.0.0.1:1"; });
  SetAddresses({"10.0.0.2:1"});
  clock_.Advance(Nodes::kResolveAgain);
  Await([&] {
    Node& node = nodes->current();
    if (node.address == "10.0.0.1:1") nodes->Failed(node, kDead);
    nodes->Failed(node, kDead);
    return resolutions() > 1;
  });
  clock_.Advance(NodeList::kRest);
  Await([&] {
    nodes->current();
    for (Question& question : std::exchange(questions_, {})) question.answer(true);
    return nodes->serving().address == "10.0.0.2:1";
  });
}

TEST_F(NodesTest, AClosedClientMovesNoMore) {
  const auto nodes = Make("a:1,b:1");
  Node& a = nodes->current();
  nodes->Close();
  EXPECT_FALSE(nodes->Failed(a, kDead));
  EXPECT_EQ(&nodes->current(), &a);
  EXPECT_THAT(made_, ElementsAre("a:1"));
}

}  // namespace
}  // namespace kvstow
