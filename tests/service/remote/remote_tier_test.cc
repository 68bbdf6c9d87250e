// Two servers over one remote store: what one of them was given, the other one serves. Values are
// in clear, or sealed.
#include "service/remote/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/remote/remote_key_record.h"
#include "tests/service/remote/blocking_remote.h"
#include "tests/service/remote/remote_node.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::testing {
namespace {

enum class Values { kClear, kSealed };
std::string NameOfValues(Values values) { return values == Values::kClear ? "clear" : "sealed"; }

class RemoteTierFixture : public ::testing::Test {
 protected:
  explicit RemoteTierFixture(Values values)
      : config_(values == Values::kSealed ? SealedBy(1) : Config()) {}
  std::string RecordOf(int page) { return Named(page, ":r"); }
  std::string SegmentOf(int page, int index) { return Named(page, absl::StrCat(":", index)); }
  // The name of a value of a page, which the first server put.
  std::string Named(int page, const std::string& end) {
    const auto space = FindSpace();
    const RemotePlace place = PlaceOf(*space, {.generation = 0, .key = Key()}, Node::KeyOf(page));
    const std::string name = RecordName("kvstow", place.tag);
    return name.substr(0, name.size() - 2) + end;
  }
  // The key that seals values now.
  RemoteKeyPtr Key() {
    if (config_.master_key.empty()) return nullptr;
    const auto value = remote_.Peek(KeyName("kvstow", KeyTagOf("")));
    const auto record = ParseKeyRecord("", SharedBytes::Take(value.value_or("")));
    return Unwrap(ReadMasterKeys(config_.master_key).value(), "", record.value()).value();
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

  const Config config_;
  MemoryRemoteStore remote_;
  Node a_{remote_, config_};
  Node b_{remote_, config_};
};

class RemoteTierTest : public RemoteTierFixture, public ::testing::WithParamInterface<Values> {
 protected:
  RemoteTierTest() : RemoteTierFixture(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Values, RemoteTierTest, ::testing::Values(Values::kClear, Values::kSealed),
                         [](const auto& info) { return NameOfValues(info.param); });

TEST_P(RemoteTierTest, OneServerServesWhatAnotherWasGiven) {
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

TEST_P(RemoteTierTest, AGetWithoutALookupFetchesToo) {
  a_.Open("int8");
  b_.Open("int8");
  a_.PutAll();
  const PageOut page = b_.Get(2);
  EXPECT_TRUE(page.data == a_.Get(2).data);
  EXPECT_EQ(page.reply.tier(), "remote");
  EXPECT_EQ(b_.Get(2).reply.tier(), "host");
}

TEST_P(RemoteTierTest, TheRemotePagesFollowThoseThatAreHere) {
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

// Before it, a look-up waits for the space's generation, once.
TEST_P(RemoteTierTest, ALookupReadsAllRecordsInOneRoundTrip) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  std::vector<std::string> keys = Node::Keys();
  while (keys.size() < 512) keys.push_back(absl::StrCat("nowhere-", keys.size()));
  EXPECT_EQ(b_.client->Lookup("s", keys, false).pages(), static_cast<uint32_t>(kPages));
  EXPECT_EQ(b_.record_reads, 1);
}

TEST_P(RemoteTierTest, AHoleEndsThePrefix) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(remote_.Drop(RecordOf(3)));
  EXPECT_EQ(b_.Lookup().pages(), 3u);
  EXPECT_EQ(b_.Get(3).reply.status(), v1::MISS);
  EXPECT_TRUE(b_.Get(4).data == Node::PageAt(4).raw);
}

TEST_P(RemoteTierTest, MissingRefinementsMakeAPageCoarserAndAMissingBaseAMiss) {
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
  EXPECT_TRUE(remote_.Peek(RecordOf(0)).has_value());
  EXPECT_FALSE(remote_.Peek(RecordOf(1)).has_value()) << "nobody could ever fetch it";
  b_.client->Put("s", {Node::PageAt(1)});
  b_.server->remote().Flush();
  EXPECT_TRUE(remote_.Peek(RecordOf(1)).has_value()) << "it is sent again";
}

TEST_P(RemoteTierTest, AFullQueueSaysNothingOfThePage) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  remote_.FailName(SegmentOf(0, 0), absl::ResourceExhaustedError("full"));
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
  remote_.FailName(SegmentOf(0, 0), absl::OkStatus());
  EXPECT_EQ(b_.Get(0).reply.status(), v1::HIT);
}

TEST_P(RemoteTierTest, ALookupAsksForSoManyKeysAtMost) {
  b_.Open("raw");
  std::vector<std::string> keys;
  while (keys.size() < RemoteTier::kMostAsked + 1) keys.push_back(absl::StrCat(keys.size()));
  EXPECT_EQ(b_.client->Lookup("s", keys, false).pages(), 0u);
  EXPECT_EQ(b_.server->remote().counters().asked_keys, RemoteTier::kMostAsked);
}

TEST_P(RemoteTierTest, AFetchThatNobodyWantsAnyMoreLeavesThePageThatWasHere) {
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  b_.client->Put("s", {Node::PageAt(0)});
  const auto here = b_.server->store().residency().Pages(0);
  ASSERT_EQ(here.size(), 1u);
  auto space = std::make_shared<Space>(*FindSpace());
  space->id = here[0].space;
  RemoteCounters counters;
  RemoteRecords records("kvstow", remote_, counters, Clock::Real());
  {
    RemoteFetches fetches(
        {"kvstow", std::chrono::seconds(2), 1 << 30}, remote_, records, b_.server->store(),
        counters, Clock::Real(), [](const auto&, const auto&, const auto&) { return false; },
        [](const auto&, const auto&) {});
    for (int i = 0; i < 2; ++i) {
      const std::string key = Node::KeyOf(i);
      const RemoteRecords::Page page{key, PlaceOf(*space, {.generation = 0, .key = Key()}, key)};
      records.Find({page}, Clock::Real().Now() + std::chrono::seconds(2),
                   [&](const std::vector<RemoteRecord>& found) {
                     ASSERT_EQ(found.size(), 1u);
                     fetches.Ahead(space, page, found[0]);
                   });
    }
  }
  EXPECT_EQ(b_.server->store().residency().Pages(0).size(), 1u);
  EXPECT_EQ(counters.fetched_pages, 2u);
  EXPECT_TRUE(b_.Get(0).data == Node::PageAt(0).raw);
}

TEST_P(RemoteTierTest, AValueThatIsDamagedOrElsewhereIsAMissAndGoes) {
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

TEST_P(RemoteTierTest, ARemoteStoreThatIsDownCostsHitsThereAndNothingElse) {
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

TEST_P(RemoteTierTest, AMissThatWasJustAskedForIsNotAskedForAgain) {
  a_.Open("raw");
  b_.Open("raw");
  EXPECT_EQ(b_.Lookup().pages(), 0u);
  const uint64_t before = remote_.counters().commands;
  EXPECT_EQ(b_.Lookup().pages(), 0u);
  EXPECT_EQ(b_.Get(0).reply.status(), v1::MISS);
  EXPECT_EQ(remote_.counters().commands, before);
}

TEST_P(RemoteTierTest, ThoseThatWantOnePageFetchItOnce) {
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

TEST_P(RemoteTierTest, ADeletedPageGoesThereToo) {
  a_.Open("raw");
  a_.PutAll();
  ASSERT_TRUE(remote_.Peek(RecordOf(0)).has_value());
  a_.Delete(0);
  a_.server->remote().Flush();
  EXPECT_FALSE(remote_.Peek(RecordOf(0)).has_value());
  EXPECT_FALSE(remote_.Peek(SegmentOf(0, 0)).has_value());
  EXPECT_TRUE(remote_.Peek(RecordOf(1)).has_value());
}

TEST_P(RemoteTierTest, ADeleteReachesTheOtherServer) {
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

TEST_P(RemoteTierTest, ADropReachesTheOtherServerAndOldPagesDoNotComeBack) {
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

TEST_P(RemoteTierTest, AServerThatStartsLaterMeetsNoPageOfADroppedSpace) {
  a_.Open("raw");
  a_.PutAll();
  a_.Drop();
  a_.server->remote().Flush();
  Node c(remote_, config_);
  c.Open("raw");
  EXPECT_EQ(c.Lookup().pages(), 0u);
}

TEST_P(RemoteTierTest, PagesThatWerePutBeforeTheFirstReadingOfTheRecordStay) {
  a_.Open("raw");
  a_.PutAll();
  a_.Drop();
  a_.server->remote().Flush();
  Node c(remote_, config_);
  c.Open("raw");
  c.PutAll();
  for (int i = 0; i < kPages; ++i) EXPECT_EQ(c.Get(i).reply.tier(), "host") << i;
  Node d(remote_, config_);
  remote_.FailAll(absl::UnavailableError("down"));
  d.Open("raw");
  d.PutAll();
  remote_.FailAll(absl::OkStatus());
  d.server->remote().Flush();
  for (int i = 0; i < kPages; ++i) EXPECT_EQ(d.Get(i).reply.tier(), "host") << i;
}

TEST_P(RemoteTierTest, AServerThatComesBackDropsWhatItsDiskHasOfADroppedSpace) {
  const TempDir folder;
  Config config = config_;
  config.disk_path = folder.path() + "/disk";
  config.disk_bytes = 64 << 20;
  a_.Open("raw");
  {
    Node c(remote_, config);
    c.Open("raw");
    c.PutAll();
  }
  {
    Node c(remote_, config);
    c.Open("raw");
    EXPECT_EQ(c.Lookup().info(0).tier(), "disk") << "nothing was dropped yet";
  }
  a_.Drop();
  a_.server->remote().Flush();
  {
    Node c(remote_, config);
    c.server->remote().Flush();
    EXPECT_TRUE(c.server->store().residency().Pages(0).empty()) << "before anybody asks";
    c.Open("raw");
    c.PutAll();
    EXPECT_EQ(c.Lookup().pages(), static_cast<uint32_t>(kPages));
  }
  Node c(remote_, config);
  c.server->remote().Flush();
  EXPECT_EQ(c.server->store().residency().Pages(0).size(), static_cast<size_t>(kPages))
      << "they were put after the drop";
}

TEST_P(RemoteTierTest, ADroppedSpaceIsNotOpenedByItsName) {
  a_.Open("raw");
  a_.PutAll();
  a_.Drop();
  a_.server->remote().Flush();
  EXPECT_FALSE(b_.client->FindSpace("s").ok());
  a_.Open("int8");
  a_.Drop();
  a_.Open("raw");  // at once
  a_.server->remote().Flush();
  v1::OpenSpaceResponse there;
  ASSERT_TRUE(b_.client->FindSpace("s", &there).ok());
  EXPECT_EQ(there.recipe(), "raw");
}

TEST_P(RemoteTierTest, WithoutAnAnswerOfTheStoreADropIsToldLater) {
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

TEST_P(RemoteTierTest, APageIsSentInItsColdForm) {
  a_.Open("hot=raw,cold=int8");
  b_.Open("hot=raw,cold=int8");
  a_.PutAll();
  EXPECT_EQ(a_.Get(0).reply.recipe(), "raw") << "here it stays as it is";
  const PageOut page = b_.Get(0);
  EXPECT_EQ(page.reply.status(), v1::HIT) << page.reply.message();
  EXPECT_TRUE(absl::StrContains(page.reply.recipe(), "int8") || !page.reply.exact());
}

TEST_P(RemoteTierTest, ASpaceIsOpenedByItsNameOnTheOtherServer) {
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

TEST_P(RemoteTierTest, ADamagedRecordOfASpaceGoesAndOneOfALaterVersionStays) {
  a_.Open("raw");
  a_.server->remote().Flush();
  const std::string name = SpaceName("kvstow", PlaceAt(NameTagOf("", "s"), Key()).tag);
  const auto later = [&] {
    std::string value = remote_.Peek(name).value_or("");
    value.at(4) = 9;  // the version
    return value;
  }();
  ASSERT_TRUE(BlockingRemote(remote_).PutText(name, later).ok());
  EXPECT_FALSE(b_.client->FindSpace("s").ok());
  EXPECT_EQ(remote_.Peek(name), later);
  EXPECT_EQ(b_.server->remote().counters().damaged_values, 0u);
  std::string damaged = later;
  damaged[0] = 'x';
  ASSERT_TRUE(BlockingRemote(remote_).PutText(name, damaged).ok());
  EXPECT_FALSE(b_.client->FindSpace("s").ok());
  EXPECT_FALSE(remote_.Peek(name).has_value());
  EXPECT_EQ(b_.server->remote().counters().damaged_values, 1u);
}

TEST_P(RemoteTierTest, ATenantThatSentAllThatItMayKeepsItsPagesHere) {
  v1::SetQuotaRequest request;
  v1::SetQuotaResponse response;
  const uint64_t page = Node::PageAt(0).raw.size();
  request.mutable_limits()->set_remote_bytes(page * 5 / 2);  // a raw page is a little larger
  ASSERT_TRUE(a_.client->admin().SetQuota(a_.client->Context().get(), request, &response).ok());
  a_.Open("raw");
  b_.Open("raw");
  a_.PutAll();
  EXPECT_EQ(a_.server->remote().counters().sent_pages, 2u);
  EXPECT_EQ(a_.server->remote().counters().over_budget, static_cast<uint64_t>(kPages) - 2);
  EXPECT_EQ(a_.server->remote().counters().unsent_pages, 0u);
  EXPECT_EQ(a_.Lookup().pages(), static_cast<uint32_t>(kPages)) << "here nothing is missing";
  int hits = 0;
  for (int i = 0; i < kPages; ++i) hits += b_.Get(i).reply.status() == v1::HIT ? 1 : 0;
  EXPECT_EQ(hits, 2);
}

TEST_P(RemoteTierTest, PagesOfAPrivateSpaceStayHere) {
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
struct RandomCase {
  Values values;
  uint32_t seed;
};
class RandomRemoteTest : public RemoteTierFixture,
                         public ::testing::WithParamInterface<RandomCase> {
 protected:
  RandomRemoteTest() : RemoteTierFixture(GetParam().values) {}
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
  // A key or purge record of another version is no damage, as nobody writes over it. So the first
  // eight bytes stay, which say what version a value has. Values change places: those of all stay.
  void Corrupt(const std::string& name, size_t at) {
    constexpr size_t kHead = 8;
    const size_t size = remote_.Peek(name).value_or("").size();
    if (size > kHead) remote_.Corrupt(name, kHead + at % (size - kHead));
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
        Corrupt(AnyName(), static_cast<size_t>(Any(100'000)));
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
          // Both may make a key at once: then it is told once more, under the one that won.
          for (int told = 0; told < (config_.master_key.empty() ? 1 : 2); ++told) {
            (by_a ? a_ : b_).server->remote().Flush();  // it tells
            (by_a ? b_ : a_).server->remote().Flush();  // and the other listens
          }
          deleted_[page] = true;
        }
        break;
      default:
        Read(AnyNode(), page);
    }
  }

  std::mt19937 random_{GetParam().seed};
  bool deleted_[kPages] = {};
  int hits_ = 0;
};

TEST_P(RandomRemoteTest, EveryReadIsThePageOrAMiss) {
  a_.Open("raw");
  b_.Open("raw");
  for (int i = 0; i < Steps() && !HasFailure(); ++i) Step();
  EXPECT_GT(hits_, Steps() / 20);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomRemoteTest,
                         ::testing::Values(RandomCase{Values::kClear, 1},
                                           RandomCase{Values::kClear, 2},
                                           RandomCase{Values::kSealed, 3},
                                           RandomCase{Values::kSealed, 4}),
                         [](const auto& info) {
                           return absl::StrCat(NameOfValues(info.param.values), info.param.seed);
                         });

}  // namespace
}  // namespace kvstow::testing
