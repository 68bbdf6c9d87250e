// Calibrations that tell of pages, on the disk of a server with data keys: sealed, over restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/calibration/model_stats.h"
#include "service/spaces/calibrations.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/storage/temp_dir.h"
#include "tests/storage/test_keys.h"

namespace kvstow::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The folder of one server, over restarts.
class SealedCalibrationsTest : public ::testing::Test {
 protected:
  static const std::string& Blob() {
    static const std::string blob = FitCorrelated(CorrelatedSpec(), 2).value();
    return blob;
  }
  static FitOwner OwnerOf(uint8_t space, const std::string& tenant = "acme") {
    FitOwner out{.space = space, .tenant = tenant};
    out.name.fill(space);
    return out;
  }
  static std::string NotedBlob(const FitOwner& owner) {
    return WithFitNote(AsBytes(Blob()), {owner.name, 1, "kvstow-cal(run=2)"}).value();
  }
  void Start(std::shared_ptr<DataKeys> keys, uint64_t most = Calibrations::kMaxFittedBytes) {
    here_ = std::make_unique<Calibrations>("", disk_.path(), std::move(keys), most);
    ASSERT_TRUE(here_->Load().ok());
  }
  void StartSealed() { Start(std::make_shared<TestKeys>()); }
  CalibrationId AddFitted(const FitOwner& owner) {
    return here_->AddFitted(owner, AsBytes(NotedBlob(owner))).value();
  }
  bool Has(const FitOwner& owner) { return here_->LastFitted(owner.name) != nullptr; }
  fs::path Folder() const { return fs::path(disk_.path()) / "calibrations"; }
  fs::path Fitted() const { return Folder() / "fitted"; }
  static std::vector<fs::path> Files(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code none;
    for (const auto& file : fs::directory_iterator(folder, none)) {
      if (file.is_regular_file()) out.push_back(file.path());
    }
    return out;
  }
  // Returns how many pieces of 64 bytes of the blob are in files.
  size_t InClear() const {
    size_t out = 0;
    for (const fs::path& folder : {Folder(), Fitted()}) {
      for (const fs::path& path : Files(folder)) {
        const std::string bytes = ReadAll(path);
        for (size_t at = 0; at + 64 <= Blob().size(); at += 512) {
          if (bytes.find(Blob().substr(at, 64)) != std::string::npos) ++out;
        }
      }
    }
    return out;
  }

  const TempDir disk_;
  std::unique_ptr<Calibrations> here_;
};

TEST_F(SealedCalibrationsTest, TablesComeBackAndNothingOfThemIsInClear) {
  StartSealed();
  const CalibrationId id = AddFitted(OwnerOf(1));
  ASSERT_EQ(Files(Fitted()).size(), 1u);
  EXPECT_EQ(InClear(), 0u);
  EXPECT_THAT(Files(Fitted())[0].string(), Not(HasSubstr(HexOf(id))))
      << "a hash would confirm a guess";
  StartSealed();
  ASSERT_TRUE(Has(OwnerOf(1)));
  EXPECT_FALSE(Has(OwnerOf(2)));
  EXPECT_EQ(AsString(here_->Blob(id)->span()), NotedBlob(OwnerOf(1)));
  EXPECT_EQ(here_->unread().locked + here_->unread().damaged, 0u);
  here_->EraseFitted(here_->FittedSpaces());
  EXPECT_TRUE(Files(Fitted()).empty());

  Start(NoDataKeys());
  AddFitted(OwnerOf(1));
  EXPECT_GT(InClear(), 10u) << "the search would find it";
}

TEST_F(SealedCalibrationsTest, AFileThatWasChangedOrMovedIsLeftAloneAndCounted) {
  StartSealed();
  const CalibrationId id = AddFitted(OwnerOf(1));
  const fs::path path = Files(Fitted())[0];
  const std::string good = ReadAll(path);
  const auto expect_damage = [&](const char* what) {
    StartSealed();
    EXPECT_FALSE(Has(OwnerOf(1))) << what;
    EXPECT_EQ(here_->store().Find(id), nullptr) << what;
    EXPECT_EQ(here_->unread().damaged, 1u) << what;
  };
  std::string changed = good;
  changed[good.size() / 2] = static_cast<char>(changed[good.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary) << changed;
  EXPECT_FALSE(here_->Blob(id).ok()) << "it is read again from the disk";
  expect_damage("a bit");
  EXPECT_TRUE(fs::exists(path));
  std::ofstream(path, std::ios::binary) << good;
  fs::rename(path, Fitted() / TablesFileName(1));
  expect_damage("another number");
  fs::rename(Fitted() / TablesFileName(1), Fitted() / "tables");
  expect_damage("no number");
  fs::rename(Fitted() / "tables", Folder() / path.filename());
  expect_damage("another folder");
  fs::remove(Folder() / path.filename());
  std::ofstream(Fitted() / "clear.kvcal", std::ios::binary) << NotedBlob(OwnerOf(1));
  expect_damage("in clear");
  EXPECT_TRUE(here_->AddFitted(OwnerOf(1), AsBytes(NotedBlob(OwnerOf(1)))).ok()) << "life goes on";
  EXPECT_TRUE(Has(OwnerOf(1)));
}

TEST_F(SealedCalibrationsTest, WithoutTheKeyTheyStay) {
  StartSealed();
  AddFitted(OwnerOf(1));
  const auto locked = std::make_shared<TestKeys>();
  locked->locked = true;
  for (const auto& keys : {std::static_pointer_cast<DataKeys>(locked), NoDataKeys()}) {
    Start(keys);
    EXPECT_FALSE(Has(OwnerOf(1)));
    EXPECT_EQ(here_->unread().locked, 1u);
    here_->EraseFitted(here_->FittedSpaces());
    EXPECT_EQ(Files(Fitted()).size(), 1u);
  }
  Start(locked);
  EXPECT_TRUE(absl::IsUnavailable(here_->CanKeep("acme")));
  EXPECT_TRUE(
      absl::IsUnavailable(here_->AddFitted(OwnerOf(2), AsBytes(NotedBlob(OwnerOf(2)))).status()));
  EXPECT_FALSE(Has(OwnerOf(2)));
  here_->DropTenant("other");
  EXPECT_EQ(Files(Fitted()).size(), 1u);
  StartSealed();
  EXPECT_TRUE(Has(OwnerOf(1)));
  Start(locked);
  here_->DropTenant("acme");
  EXPECT_TRUE(Files(Fitted()).empty()) << "whose it is stands in clear";
}

TEST_F(SealedCalibrationsTest, AStoreThatWasInClearKeepsItsTables) {
  Start(NoDataKeys());
  AddFitted(OwnerOf(1));
  Start(std::make_shared<TestKeys>(/*reads_clear=*/true));
  EXPECT_TRUE(Has(OwnerOf(1)));
  AddFitted(OwnerOf(2));
  size_t sealed = 0;
  for (const fs::path& path : Files(Fitted())) sealed += IsSealedTables(AsBytes(ReadAll(path)));
  EXPECT_EQ(sealed, 1u);
  here_->DropTenant("acme");
  EXPECT_FALSE(Has(OwnerOf(2)));
  EXPECT_TRUE(Has(OwnerOf(1))) << "it goes with its space";
}

TEST_F(SealedCalibrationsTest, WithoutAPlaceForKeysTheyLiveInMemory) {
  const std::string folder = disk_.path() + "/calibrations";
  fs::create_directory(folder);
  here_ = std::make_unique<Calibrations>(folder, "", nullptr);
  ASSERT_TRUE(here_->Load().ok());
  EXPECT_TRUE(here_->CanKeep("acme").ok());
  const CalibrationId id = AddFitted(OwnerOf(1));
  ASSERT_TRUE(here_->AddOf("acme", AsBytes(NotedBlob(OwnerOf(2)))).ok());
  EXPECT_EQ(AsString(here_->Blob(id)->span()), NotedBlob(OwnerOf(1)));
  EXPECT_TRUE(fs::is_empty(folder));
  ASSERT_TRUE(here_->AddOf("acme", AsBytes(Blob())).ok());
  EXPECT_EQ(Files(folder).size(), 1u) << "it tells of no pages";
  here_->DropTenant("acme");
  EXPECT_FALSE(Has(OwnerOf(1)));
}

TEST_F(SealedCalibrationsTest, WhatAnotherServerFittedIsSealedToo) {
  StartSealed();
  const CalibrationId id = here_->AddOf("acme", AsBytes(NotedBlob(OwnerOf(9))))->id;
  ASSERT_EQ(Files(Folder()).size(), 1u);
  EXPECT_EQ(InClear(), 0u);
  StartSealed();
  EXPECT_NE(here_->store().Find(id), nullptr);
  here_->EraseFitted(here_->FittedSpaces());
  EXPECT_NE(here_->store().Find(id), nullptr) << "its space is another server's";
  const fs::path path = Files(Folder())[0];
  here_->DropTenant("acme");
  EXPECT_EQ(here_->store().Find(id), nullptr);
  EXPECT_FALSE(fs::exists(path));
}

// A space may add as much as it leaves free, so none takes all.
TEST_F(SealedCalibrationsTest, EachSpaceHasAShareOfTheRoom) {
  const uint64_t one = NotedBlob(OwnerOf(1)).size(), all = 10 * one;
  Start(NoDataKeys(), all);
  EXPECT_EQ(here_->RoomFor(OwnerOf(1).name), all / 2);
  AddFitted(OwnerOf(1));
  EXPECT_EQ(here_->RoomFor(OwnerOf(1).name), (all - 2 * one) / 2);
  EXPECT_EQ(here_->RoomFor(OwnerOf(2).name), (all - one) / 2);
  ASSERT_TRUE(here_->AddOf("acme", AsBytes(NotedBlob(OwnerOf(9)))).ok());
  EXPECT_EQ(here_->RoomFor(OwnerOf(2).name), (all - one) / 2) << "those of others take none";
  Start(NoDataKeys(), all);
  EXPECT_EQ(here_->RoomFor(OwnerOf(2).name), (all - one) / 2);
  Start(NoDataKeys(), 2 * one);
  EXPECT_LT(here_->RoomFor(OwnerOf(2).name), one);
  const auto refused = here_->AddFitted(OwnerOf(2), AsBytes(NotedBlob(OwnerOf(2))));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("drop spaces"));
  Start(NoDataKeys(), 0);
  EXPECT_EQ(here_->RoomFor(OwnerOf(3).name), 0u);
  EXPECT_TRUE(here_->AddNote(OwnerOf(3), CorrelatedSpec(), {OwnerOf(3).name, 1, "kvstow"}).ok());
}

// They have what the tables of this server leave.
TEST_F(SealedCalibrationsTest, TablesOfOtherServersMakeRoomTheOldestFirst) {
  const uint64_t one = NotedBlob(OwnerOf(1)).size();
  for (const bool sealed : {false, true}) {
    std::shared_ptr<DataKeys> keys = NoDataKeys();
    if (sealed) keys = std::make_shared<TestKeys>();
    Start(keys, 6 * one);
    std::vector<CalibrationId> ids;
    const auto add = [&](uint8_t space) {
      const auto added = here_->AddOf("acme", AsBytes(NotedBlob(OwnerOf(space))));
      if (added.ok()) ids.push_back(added->id);
      return added.status();
    };
    const auto here = [&] {
      std::vector<bool> out;
      for (const auto& id : ids) out.push_back(here_->store().Find(id) != nullptr);
      return out;
    };
    for (const uint8_t space : {11, 12, 13}) ASSERT_TRUE(add(space).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(add(14))) << "they came a moment ago";
    EXPECT_THAT(here(), ElementsAre(true, true, true));
    const auto now = fs::file_time_type::clock::now();
    for (const fs::path& path : Files(Folder())) {
      const bool second = path.filename() == absl::StrCat(HexOf(ids[1]), ".kvcal");
      fs::last_write_time(path, now - std::chrono::minutes(second ? 91 : 90));
    }
    ASSERT_TRUE(add(14).ok());
    const std::vector<bool> left = here();
    EXPECT_EQ(std::ranges::count(left, true), 3);
    if (!sealed) {
      EXPECT_THAT(left, ElementsAre(true, false, true, true));
    }
    EXPECT_EQ(Files(Folder()).size(), 3u);

    Start(keys, 6 * one);
    for (const uint8_t space : {1, 2}) AddFitted(OwnerOf(space));
    EXPECT_EQ(Files(Folder()).size(), 2u) << "what is fitted here goes before";
    here_->EraseFitted(here_->FittedSpaces());
    here_->DropTenant("acme");
    for (const fs::path& path : Files(Folder())) fs::remove(path);
  }
}

TEST_F(SealedCalibrationsTest, ANoteAloneReplacesTheTablesAndTheNoteBefore) {
  StartSealed();
  const FitOwner owner = OwnerOf(1);
  AddFitted(owner);
  for (const uint64_t number : {2, 3}) {
    ASSERT_TRUE(here_->AddNote(owner, CorrelatedSpec(), {owner.name, number, "kvstow"}).ok());
  }
  EXPECT_EQ(Files(Fitted()).size(), 2u) << "the tables, which pages name, and one note";
  StartSealed();
  const auto last = here_->LastFitted(owner.name);
  EXPECT_EQ(*last->fit_note(), (FitNote{owner.name, 3, "kvstow"}));
  EXPECT_FALSE(last->Has(kJointSection));
}

// Each call answers OK, so one of the two must stay.
TEST_F(SealedCalibrationsTest, StatisticsThatComeTogetherDoNotEraseEachOther) {
  Start(NoDataKeys());
  const KvSpec spec = CorrelatedSpec();
  const auto send = [&](float gain) {
    ModelStats stats = AlikeStats(spec);
    stats.gain_k[0] = gain;
    EXPECT_TRUE(
        here_->TakeStatistics(OwnerOf(1), spec, AsBytes(*StatsCalibration(spec, stats))).ok());
  };
  for (int i = 0; i < 50; ++i) {
    std::thread other([&] { send(0.2F + static_cast<float>(i)); });
    send(0.7F + static_cast<float>(i));
    other.join();
    ASSERT_NE(here_->StatisticsOf(OwnerOf(1).name), nullptr) << i;
    ASSERT_EQ(Files(Fitted()).size(), 1u);
  }
}

}  // namespace
}  // namespace kvstow::testing
