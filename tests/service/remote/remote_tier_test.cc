// Two servers over one remote store: what one of them was given, the other one serves.
#include "service/remote/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/service/remote/memory_remote_store.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

constexpr int kPages = 5;

// One server's end of a store that several share.
class SharedRemote final : public RemoteStore {
 public:
  explicit SharedRemote(MemoryRemoteStore& store) : store_(store) {}
  std::string name() const override { return store_.name(); }
  bool holds_values() const override { return true; }
  void Get(std::vector<std::string> names, Time deadline, GetDone done) override {
    store_.Get(std::move(names), deadline, std::move(done));
  }
  void Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) override {
    store_.Put(std::move(values), ttl, deadline, std::move(done));
  }
  void Exists(std::vector<std::string> names, Time deadline, Done done) override {
    store_.Exists(std::move(names), deadline, std::move(done));
  }
  void Erase(std::vector<std::string> names, Time deadline, Done done) override {
    store_.Erase(std::move(names), deadline, std::move(done));
  }
  Counters counters() const override { return store_.counters(); }

 private:
  MemoryRemoteStore& store_;
};

struct Node {
  explicit Node(MemoryRemoteStore& remote, Config config = {}) {
    config.listen = "127.0.0.1:0";
    config.http_listen = "off";
    config.host_bytes = 64 << 20;
    config.log_level = "error";
    ServerOptions options;
    options.open_remote = [&remote] { return std::make_unique<SharedRemote>(remote); };
    server = Server::Start(config, options).value();
    client = std::make_unique<WireClient>(server->address());
  }
  void Open(const std::string& recipe) {
    const grpc::Status opened = client->OpenSpace("s", recipe);
    ASSERT_TRUE(opened.ok()) << opened.error_message();
  }
  void PutAll() {
    std::vector<PageIn> pages;
    for (int i = 0; i < kPages; ++i) pages.push_back(PageAt(i));
    for (const v1::PutResult& result : client->Put("s", pages).pages) {
      EXPECT_EQ(result.status(), v1::STORED) << result.message();
    }
    server->remote().Flush();
  }
  // The request for a call about the space.
  template <typename Request>
  Request About() {
    Request request;
    v1::OpenSpaceResponse opened;
    EXPECT_TRUE(client->FindSpace("s", &opened).ok());
    request.set_space("s");
    request.set_fingerprint(opened.fingerprint());
    return request;
  }
  void Delete(int i) {
    auto request = About<v1::DeleteRequest>();
    request.add_keys(KeyOf(i));
    v1::DeleteResponse response;
    EXPECT_TRUE(client->kv().Delete(client->Context().get(), request, &response).ok());
  }
  void Drop() {
    v1::DropSpaceResponse response;
    EXPECT_TRUE(client->kv()
                    .DropSpace(client->Context().get(), About<v1::DropSpaceRequest>(), &response)
                    .ok());
  }
  static PageIn PageAt(int i) {
    const KvSpec spec = SmallSpec();
    return {.key = KeyOf(i),
            .raw = RandomPage(spec, spec.page_tokens, static_cast<uint32_t>(i + 1)),
            .tokens = spec.page_tokens,
            .first_position = uint64_t{spec.page_tokens} * static_cast<uint64_t>(i)};
  }
  static std::string KeyOf(int i) { return absl::StrCat("page-", i); }
  static std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    for (int i = 0; i < kPages; ++i) keys.push_back(KeyOf(i));
    return keys;
  }
  v1::LookupResponse Lookup() { return client->Lookup("s", Keys(), false); }
  PageOut Get(int i) { return client->Get("s", {Ask(KeyOf(i))}).pages.at(0); }

  std::unique_ptr<Server> server;
  std::unique_ptr<WireClient> client;
};

class RemoteTierTest : public ::testing::Test {
 protected:
  std::string RecordOf(int page) { return Named(page, ":r"); }
  std::string SegmentOf(int page, int index) { return Named(page, absl::StrCat(":", index)); }
  // The name of a value of a page, which the first server put.
  std::string Named(int page, const std::string& end) {
    const auto space = FindSpace();
    const std::string name = RecordName("kvstow", TagOf(*space, 0, Node::KeyOf(page)));
    return name.substr(0, name.size() - 2) + end;
  }
  // The space as the servers know it; what names it is the same on all.
  std::shared_ptr<const Space> FindSpace() {
    v1::OpenSpaceResponse opened;
    EXPECT_TRUE(a_.client->FindSpace("s", &opened).ok());
    auto space = std::make_shared<Space>();
    space->name = "s";
    std::ranges::copy(opened.fingerprint(), space->fingerprint.begin());
    return space;
  }

  MemoryRemoteStore remote_;
  Node a_{remote_};
  Node b_{remote_};
};

TEST_F(RemoteTierTest, OneServerServesWhatAnotherWasGiven) {
  for (const char* recipe : {"raw"}) {
    a_.Open(recipe);
    b_.Open(recipe);
    a_.PutAll();
    const v1::LookupResponse found = b_.Lookup();
    ASSERT_EQ(found.pages(), static_cast<uint32_t>(kPages));
    EXPECT_EQ(found.tokens(), uint64_t{kPages} * SmallSpec().page_tokens);
    for (const v1::PageInfo& info : found.info()) {
      EXPECT_EQ(info.tier(), "remote");
      EXPECT_GT(info.levels(), 0u);
    }
    for (int i = 0; i < kPages; ++i) {
      const PageOut page = b_.Get(i);
      EXPECT_EQ(page.reply.status(), v1::HIT) << page.reply.message();
      EXPECT_TRUE(page.data == Node::PageAt(i).raw) << i;
    }
    EXPECT_EQ(b_.Lookup().info(0).tier(), "host") << "it is here now";
    EXPECT_EQ(b_.server->remote().counters().fetched_pages, static_cast<uint64_t>(kPages));
    EXPECT_EQ(b_.server->remote().counters().sent_pages, 0u) << "it came from there";
  }
}

TEST_F(RemoteTierTest, AGetWithoutALookupFetchesToo) {
  a_.Open("int8");
  b_.Open("int8");
  a_.PutAll();
  const PageOut page = b_.Get(2);
  EXPECT_TRUE(page.data == a_.Get(2).data);
  EXPECT_EQ(page.reply.tier(), "remote");
  EXPECT_EQ(b_.Get(2).reply.tier(), "host");
}

TEST_F(RemoteTierTest, TheRemotePagesFollowThoseThatAreHere) {
  a_.Open("raw");
  b_.Open("raw");
  b_.client->Put("s", {Node::PageAt(0), Node::PageAt(1)});
  b_.server->remote().Flush();
  a_.PutAll();
  EXPECT_EQ(a_.server->remote().counters().already_there, 2u) << "sent once";
  const v1::LookupResponse found = b_.Lookup();
  ASSERT_EQ(found.pages(), static_cast<uint32_t>(kPages));
  EXPECT_EQ(found.info(1).tier(), "host");
  EXPECT_EQ(found.info(2).tier(), "remote");
}

TEST_F(RemoteTierTest, AHoleEndsThePrefix) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(remote_.Drop(RecordOf(3)));
  EXPECT_EQ(b_.Lookup().pages(), 3u);
  EXPECT_EQ(b_.Get(3).reply.status(), v1::MISS);
  EXPECT_TRUE(b_.Get(4).data == Node::PageAt(4).raw);
}

TEST_F(RemoteTierTest, MissingRefinementsMakeAPageCoarserAndAMissingBaseAMiss) {
  a_.Open("rotated8");
  b_.Open("rotated8");
  a_.PutAll();
  const uint32_t all = a_.Get(0).reply.levels();
  ASSERT_GT(all, 1u);
  int last = 0;
  while (remote_.Peek(SegmentOf(0, last + 1)).has_value()) ++last;
  ASSERT_TRUE(remote_.Drop(SegmentOf(0, last)));
  ASSERT_TRUE(remote_.Drop(SegmentOf(1, 0)));
  const PageOut coarse = b_.Get(0);
  EXPECT_EQ(coarse.reply.status(), v1::HIT) << coarse.reply.message();
  EXPECT_LT(coarse.reply.levels(), all);
  EXPECT_EQ(b_.server->remote().counters().coarser_pages, 1u);
  EXPECT_EQ(b_.Get(1).reply.status(), v1::MISS);
}

TEST_F(RemoteTierTest, AValueThatIsDamagedOrElsewhereIsAMissAndGoes) {
  a_.Open("int8");
  b_.Open("int8");
  a_.PutAll();
  ASSERT_TRUE(remote_.Corrupt(SegmentOf(0, 0), 1000));
  ASSERT_TRUE(remote_.Swap(SegmentOf(1, 0), SegmentOf(2, 0)));
  ASSERT_TRUE(remote_.Truncate(RecordOf(3), 40));
  ASSERT_TRUE(remote_.Swap(RecordOf(4), SegmentOf(4, 0)));
  for (int i = 0; i < kPages; ++i) {
    EXPECT_EQ(b_.Get(i).reply.status(), v1::MISS) << i;
  }
  EXPECT_EQ(b_.server->remote().counters().damaged_values, 5u);
  EXPECT_FALSE(remote_.Peek(SegmentOf(0, 0)).has_value());
  EXPECT_FALSE(remote_.Peek(RecordOf(3)).has_value());
}

TEST_F(RemoteTierTest, ARemoteStoreThatIsDownCostsHitsThereAndNothingElse) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  b_.client->Put("s", {Node::PageAt(0)});
  remote_.FailAll(absl::UnavailableError("down"));
  EXPECT_EQ(b_.Lookup().pages(), 1u);
  EXPECT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  EXPECT_EQ(b_.Get(1).reply.status(), v1::MISS);
  remote_.FailAll(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return b_.Lookup().pages() == kPages; })) << "it comes back";
}

TEST_F(RemoteTierTest, AMissThatWasJustAskedForIsNotAskedForAgain) {
  a_.Open("raw");
  b_.Open("raw");
  EXPECT_EQ(b_.Lookup().pages(), 0u);
  const uint64_t before = remote_.counters().commands;
  EXPECT_EQ(b_.Lookup().pages(), 0u);
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
  EXPECT_EQ(remote_.counters().commands, before);
}

TEST_F(RemoteTierTest, ThoseThatWantOnePageFetchItOnce) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  const uint64_t before = b_.server->remote().counters().fetched_pages;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] { EXPECT_TRUE(b_.Get(0).data == Node::PageAt(0).raw); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(b_.server->remote().counters().fetched_pages, before + 1);
}

TEST_F(RemoteTierTest, ADeletedPageGoesThereToo) {
  a_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(remote_.Peek(RecordOf(0)).has_value());
  a_.Delete(0);
  a_.server->remote().Flush();
  EXPECT_FALSE(remote_.Peek(RecordOf(0)).has_value());
  EXPECT_FALSE(remote_.Peek(SegmentOf(0, 0)).has_value());
  EXPECT_TRUE(remote_.Peek(RecordOf(1)).has_value());
}

TEST_F(RemoteTierTest, ADeleteReachesTheOtherServer) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  ASSERT_TRUE(b_.Get(1).data == Node::PageAt(1).raw);
  a_.Delete(0);
  b_.Delete(2);  // at the same time: neither is lost
  a_.server->remote().Flush();
  b_.server->remote().Flush();
  a_.server->remote().Flush();
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
  EXPECT_EQ(a_.Get(2).reply.status(), v1::MISS);
  EXPECT_TRUE(b_.Get(1).data == Node::PageAt(1).raw);
  EXPECT_TRUE(a_.Get(1).data == Node::PageAt(1).raw);
}

TEST_F(RemoteTierTest, ADropReachesTheOtherServerAndOldPagesDoNotComeBack) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  a_.Drop();
  a_.server->remote().Flush();
  b_.server->remote().Flush();
  EXPECT_EQ(b_.Lookup().pages(), 0u);
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
  a_.Open("raw");
  EXPECT_EQ(a_.Lookup().pages(), 0u) << "what is left of the old space is another generation's";
  a_.PutAll();
  EXPECT_TRUE(Eventually([&] { return b_.Lookup().pages() == kPages; }))
      << "the new pages are found, once it is forgotten that they were not there";
}

TEST_F(RemoteTierTest, AServerThatStartsLaterMeetsNoPageOfADroppedSpace) {
  a_.Open("raw");
  a_.PutAll();
  a_.Drop();
  a_.server->remote().Flush();
  Node c(remote_);
  c.Open("raw");
  EXPECT_EQ(c.Lookup().pages(), 0u);
}

TEST_F(RemoteTierTest, WithoutAnAnswerOfTheStoreADropIsToldLater) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
  remote_.FailAll(absl::UnavailableError("down"));
  a_.Drop();
  a_.Open("raw");
  EXPECT_EQ(a_.Lookup().pages(), 0u) << "the old pages are not found meanwhile";
  remote_.FailAll(absl::OkStatus());
  a_.server->remote().Flush();
  b_.server->remote().Flush();
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
}

TEST_F(RemoteTierTest, APageIsSentInItsColdForm) {
  a_.Open("hot=raw,cold=int8");
  b_.Open("hot=raw,cold=int8");
  a_.PutAll();
  EXPECT_EQ(a_.Get(0).reply.recipe(), "raw") << "here it stays as it is";
  const PageOut page = b_.Get(0);
  EXPECT_EQ(page.reply.status(), v1::HIT) << page.reply.message();
  EXPECT_TRUE(absl::StrContains(page.reply.recipe(), "int8") || !page.reply.exact());
}

TEST_F(RemoteTierTest, ASpaceIsOpenedByItsNameOnTheOtherServer) {
  a_.Open("hot=int8,cold=rotated8");
  a_.PutAll();
  v1::OpenSpaceResponse there, here;
  ASSERT_TRUE(a_.client->FindSpace("s", &there).ok());
  ASSERT_TRUE(b_.client->FindSpace("s", &here).ok());
  EXPECT_EQ(here.fingerprint(), there.fingerprint());
  EXPECT_EQ(here.pipeline(), there.pipeline());
  EXPECT_EQ(b_.Lookup().pages(), static_cast<uint32_t>(kPages));
  EXPECT_FALSE(b_.client->FindSpace("t").ok());
}

TEST_F(RemoteTierTest, PagesOfAPrivateSpaceStayHere) {
  v1::OpenSpaceRequest request;
  request.set_space("s");
  a_.Open("raw");
  request.set_space("mine");
  request.set_is_private(true);
  v1::OpenSpaceResponse opened;
  v1::OpenSpaceResponse s;
  ASSERT_TRUE(a_.client->FindSpace("s", &s).ok());
  *request.mutable_spec() = s.spec();
  ASSERT_TRUE(a_.client->kv().OpenSpace(a_.client->Context().get(), request, &opened).ok());
  ASSERT_TRUE(a_.client->FindSpace("mine").ok());
  const auto before = remote_.names();
  a_.client->Put("mine", {Node::PageAt(0)});
  a_.server->remote().Flush();
  EXPECT_EQ(remote_.names(), before);
}

// Two servers and a store that forgets, damages, swaps, fails and is emptied. Each read is the very
// page or a miss; a page that was deleted stays away from both once they were told.
class RandomRemoteTest : public RemoteTierTest, public ::testing::WithParamInterface<uint32_t> {
 protected:
  // Some 400, or as many as KVSTOW_REMOTE_STEPS says.
  static int Steps() {
    const char* const text = std::getenv("KVSTOW_REMOTE_STEPS");
    return text == nullptr ? 400 : std::atoi(text);
  }

  int Any(size_t below) { return static_cast<int>(random_() % below); }
  Node& AnyNode() { return Any(2) == 0 ? a_ : b_; }
  std::string AnyName() {
    const std::vector<std::string> names = remote_.names();
    return names.empty() ? "" : names[static_cast<size_t>(Any(names.size()))];
  }
  void Hurt() {
    switch (Any(6)) {
      case 0:
        remote_.FailNext(absl::UnavailableError("away"), 1 + Any(3));
        break;
      case 1:
        remote_.Drop(AnyName());
        break;
      case 2:
        remote_.Corrupt(AnyName(), static_cast<size_t>(Any(100'000)));
        break;
      case 3:
        remote_.Swap(AnyName(), AnyName());
        break;
      case 4:
        remote_.Truncate(AnyName(), static_cast<size_t>(Any(100)));
        break;
      default:
        if (Any(10) == 0) remote_.DropAll();
    }
  }
  void Read(Node& node, int page) {
    const PageOut out = node.Get(page);
    if (out.reply.status() == v1::HIT) {
      ++hits_;
      EXPECT_TRUE(out.data == Node::PageAt(page).raw) << "page " << page;
      EXPECT_FALSE(deleted_[page]) << "page " << page << " was deleted";
    } else {
      EXPECT_EQ(out.reply.status(), v1::MISS) << out.reply.message();
    }
  }
  void Step() {
    const int page = Any(kPages);
    switch (Any(8)) {
      case 0:
      case 1: {
        const auto put = AnyNode().client->Put("s", {Node::PageAt(page)}).pages.at(0);
        EXPECT_TRUE(put.status() == v1::STORED || put.status() == v1::ALREADY_THERE);
        deleted_[page] = false;
        break;
      }
      case 2:
        AnyNode().Lookup();
        break;
      case 3:
        Hurt();
        break;
      case 4:
        if (Any(4) == 0) {
          remote_.FailNext(absl::OkStatus(), 0);
          const bool by_a = Any(2) == 0;
          (by_a ? a_ : b_).Delete(page);
          (by_a ? a_ : b_).server->remote().Flush();  // it tells
          (by_a ? b_ : a_).server->remote().Flush();  // and the other listens
          deleted_[page] = true;
        }
        break;
      default:
        Read(AnyNode(), page);
    }
  }

  std::mt19937 random_{GetParam()};
  bool deleted_[kPages] = {};
  int hits_ = 0;
};

TEST_P(RandomRemoteTest, EveryReadIsThePageOrAMiss) {
  a_.Open("raw");
  b_.Open("raw");
  for (int i = 0; i < Steps() && !HasFailure(); ++i) Step();
  EXPECT_GT(hits_, Steps() / 20);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomRemoteTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace kvstow::testing
