// Calibrations through the remote store: a server without the blob serves pages that need it.
#include "service/remote/remote_calibrations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/codec/parse_recipe.h"
#include "proto/wire/spec.h"
#include "service/keys/key_ring.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/service/remote/blocking_remote.h"
#include "tests/service/remote/remote_node.h"
#include "tests/storage/temp_dir.h"
#include "tests/storage/test_keys.h"

namespace kvstow::testing {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

constexpr char kRecipe[] = "kvstow-cal(run=2)";
constexpr uint32_t kTokens = 128;

const std::string& Blob() {
  static const std::string blob = FitCorrelated(CorrelatedSpec(), 2).value();
  return blob;
}

CalibrationId IdOfBlob() {
  const Sha256Digest digest = Sha256(AsBytes(Blob()));
  CalibrationId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

KvSpec SpecOfTest() {
  KvSpec spec = CorrelatedSpec();
  spec.revision = "1";
  return spec;
}

// The parts of a server that give and take calibrations.
struct Giver {
  Giver(MemoryRemoteStore& store, bool has_blob, std::shared_ptr<MasterKeys> masters = nullptr,
        const std::string& disk = "", std::shared_ptr<DataKeys> data_keys = NoDataKeys(),
        uint64_t most_fitted_bytes = Calibrations::kMaxFittedBytes)
      : calibrations("", disk, std::move(data_keys), most_fitted_bytes),
        keys(
            "p", store, std::move(masters), [](const auto&) {}, counters),
        remote({.prefix = "p",
                .wait = std::chrono::seconds(5),
                .ttl = std::chrono::hours(1),
                .part_bytes = 1 << 10},
               store, keys, spaces, calibrations, counters) {
    if (has_blob) calibrations.Add(AsBytes(Blob())).value();
  }
  bool has() const { return calibrations.store().Find(IdOfBlob()) != nullptr; }
  // A space that needs the calibration.
  absl::Status Open(const std::string& tenant, std::optional<bool> is_private = {}) {
    return spaces
        .Open({.tenant = tenant},
              {.name = "s", .spec = SpecOfTest(), .recipe = kRecipe, .is_private = is_private})
        .status();
  }
  static std::string Named() {
    return absl::StrCat("kvstow-cal(run=2,blob=", HexOf(IdOfBlob()), ")");
  }

  RemoteCounters counters;
  Calibrations calibrations;
  SpaceId last_id = 0;
  Spaces spaces{{},
                calibrations,
                [this] { return ++last_id; },
                [](const SpaceRecord&) { return absl::OkStatus(); }};
  RemoteKeys keys;
  RemoteCalibrations remote;
};

class RemoteCalibrationsTest : public ::testing::TestWithParam<uint8_t> {
 protected:
  RemoteCalibrationsTest()
      : masters_(GetParam() == 0 ? nullptr : MasterKeys::Open(MasterKeyOf(GetParam())).value()) {}
  std::vector<std::string> NamesWith(const std::string& part) {
    std::vector<std::string> out;
    for (const std::string& name : store_.names()) {
      if (absl::StrContains(name, part)) out.push_back(name);
    }
    return out;
  }
  // Gives the store what a server fitted to a space, and returns its name.
  CalibrationId GiveFitted() {
    const auto opened = a_.spaces.Open({}, {.name = "s", .spec = SpecOfTest(), .recipe = "auto"});
    EXPECT_TRUE(opened.ok()) << opened.status();
    const FitOwner owner = FitOwnerOf(*opened->space);
    const CalibrationId id = *a_.calibrations.AddFitted(owner, AsBytes(FittedBlob(owner)));
    const std::string named = absl::StrCat("kvstow-cal(run=2,blob=", HexOf(id), ")");
    const auto codec = a_.calibrations.CodecOf(*ParseRecipe(named), SpecOfTest());
    EXPECT_TRUE(codec.ok()) << codec.status();
    opened->space->fitted->Set(*codec, {});
    a_.remote.Flush();
    return id;
  }
  static std::string FittedBlob(const FitOwner& owner) {
    return *WithFitNote(AsBytes(Blob()), {owner.name, 1, kRecipe});
  }
  // Has the server look, and returns whether it read about as many bytes as the blob has.
  bool ReadsTheBlob(Giver& server) {
    const uint64_t before = store_.counters().bytes_in;
    server.remote.Flush();
    return store_.counters().bytes_in - before > Blob().size() / 2;
  }
  // Gives the blob to the store.
  void Give() {
    ASSERT_TRUE(a_.Open("").ok());
    a_.remote.Flush();
    ASSERT_GT(NamesWith("}:c").size(), 3u) << "in parts";
  }

  MemoryRemoteStore store_;
  const std::shared_ptr<MasterKeys> masters_;
  Giver a_{store_, true, masters_};
};
INSTANTIATE_TEST_SUITE_P(Values, RemoteCalibrationsTest, ::testing::Values(0, 1),
                         [](const auto& info) { return info.param == 0 ? "clear" : "sealed"; });

// Pages of a space of recipe `auto` name what their server fitted.
TEST_P(RemoteCalibrationsTest, WhatAServerFittedGoesToThoseWhosePagesNameIt) {
  const auto opened = a_.spaces.Open({}, {.name = "s", .spec = SpecOfTest(), .recipe = "auto"});
  ASSERT_TRUE(opened.ok()) << opened.status();
  a_.remote.Flush();
  EXPECT_THAT(NamesWith("}:c"), IsEmpty()) << "nothing is fitted yet";
  const auto codec = a_.calibrations.CodecOf(*ParseRecipe(Giver::Named()), SpecOfTest());
  ASSERT_TRUE(codec.ok()) << codec.status();
  opened->space->fitted->Set(*codec, {});
  a_.remote.Flush();
  Giver b{store_, false, masters_};
  b.remote.Want("", CalibrationId{1});  // there is none
  b.remote.Want("other", IdOfBlob());   // and none of that tenant
  b.remote.Flush();
  EXPECT_FALSE(b.has());
  b.remote.Want("", IdOfBlob());
  b.remote.Flush();
  EXPECT_TRUE(b.has());
}

// What a server fitted tells of pages, on the disk of another one too.
TEST_P(RemoteCalibrationsTest, WhatAServerFittedIsSealedOnTheDiskOfAnother) {
  const CalibrationId id = GiveFitted();
  const TempDir disk;
  std::shared_ptr<DataKeys> data_keys = NoDataKeys();
  if (masters_ != nullptr) data_keys = *KeyRing::Open(disk.path(), masters_);
  Giver b(store_, false, masters_, disk.path(), data_keys);
  b.remote.Want("", id);
  b.remote.Flush();
  EXPECT_NE(b.calibrations.store().Find(id), nullptr);
  EXPECT_EQ(AsString(b.calibrations.Blob(id).value().span()),
            AsString(a_.calibrations.Blob(id).value().span()));
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(disk.path() + "/calibrations")) {
    std::ifstream in(file.path(), std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(absl::StrContains(files[0], Blob().substr(Blob().size() / 2, 64)), GetParam() == 0);
}

// Tables may have gigabytes, and pages ask for them again and again.
TEST_P(RemoteCalibrationsTest, TablesThatThereIsNoRoomForAreNotRead) {
  const CalibrationId id = GiveFitted();
  Giver b(store_, false, masters_, "", NoDataKeys(), /*most_fitted_bytes=*/100);
  b.remote.Want("", id);
  EXPECT_FALSE(ReadsTheBlob(b));
  EXPECT_EQ(b.calibrations.store().Find(id), nullptr);
  EXPECT_EQ(b.counters.damaged_values, 0u);
  Giver c(store_, false, masters_);
  c.remote.Want("", id);
  EXPECT_TRUE(ReadsTheBlob(c));
  EXPECT_NE(c.calibrations.store().Find(id), nullptr);
}

TEST_P(RemoteCalibrationsTest, TablesThatMayNotBeWrittenAreNotRead) {
  const CalibrationId id = GiveFitted();
  const auto locked = std::make_shared<TestKeys>();
  locked->locked = true;
  const TempDir disk;
  Giver b(store_, false, masters_, disk.path(), locked);
  b.remote.Want("", id);
  EXPECT_FALSE(ReadsTheBlob(b));
  locked->locked = false;
  EXPECT_TRUE(ReadsTheBlob(b)) << "the key came";
  EXPECT_NE(b.calibrations.store().Find(id), nullptr);
}

TEST_P(RemoteCalibrationsTest, WhatWasReadAndRefusedIsNotReadAgainSoon) {
  const CalibrationId id = GiveFitted();
  const TempDir disk;
  std::ofstream(disk.path() + "/calibrations") << "where the folder should be";
  Giver b(store_, false, masters_, disk.path());
  b.remote.Want("", id);
  EXPECT_TRUE(ReadsTheBlob(b));
  EXPECT_FALSE(ReadsTheBlob(b));
  b.remote.Want("", id);
  EXPECT_FALSE(ReadsTheBlob(b)) << "a page named it again";
  EXPECT_EQ(b.calibrations.store().Find(id), nullptr);
}

TEST_P(RemoteCalibrationsTest, ABlobComesInPartsAndStaysOnDisk) {
  Give();
  const TempDir disk;
  Giver b(store_, false, masters_, disk.path());
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 1u);
  EXPECT_TRUE(b.has());
  EXPECT_EQ(AsString(b.calibrations.Blob(IdOfBlob()).value().span()), Blob());
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 0u) << "it is here";
  EXPECT_EQ(b.counters.fetched_calibrations, 1u);
  EXPECT_EQ(a_.counters.sent_calibrations, 1u);
  EXPECT_TRUE(std::filesystem::exists(
      absl::StrCat(disk.path(), "/calibrations/", HexOf(IdOfBlob()), ".kvcal")));
}

TEST_P(RemoteCalibrationsTest, WhatIsThereIsNotSentAgainAndWhatIsLostIs) {
  Give();
  Giver b(store_, true, masters_);
  ASSERT_TRUE(b.Open("").ok());
  b.remote.Flush();
  EXPECT_EQ(b.counters.sent_calibrations, 0u);
  ASSERT_TRUE(store_.Drop(NamesWith("}:c2").at(0)));
  b.remote.Flush();
  EXPECT_EQ(b.counters.sent_calibrations, 1u);
  Giver c(store_, false, masters_);
  EXPECT_EQ(c.remote.Fetch("", Giver::Named()), 1u);
}

TEST_P(RemoteCalibrationsTest, AnotherTenantGetsNothing) {
  Give();
  Giver b(store_, false, masters_);
  EXPECT_EQ(b.remote.Fetch("other", Giver::Named()), 0u);
  EXPECT_FALSE(b.has());
}

TEST_P(RemoteCalibrationsTest, APrivateSpaceSendsNothing) {
  ASSERT_TRUE(a_.Open("", true).ok());
  a_.remote.Flush();
  EXPECT_THAT(NamesWith("}:c"), IsEmpty());
}

TEST_P(RemoteCalibrationsTest, AMissingPartIsNoCalibrationAndComesLater) {
  Give();
  Giver b(store_, false, masters_);
  ASSERT_TRUE(store_.Drop(NamesWith("}:c1").at(0)));
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 0u);
  EXPECT_FALSE(b.has());
  EXPECT_EQ(b.counters.damaged_values, 0u);
  a_.remote.Flush();
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 1u);
}

TEST_P(RemoteCalibrationsTest, EveryDamagedValueIsCountedAndSentAgain) {
  Give();
  const auto names = NamesWith("}:c");
  for (const std::string& name : {names.front(), names.back()}) {
    Giver b(store_, false, masters_);
    ASSERT_TRUE(store_.Corrupt(name, 60)) << name;
    EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 0u) << name;
    EXPECT_FALSE(b.has());
    EXPECT_EQ(b.counters.damaged_values, 1u);
    a_.remote.Flush();
    EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 1u) << name;
  }
}

TEST_P(RemoteCalibrationsTest, AnotherBlobUnderTheNameIsRefused) {
  Give();
  const RemoteKeyPtr key =
      KeyOf(a_.keys, "", RemoteKeys::Use::kRead, Clock::Real().Now() + std::chrono::seconds(5))
          .value();
  const RemotePlace place = PlaceAt(CalibrationTagOf("", IdOfBlob()), key);
  std::vector<RemoteValue> forged;
  forged.push_back({CalibrationPartName("p", place.tag, 0),
                    FramedValue(place, RemoteKind::kCalibrationPart, 0,
                                Digested(SharedBytes::Take(std::string(1 << 10, 'x'))))});
  ASSERT_TRUE(BlockingRemote(store_).Put(std::move(forged))[0].ok());
  Giver b(store_, false, masters_);
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 0u);
  EXPECT_FALSE(b.has());
  EXPECT_EQ(b.counters.damaged_values, 1u);
}

TEST_P(RemoteCalibrationsTest, AStoreThatIsDownCostsNothingElse) {
  Give();
  Giver b(store_, false, masters_);
  store_.FailAll(absl::UnavailableError("down"));
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 0u);
  a_.remote.Flush();
  store_.FailAll(absl::OkStatus());
  EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 1u);
}

TEST_P(RemoteCalibrationsTest, NothingOfASealedBlobIsInClear) {
  Give();
  size_t seen = 0;
  for (const std::string& name : NamesWith("}:c")) {
    const std::string value = store_.Peek(name).value_or("");
    for (size_t at = 0; at + 64 <= Blob().size(); at += 512) {
      if (absl::StrContains(value, Blob().substr(at, 64))) ++seen;
    }
  }
  EXPECT_EQ(seen == 0, GetParam() != 0);
}

TEST(RemoteCalibrations, BytesAreThoseOfTheFormat) {
  CalibrationId id;
  id.fill(7);
  EXPECT_EQ(HexOf(CalibrationTagOf("t", id).bytes), "41c565dd78c78359470e06831a5e5041");
  MemoryRemoteStore store;
  Giver a(store, true);
  ASSERT_TRUE(a.Open("").ok());
  a.remote.Flush();
  const std::string prefix =
      absl::StrCat("p:{", HexOf(CalibrationTagOf("", IdOfBlob()).bytes), "}:c");
  const std::string head = store.Peek(prefix).value_or("");
  ByteWriter sizes;
  sizes.Put(uint64_t{Blob().size()});
  sizes.Put(uint32_t{1024});
  ASSERT_EQ(head.size(), 32 + sizes.size());
  EXPECT_EQ(head.substr(0, 8), std::string("kvRV\1\0\6\0", 8));
  EXPECT_EQ(head.substr(32), sizes.bytes());
  std::string parts;
  for (int i = 0; parts.size() < Blob().size(); ++i) {
    const std::string part = store.Peek(absl::StrCat(prefix, i)).value_or("");
    ASSERT_GT(part.size(), 32u) << i;
    EXPECT_EQ(part.substr(0, 8), std::string("kvRV\1\0\7\0", 8));
    parts += part.substr(32);
  }
  EXPECT_TRUE(parts == Blob());
}

TEST(RemoteCalibrations, ASizeThatCannotBeIsDamage) {
  MemoryRemoteStore store;
  Giver b(store, false);
  const RemotePlace place = PlaceAt(CalibrationTagOf("", IdOfBlob()), nullptr);
  for (const auto& [bytes, part] :
       {std::pair<uint64_t, uint32_t>{uint64_t{1} << 40, 4 << 20}, {1 << 20, 1}, {1 << 20, 0}}) {
    ByteWriter body;
    body.Put(bytes);
    body.Put(part);
    std::vector<RemoteValue> values;
    values.push_back({CalibrationName("p", place.tag),
                      FramedValue(place, RemoteKind::kCalibration, 0,
                                  Digested(SharedBytes::Take(std::move(body).Take())))});
    ASSERT_TRUE(BlockingRemote(store).Put(std::move(values))[0].ok());
    const uint64_t before = b.counters.damaged_values;
    EXPECT_EQ(b.remote.Fetch("", Giver::Named()), 0u);
    EXPECT_EQ(b.counters.damaged_values, before + 1);
  }
}

// Whole servers.
class CalibratedNodesTest : public ::testing::TestWithParam<uint8_t> {
 protected:
  CalibratedNodesTest() {
    config_ = GetParam() == 0 ? Config() : SealedBy(GetParam());
    std::filesystem::create_directory(folder_.path() + "/calibrations");
    std::ofstream(folder_.path() + "/calibrations/blob", std::ios::binary) << Blob();
    Config first = config_;
    first.calibrations = folder_.path() + "/calibrations";
    a_ = std::make_unique<Node>(remote_, first);
    b_ = std::make_unique<Node>(remote_, config_);
    page_ = {.key = "p",
             .raw = std::string(AsString(CorrelatedPage(CorrelatedSpec(), kTokens, 5))),
             .tokens = kTokens};
  }
  static grpc::Status Open(Node& node, const std::string& recipe) {
    v1::OpenSpaceRequest request;
    v1::OpenSpaceResponse response;
    request.set_space("s");
    request.set_recipe(recipe);
    ToProto(SpecOfTest(), *request.mutable_spec());
    return node.client->kv().OpenSpace(node.client->Context().get(), request, &response);
  }
  void PutOnTheFirst() {
    ASSERT_TRUE(Open(*a_, kRecipe).ok());
    ASSERT_EQ(a_->client->Put("s", {page_}).pages.at(0).status(), v1::STORED);
    a_->server->remote().Flush();
  }
  static std::string Get(Node& node) { return node.client->Get("s", {Ask("p")}).pages.at(0).data; }

  TempDir folder_;
  Config config_;
  MemoryRemoteStore remote_;
  std::unique_ptr<Node> a_, b_;
  PageIn page_;
};
INSTANTIATE_TEST_SUITE_P(Values, CalibratedNodesTest, ::testing::Values(0, 1),
                         [](const auto& info) { return info.param == 0 ? "clear" : "sealed"; });

TEST_P(CalibratedNodesTest, TheSecondServerServesPagesWhoseBlobItNeverHad) {
  PutOnTheFirst();
  const std::string data = Get(*a_);
  ASSERT_FALSE(data.empty());
  ASSERT_TRUE(b_->client->FindSpace("s").ok()) << "by its name";
  EXPECT_EQ(Get(*b_), data);
  EXPECT_EQ(b_->Row("remote_fetched_calibrations_total"), 1);
}

TEST_P(CalibratedNodesTest, AWorkerThatGivesTheRecipeGetsTheBlobToo) {
  EXPECT_EQ(Open(*b_, kRecipe).error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << "nobody has it";
  PutOnTheFirst();
  const grpc::Status opened = Open(*b_, kRecipe);
  ASSERT_TRUE(opened.ok()) << opened.error_message();
  EXPECT_EQ(Get(*b_), Get(*a_));
  ASSERT_EQ(b_->client->Put("s", {{.key = "q", .raw = page_.raw, .tokens = kTokens}})
                .pages.at(0)
                .status(),
            v1::STORED);
}

TEST_P(CalibratedNodesTest, WithoutTheBlobThereASpaceOpensLater) {
  PutOnTheFirst();
  std::vector<std::string> lost;
  for (const std::string& name : remote_.names()) {
    if (absl::StrContains(name, "}:c")) lost.push_back(name);
  }
  ASSERT_FALSE(lost.empty());
  for (const std::string& name : lost) ASSERT_TRUE(remote_.Drop(name));
  EXPECT_EQ(Open(*b_, kRecipe).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  a_->server->remote().Flush();
  EXPECT_TRUE(Open(*b_, kRecipe).ok());
  EXPECT_EQ(Get(*b_), Get(*a_));
}

}  // namespace
}  // namespace kvstow::testing
