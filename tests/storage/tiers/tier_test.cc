// Every tier through the conformance suite, and what is special to each.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>

#include "storage/disk/rocks_tier.h"
#include "storage/disk/segment_format.h"
#include "storage/tiers/memory_tier.h"
#include "storage/tiers/noop_tier.h"
#include "tests/conformance/tier_conformance.h"
#include "tests/kernels/device/host_as_gpu.h"
#include "tests/storage/disk/fake_disk.h"
#include "tests/storage/status_matchers.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/test_keys.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Tier>> OpenRocksTier(const std::string& folder) {
  auto store = OpenRocksStore({.path = folder, .budget_bytes = 64 << 20, .keys = KeysOfRun()});
  if (!store.ok()) return store.status();
  return std::move(store->tier);
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, TierConformance,
    testing::Values(TierCase{"noop", [](const std::string&) { return MakeNoopTier(); }},
                    TierCase{"memory",
                             [](const std::string&) { return MakeMemoryTier(HostDevice()); }},
                    TierCase{"rocks", OpenRocksTier, !kUnderTsan}),
    [](const auto& info) { return info.param.name; });

// A device that runs out of memory after so many stores, for so many.
class ShortDevice final : public HostAsGpu {
 public:
  explicit ShortDevice(int stores, int failures = INT_MAX) : left_(stores), failures_(failures) {}
  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) override {
    if (left_ > 0 || failures_ == 0) {
      --left_;
      return HostAsGpu::Store(bytes);
    }
    --failures_;
    return absl::ResourceExhaustedError("out of device memory");
  }

 private:
  int left_, failures_;
};

// The GPU's allocations fail from one on, or one alone: every page is kept all the same.
class ShortGpuTest : public StoreTest {
 protected:
  static constexpr uint64_t kPages = 4;
  void Wrap(TieredStoreParts& parts) override { parts.tiers[0] = MakeMemoryTier(*device_); }
  void PutPages() {
    for (uint64_t key = 0; key < kPages; ++key) ASSERT_OK(Put({.key = key}).status());
    for (uint64_t key = 0; key < kPages; ++key) {
      EXPECT_EQ(ReadBack({.key = key}), PrfPage{}.sizes.size()) << key;
    }
    ExpectSumsAndBudgets();
    EXPECT_EQ(PagesIn(TierId::kGpu) + PagesIn(TierId::kHost), kPages);
  }
  std::unique_ptr<ShortDevice> device_;
};

TEST_F(ShortGpuTest, PagesGoToTheHostWhicheverAllocationFails) {
  const int segments = static_cast<int>(PrfPage{}.sizes.size());
  for (int n = 0; n <= segments * static_cast<int>(kPages); ++n) {
    for (const int failures : {1, INT_MAX}) {
      SCOPED_TRACE(testing::Message() << "allocation " << n << ", " << failures << " failures");
      store_.reset();
      device_ = std::make_unique<ShortDevice>(n, failures);
      Open(1024 * kKiB, 1024 * kKiB, 0);
      PutPages();
      const bool none = n == segments * static_cast<int>(kPages);
      const size_t in_host = none ? 0 : failures == 1 ? 1 : kPages - n / segments;
      EXPECT_EQ(PagesIn(TierId::kHost), in_host);
    }
  }
}

TEST(MemoryTier, WritesAllOrNothing) {
  ShortDevice device(2);
  const auto tier = MakeMemoryTier(device);
  const PrfPage page{.key = 1};
  std::vector<SegmentBody> bodies;
  std::vector<SegmentId> ids;
  for (uint16_t i = 0; i < 3; ++i) {
    ids.push_back({1, i});
    bodies.push_back({ids.back(), SharedBytes::Take(page.Body(i))});
  }
  EXPECT_THAT(tier->Write(bodies), HasCode(StatusCode::kResourceExhausted));
  for (const auto& body :
       tier->Read(std::vector<ExpectedSegment>({{.id = ids[0]}, {.id = ids[1]}, {.id = ids[2]}}))) {
    EXPECT_THAT(body.status(), HasCode(StatusCode::kNotFound));
  }
}

TEST(MemoryTier, HostReadsCopyNothing) {
  const auto tier = MakeMemoryTier(HostDevice());
  const SegmentBody body{{1, 0}, SharedBytes::Take(PrfPage{}.Body(0))};
  ASSERT_OK(tier->Write({&body, 1}));
  EXPECT_EQ(tier->Read(std::vector<ExpectedSegment>({{.id = body.id}}))[0]->data(),
            body.bytes.data());
}

class RocksTest : public testing::Test {
 protected:
  void Open() {
    store_ = {};
    auto store = OpenRocksStore({.path = dir_.path(), .budget_bytes = 64 << 20, .keys = keys_});
    ASSERT_OK(store.status());
    store_ = *std::move(store);
  }
  static PageRecord RecordOf(const PrfPage& page, PageNumber number) {
    const PageToStore put = page.ToStore();
    return {.number = number,
            .name = put.name,
            .header = put.header,
            .raw_digest = put.raw_digest,
            .raw_bytes = put.raw_bytes,
            .first_position = put.first_position,
            .tokens = put.tokens,
            .whole = page.whole,
            .facts = put.facts};
  }
  static std::vector<SegmentBody> BodiesOf(const PrfPage& page, PageNumber number) {
    std::vector<SegmentBody> out;
    for (uint16_t i = 0; i < page.sizes.size(); ++i) {
      out.push_back({{number, i}, SharedBytes::Take(page.Body(i))});
    }
    return out;
  }

  // What a reader expects of segments of a page that was put with RecordOf.
  static std::vector<ExpectedSegment> ExpectedOf(const PrfPage& page, PageNumber number,
                                                 std::vector<uint16_t> indices) {
    std::vector<ExpectedSegment> out;
    const PageRecord record = RecordOf(page, number);
    for (const uint16_t i : indices)
      out.push_back({{number, i}, record.name.space, record.facts[i]});
    return out;
  }

  TempDir dir_;
  const std::shared_ptr<DataKeys> keys_ = KeysOfRun();
  RocksStore store_;
};

TEST_F(RocksTest, CatalogRemembersPagesAndSpaces) {
  Open();
  const PrfPage page{.key = 5, .whole = true};
  ASSERT_OK(store_.catalog->PutSpace({.id = 3, .bytes = SharedBytes::Take(std::string("spec"))}));
  ASSERT_OK(store_.catalog->PutPage(RecordOf(page, 9), BodiesOf(page, 9), Ack::kProcess));
  Open();
  const auto loaded = store_.catalog->Load();
  ASSERT_OK(loaded.status());
  ASSERT_EQ(loaded->spaces.size(), 1u);
  EXPECT_EQ(loaded->spaces[0].id, 3u);
  EXPECT_EQ(AsString(loaded->spaces[0].bytes.span()), "spec");
  ASSERT_EQ(loaded->pages.size(), 1u);
  EXPECT_EQ(loaded->pages[0].name, page.name());
  EXPECT_TRUE(loaded->pages[0].whole);
  EXPECT_EQ(loaded->max_page, 9u);
  EXPECT_EQ(loaded->max_space, 3u);
  const auto bodies = store_.tier->Read(ExpectedOf(page, 9, {0, 2}));
  EXPECT_EQ(page.WhatIs(0, bodies[0]->span()), "");
  EXPECT_EQ(page.WhatIs(2, bodies[1]->span()), "");
}

TEST_F(RocksTest, TruncateAndEraseTakeTheBodiesAlong) {
  Open();
  const PrfPage page{.key = 5};
  PageRecord record = RecordOf(page, 9);
  ASSERT_OK(store_.catalog->PutPage(record, BodiesOf(page, 9), Ack::kProcess));
  record.facts.resize(1);
  ASSERT_OK(store_.catalog->TruncatePage(record, 3, Ack::kProcess));
  const auto expected = ExpectedOf(page, 9, {0, 1, 2});
  auto bodies = store_.tier->Read(expected);
  EXPECT_OK(bodies[0].status());
  EXPECT_THAT(bodies[1].status(), HasCode(StatusCode::kNotFound));
  EXPECT_THAT(bodies[2].status(), HasCode(StatusCode::kNotFound));
  ASSERT_OK(store_.catalog->ErasePage(9, 1));
  Open();
  EXPECT_TRUE(store_.catalog->Load()->pages.empty());
  EXPECT_THAT(store_.tier->Read(expected)[0].status(), HasCode(StatusCode::kNotFound));
  EXPECT_OK(store_.catalog->ErasePage(77, 4)) << "a page that is not here";
}

TEST_F(RocksTest, ADatabaseOfAnotherVersionIsSetAside) {
  Open();
  const PrfPage page{.key = 5};
  ASSERT_OK(store_.catalog->PutPage(RecordOf(page, 9), BodiesOf(page, 9), Ack::kProcess));
  store_ = {};
  std::filesystem::remove(dir_.path() + "/db/FORMAT");
  Open();
  EXPECT_TRUE(store_.catalog->Load()->pages.empty());
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/db.version-1/CURRENT"));
  Open();
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/db.version-2"));
}

// A FORMAT that power loss cut says nothing; one that names a version does.
TEST_F(RocksTest, OnlyAFormatThatNamesAnotherVersionSetsTheDatabaseAside) {
  const std::string ours = kDatabaseFormat, path = dir_.path() + "/db/FORMAT";
  Open();
  const PrfPage page{.key = 5};
  ASSERT_OK(store_.catalog->PutPage(RecordOf(page, 9), BodiesOf(page, 9), Ack::kProcess));
  for (const std::string& torn : {std::string(), ours.substr(0, 1), ours.substr(0, ours.size() - 1),
                                  ours.substr(0, 7) + '\0', std::string(ours.size(), '\0')}) {
    store_ = {};
    std::ofstream(path, std::ios::binary) << torn;
    Open();
    EXPECT_EQ(store_.catalog->Load()->pages.size(), 1u) << "after '" << torn << "'";
    std::ifstream in(path, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), ours);
  }
  store_ = {};
  std::ofstream(path, std::ios::binary) << "kvstow database 3\n";
  Open();
  EXPECT_TRUE(store_.catalog->Load()->pages.empty());
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/db.version-1/CURRENT"));
}

class ModesTest : public RocksTest {
 protected:
  ~ModesTest() override { umask(umask_); }
  // Others' rights to anything in the folder.
  void ExpectPrivate(const std::filesystem::path& folder) {
    using std::filesystem::perms;
    size_t files = 0;
    for (const auto& it : std::filesystem::recursive_directory_iterator(folder)) {
      EXPECT_EQ(it.status().permissions(),
                it.is_directory() ? perms::owner_all : perms::owner_read | perms::owner_write)
          << it.path();
      files += it.is_directory() ? 0 : 1;
    }
    EXPECT_GT(files, 5u);
  }
  void PutLarge(PageNumber number) {
    const PrfPage page{.key = number, .sizes = {100'000, 100}};
    ASSERT_OK(
        store_.catalog->PutPage(RecordOf(page, number), BodiesOf(page, number), Ack::kDurable));
  }

  const mode_t umask_ = umask(0);
};

TEST_F(ModesTest, FilesAreTheirOwnersAlone) {
  Open();
  PutLarge(1);
  ExpectPrivate(dir_.path());
  Open();
  ExpectPrivate(dir_.path());
}

TEST_F(ModesTest, WhatAnEarlierServerLeftOpenIsClosed) {
  Open();
  PutLarge(1);
  store_ = {};
  std::filesystem::create_directory(dir_.path() + "/db.damaged-1");
  using std::filesystem::perms;
  for (const auto& it : std::filesystem::recursive_directory_iterator(dir_.path())) {
    const perms read = perms::group_read | perms::others_read;
    const perms more = it.is_directory() ? perms::group_exec | perms::others_exec : perms::none;
    std::filesystem::permissions(it.path(), read | more, std::filesystem::perm_options::add);
  }
  Open();
  PutLarge(2);
  ExpectPrivate(dir_.path());
}

TEST_F(ModesTest, AFolderThatIsNotOursKeepsItsMode) {
  std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
  Open();
  EXPECT_EQ(std::filesystem::status(dir_.path()).permissions(), std::filesystem::perms(0755));
}

TEST_F(RocksTest, AFolderThatVanishedIsUnavailable) {
  Open();
  std::filesystem::rename(dir_.path() + "/db", dir_.path() + "/gone");
  const PrfPage page{.key = 5, .sizes = {100'000}};
  const absl::Status put =
      store_.catalog->PutPage(RecordOf(page, 9), BodiesOf(page, 9), Ack::kProcess);
  EXPECT_THAT(put, HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(std::string(put.message()), HasSubstr(dir_.path()));
}

TEST_F(RocksTest, SpaceOfErasedAndReplacedBodiesIsUsedAgain) {
  Open();
  const PrfPage page{.key = 5, .sizes = {1 << 20, 1 << 20}};
  for (PageNumber number = 1; number <= 100; ++number) {
    ASSERT_OK(store_.catalog->PutPage(RecordOf(page, number), BodiesOf(page, number),
                                      number % 2 == 0 ? Ack::kProcess : Ack::kMemory));
    if (number > 5) {
      ASSERT_OK(store_.catalog->ErasePage(number - 5, 2));
    }
    ASSERT_OK(store_.tier->Write(BodiesOf(page, number)));
  }
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir_.path() + "/db/segments")) {
    bytes += file.file_size();
  }
  EXPECT_LT(bytes, uint64_t{40} << 20);
  for (PageNumber number = 96; number <= 100; ++number) {
    std::vector<ExpectedSegment> expected = ExpectedOf(page, number, {1});
    expected[0].space = 0;  // it was written without a record
    const auto body = store_.tier->Read(expected);
    ASSERT_OK(body[0].status());
    EXPECT_EQ(page.WhatIs(1, body[0]->span()), "");
  }
}

TEST_F(RocksTest, WhatWasPutSurvivesAfterSync) {
  Open();
  const PrfPage page{.key = 5};
  ASSERT_OK(store_.catalog->PutPage(RecordOf(page, 9), BodiesOf(page, 9), Ack::kMemory));
  ASSERT_OK(store_.catalog->Sync());
  EXPECT_OK(store_.catalog->Sync()) << "with nothing to do";
  Open();
  EXPECT_EQ(store_.catalog->Load()->pages.size(), 1u);
}

TEST_F(RocksTest, SaysWhoHoldsTheFolder) {
  Open();
  const auto second = OpenRocksStore({.path = dir_.path()});
  EXPECT_THAT(second.status(), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(dir_.path()), HasSubstr("LOCK")));
}

TEST_F(RocksTest, SaysWhichFolderCannotBeUsed) {
  const std::string file = dir_.path() + "/file";
  std::ofstream(file) << "no folder";
  const auto store = OpenRocksStore({.path = file + "/below"});
  EXPECT_THAT(store.status(), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(file + "/below"));
}

TEST_F(RocksTest, SaysThatAFolderIsForbidden) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every folder";
  const std::string folder = dir_.path() + "/forbidden";
  ASSERT_EQ(mkdir(folder.c_str(), 0), 0);
  EXPECT_THAT(OpenRocksStore({.path = folder}).status(), HasCode(StatusCode::kPermissionDenied));
}

}  // namespace
}  // namespace kvstow
