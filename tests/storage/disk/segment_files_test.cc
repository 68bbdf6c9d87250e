// Segment files: their bytes, their free space, and what the store over them does with files that
// it does not know.
#include "storage/disk/segment_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "storage/disk/rocks_options.h"
#include "storage/disk/segment_format.h"
#include "storage/disk/segment_space.h"
#include "storage/disk/segment_store.h"
#include "storage/record.h"
#include "tests/paths.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/status_matchers.h"
#include "tests/storage/temp_dir.h"
#include "tests/storage/test_keys.h"

namespace kvstow {
namespace {

using absl::StatusCode;

std::string Golden(const std::string& name) {
  std::ifstream file(TestsPath("golden/" + name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SegmentFormat, PlacesAreAsTheGoldenFileSays) {
  const SegmentId id{0x0102030405060708, 0x090a};
  const std::string key = SegmentKey(id), small = "a small body";
  const SegmentPlace in_file{.commit = 7, .length = 1 << 20, .file = 3, .offset = 5 * kDiskBlock};
  const SegmentPlace in_value{.commit = 8, .length = static_cast<uint32_t>(small.size())};
  const std::string file_value = SerializeSegmentValue(key, in_file, {});
  const std::string value = SerializeSegmentValue(key, in_value, AsBytes(small));
  ASSERT_EQ(HexOf(AsBytes(key + file_value + value)),
            HexOf(AsBytes(Golden("segment_place_v2.bin"))));
  EXPECT_EQ(SegmentOfKey(AsBytes(key)), id);
  auto parsed = ParseSegmentValue(AsBytes(key), AsBytes(file_value));
  ASSERT_OK(parsed.status());
  EXPECT_EQ(parsed->place, in_file);
  parsed = ParseSegmentValue(AsBytes(key), AsBytes(value));
  ASSERT_OK(parsed.status());
  EXPECT_EQ(parsed->place, in_value);
  EXPECT_EQ(AsString(parsed->body), small);
}

TEST(SegmentFormat, FilesAreAsTheGoldenFileSays) {
  const SegmentId id{9, 2};
  const std::string body(5000, 'b');
  const std::string file =
      SegmentFileHeader(3) + body + ExtentTail(id, body.size(), Xxh3(AsBytes(body)));
  ASSERT_EQ(file.size(), kDiskBlock + ExtentBytes(body.size()));
  ASSERT_TRUE(file == Golden("segment_file_v1.bin"));
  EXPECT_OK(CheckSegmentFileHeader(AsBytes(file).first(kDiskBlock), 3));
  const auto extent = AsBytes(file).subspan(kDiskBlock);
  const auto digest = CheckExtent(extent, id, body.size());
  ASSERT_OK(digest.status());
  EXPECT_EQ(*digest, Xxh3(AsBytes(body)));
  EXPECT_THAT(CheckExtent(extent, {9, 3}, body.size()).status(), HasCode(StatusCode::kDataLoss));
  EXPECT_THAT(CheckExtent(extent, {8, 2}, body.size()).status(), HasCode(StatusCode::kDataLoss));
  EXPECT_THAT(CheckExtent(extent, id, 5001).status(), HasCode(StatusCode::kDataLoss));
}

TEST(SegmentFormat, EveryFlippedBitAndEveryCutIsNoticed) {
  const std::string key = SegmentKey({5, 1});
  const SegmentPlace place{.commit = 7, .length = 5000, .file = 3, .offset = 5 * kDiskBlock};
  const std::string good = SerializeSegmentValue(key, place, {});
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(ParseSegmentValue(AsBytes(key), AsBytes(bad)).ok()) << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseSegmentValue(AsBytes(key), AsBytes(good).first(size)).ok()) << size;
  }
  EXPECT_FALSE(ParseSegmentValue(AsBytes(SegmentKey({5, 2})), AsBytes(good)).ok());
  const std::string header = SegmentFileHeader(3);
  for (size_t bit = 0; bit < 24 * 8; ++bit) {
    std::string bad = header;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(CheckSegmentFileHeader(AsBytes(bad), 3).ok()) << bit;
  }
  EXPECT_FALSE(CheckSegmentFileHeader(AsBytes(header), 4).ok());
  std::string other = header;  // the bytes behind the version, with a digest that fits
  other[6] = 1;
  const uint64_t digest = Xxh3(AsBytes(other).first(16));
  other.replace(16, sizeof(digest), reinterpret_cast<const char*>(&digest), sizeof(digest));
  EXPECT_TRUE(absl::IsDataLoss(CheckSegmentFileHeader(AsBytes(other), 3)));
}

// Whatever part of the sectors was written: the others still hold what was there before.
TEST(SegmentFormat, ATornSealedBodyHasAnotherDigest) {
  std::mt19937_64 random(3);
  std::string body(512 * 9 + 3, 0), before(body.size(), 0);
  for (char& c : body) c = static_cast<char>(random());
  for (char& c : before) c = static_cast<char>(random());
  const uint64_t digest = DigestOfSealed(AsBytes(body));
  for (size_t sector = 0; sector < body.size(); sector += 512) {
    for (const std::string& old : {before, std::string(before.size(), '\0')}) {
      std::string torn = body;
      torn.replace(sector, 512, old, sector, 512);
      EXPECT_NE(DigestOfSealed(AsBytes(torn)), digest) << sector;
    }
  }
  SealedDigest in_parts(body.size());
  in_parts.Update(AsBytes(body).first(1024));
  in_parts.Update(AsBytes(body).subspan(1024));
  EXPECT_EQ(in_parts.Finish(), digest);
  // Pinned: the format of sealed extents.
  EXPECT_EQ(DigestOfSealed(AsBytes(std::string(1000, 'b'))), Xxh3(AsBytes(std::string(16, 'b'))));
}

TEST(SegmentSpace, GivesBackAsOneRunAndTakesTheBestFit) {
  SegmentSpace space;
  space.AddFile(1, 11 * kDiskBlock);
  const auto a = space.Take(2 * kDiskBlock), b = space.Take(3 * kDiskBlock);
  const auto c = space.Take(5 * kDiskBlock);
  ASSERT_TRUE(a.has_value() && b.has_value() && c.has_value());
  EXPECT_EQ(*a, (Extent{1, kDiskBlock, 2 * kDiskBlock}));
  EXPECT_EQ(*b, (Extent{1, 3 * kDiskBlock, 3 * kDiskBlock}));
  EXPECT_FALSE(space.Take(kDiskBlock).has_value());
  space.AddFile(2, 8 * kDiskBlock);
  space.Give(*b);
  EXPECT_EQ(space.Take(3 * kDiskBlock), b) << "the gap fits exactly; file 2 stays whole";
  space.Give(*a);
  space.Give(*c);
  space.Give(*b);
  EXPECT_EQ(space.Take(10 * kDiskBlock), (Extent{1, kDiskBlock, 10 * kDiskBlock}));
  EXPECT_EQ(space.free_bytes(), 7 * kDiskBlock);
  EXPECT_FALSE(space.RemoveEmptyFile(1).has_value()) << "then nothing would be free";
  EXPECT_EQ(space.RemoveEmptyFile(0), 2u);
  EXPECT_FALSE(space.Contains({2, kDiskBlock, kDiskBlock}));
}

// Against a list of which block is whose.
TEST(SegmentSpace, NeverGivesABlockTwice) {
  std::mt19937_64 random(2026);
  SegmentSpace space;
  std::map<std::pair<uint64_t, uint64_t>, bool> taken;
  std::vector<Extent> held;
  uint64_t files = 0;
  const auto mark = [&](const Extent& extent, bool now) {
    for (uint64_t at = 0; at < extent.bytes; at += kDiskBlock) {
      bool& block = taken[{extent.file, extent.offset + at}];
      ASSERT_NE(block, now) << extent.file << " " << extent.offset + at;
      block = now;
    }
  };
  for (int step = 0; step < 20'000; ++step) {
    if (held.empty() || random() % 2 == 0) {
      const auto extent = space.Take((1 + random() % 9) * kDiskBlock);
      if (!extent.has_value()) {
        space.AddFile(++files, 50 * kDiskBlock);
        continue;
      }
      ASSERT_TRUE(space.Contains(*extent));
      mark(*extent, true);
      held.push_back(*extent);
    } else {
      std::swap(held[random() % held.size()], held.back());
      mark(held.back(), false);
      space.Give(held.back());
      held.pop_back();
    }
  }
  for (const Extent& extent : held) space.Give(extent);
  EXPECT_EQ(space.free_bytes(), files * 49 * kDiskBlock);
  for (uint64_t i = 0; i < files; ++i) EXPECT_TRUE(space.RemoveEmptyFile(0).has_value());
  EXPECT_EQ(space.free_bytes(), 0u);
}

class SegmentStoreTest : public testing::Test {
 protected:
  void Open(bool direct_io = false) {
    store_.reset();
    auto store =
        SegmentStore::Open(folder_, MakePosixSegmentFiles(folder_, direct_io), 64 << 20, vault_);
    ASSERT_OK(store.status());
    store_ = *std::move(store);
  }
  SegmentPlace Write(SegmentId id, const std::string& body) {
    const SegmentStore::Body one{id, 0, AsBytes(body), Xxh3(AsBytes(body))};
    digests_[id] = one.digest;
    const auto written = store_->Write({&one, 1});
    EXPECT_OK(written.status());
    return written.ok() ? written->places[0] : SegmentPlace{};
  }
  absl::StatusOr<SharedBytes> Read(SegmentId id, const SegmentPlace& place) {
    const SegmentStore::Wanted wanted{id, place, 0, digests_[id]};
    return store_->Read({&wanted, 1})[0];
  }

  TempDir dir_;
  const std::string folder_ = dir_.path() + "/segments";
  Vault vault_{KeysOfRun()};
  absl::flat_hash_map<SegmentId, uint64_t> digests_;
  std::unique_ptr<SegmentStore> store_;
};

TEST_F(SegmentStoreTest, WritesFreedBlocksAgainAndNoLiveOnes) {
  Open();
  const std::string body(1 << 20, 'x');
  const SegmentPlace first = Write({1, 0}, body), second = Write({2, 0}, body);
  const uint64_t files = store_->file_bytes();
  Open();
  store_->SetLive({second.extent()});
  EXPECT_EQ(store_->file_bytes(), files);
  const SegmentPlace third = Write({3, 0}, body);
  EXPECT_EQ(third.offset, first.offset);
  EXPECT_OK(store_->WriteAgain({{2, 0}, second}));
  EXPECT_OK(store_->WriteAgain({{3, 0}, third}));
  EXPECT_THAT(Read({1, 0}, first).status(), HasCode(StatusCode::kDataLoss)) << "written over";
  Open();
  store_->SetLive({});
  EXPECT_EQ(store_->file_bytes(), 0u) << "files without a live body go";
  EXPECT_THAT(Read({2, 0}, second).status(), HasCode(StatusCode::kDataLoss));
}

// Whatever parts a body is written in, with and without the page cache.
TEST_F(SegmentStoreTest, BodiesOfEverySize) {
  for (const bool direct_io : {false, true}) {
    if (direct_io && !DirectIoWorks(dir_.path())) GTEST_SKIP() << "no O_DIRECT here";
    Open(direct_io);
    std::mt19937_64 random(5);
    std::vector<std::string> bodies;
    std::vector<SegmentPlace> places;
    for (const size_t size : {4096, 200'000, 262'144, 262'145, 390'000, 1 << 20, (1 << 20) + 1,
                              (2 << 20) - 40, (2 << 20) - 39, 2 << 20, 5'000'001}) {
      std::string body(size, 0);
      for (char& c : body) c = static_cast<char>(random());
      places.push_back(Write({bodies.size(), 0}, body));
      bodies.push_back(std::move(body));
    }
    for (size_t i = 0; i < bodies.size(); ++i) {
      const auto read = Read({i, 0}, places[i]);
      ASSERT_OK(read.status());
      EXPECT_EQ(AsString(read->span()), bodies[i]);
      EXPECT_OK(store_->WriteAgain({{i, 0}, places[i]}));
    }
    // All of them in one call.
    std::vector<SegmentStore::Body> all;
    for (size_t i = 0; i < bodies.size(); ++i) {
      all.push_back({{i, 1}, 0, AsBytes(bodies[i]), Xxh3(AsBytes(bodies[i]))});
    }
    const auto written = store_->Write(all);
    ASSERT_OK(written.status());
    for (size_t i = 0; i < bodies.size(); ++i) {
      EXPECT_OK(store_->WriteAgain({{i, 1}, written->places[i]})) << i;
    }
  }
}

// Reads of a file in parts, with and without the page cache.
class ReadInPartsTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr size_t kBytes = 3 << 20;  // of the file behind its first block

  ReadInPartsTest() {
    std::mt19937_64 random(8);
    for (size_t i = 0; i < kBytes; ++i) block_.get()[i] = static_cast<uint8_t>(random());
    EXPECT_OK(files_->List().status());
    EXPECT_OK(files_->Create(1, kDiskBlock + kBytes, AsBytes(SegmentFileHeader(1))));
    EXPECT_OK(files_->Write(1, kDiskBlock, {block_.get(), kBytes}, [](size_t, size_t) {}));
    size_t at = 0;
    for (const size_t bytes : {size_t{8192}, size_t{1} << 20, size_t{700} << 10, size_t{4096}}) {
      buffers_.emplace_back(read_.get() + at, bytes);
      at += bytes;
    }
    buffers_.emplace_back(read_.get() + at, kBytes - at);
  }
  // Reads all, and checks that parts come in order and are right when they come.
  absl::Status Read(absl::FunctionRef<void()> between = [] {}) {
    return files_->ReadInParts(1, kDiskBlock, buffers_, [&](size_t begin, size_t end) {
      EXPECT_EQ(begin, came_);
      EXPECT_EQ(std::memcmp(read_.get() + begin, block_.get() + begin, end - begin), 0);
      came_ = end;
      ++parts_;
      between();
    });
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() + "/000001.kvs";
  const std::unique_ptr<SegmentFiles> files_ = MakePosixSegmentFiles(dir_.path(), GetParam());
  const std::shared_ptr<uint8_t[]> block_ = AlignedBlock(kBytes), read_ = AlignedBlock(kBytes);
  std::vector<std::span<uint8_t>> buffers_;
  size_t came_ = 0, parts_ = 0;
};

INSTANTIATE_TEST_SUITE_P(DirectIo, ReadInPartsTest, testing::Bool());

TEST_P(ReadInPartsTest, ShowsEverythingInOrder) {
  ASSERT_OK(Read());
  EXPECT_EQ(came_, kBytes);
  EXPECT_GT(parts_, GetParam() ? 2u : 0u);
}

TEST_P(ReadInPartsTest, AFileThatWasCutShortIsAnErrorInTheMiddle) {
  ASSERT_EQ(truncate(path_.c_str(), kDiskBlock + kBytes / 2), 0);
  EXPECT_THAT(Read(), HasCode(StatusCode::kDataLoss));
  EXPECT_LE(came_, kBytes / 2) << "what did not come is not shown";
}

TEST_P(ReadInPartsTest, AFileThatIsRemovedMeanwhileIsReadToItsEnd) {
  ASSERT_OK(Read([&] {
    if (parts_ == 1) {
      EXPECT_OK(files_->Remove(1));
    }
  }));
  EXPECT_EQ(came_, kBytes);
  EXPECT_THAT(Read(), HasCode(StatusCode::kNotFound));
}

// Sealed bodies, for which torn writes are told and reads go in parts.
class SealedSegmentStoreTest : public SegmentStoreTest {
 protected:
  SealedSegmentStoreTest() {
    for (uint64_t i = 0; i < body_.size(); ++i) body_[i] = static_cast<char>(i * i >> 8);
  }
  void OpenSealed(bool direct_io) {
    auto store =
        SegmentStore::Open(folder_, MakePosixSegmentFiles(folder_, direct_io), 64 << 20, sealed_);
    ASSERT_OK(store.status());
    store_ = *std::move(store);
    place_ = Write({1, 0}, body_);
    ASSERT_TRUE(place_.sealed());
  }
  std::string File() { return absl::StrCat(folder_, "/00000", place_.file, ".kvs"); }
  std::string Extent() {
    std::string out(place_.extent().bytes, 0);
    std::ifstream file(File(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place_.offset));
    file.read(out.data(), static_cast<std::streamsize>(out.size()));
    return out;
  }
  void PutExtent(const std::string& bytes) {
    std::fstream file(File(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place_.offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  const std::shared_ptr<TestKeys> keys_ = std::make_shared<TestKeys>();
  Vault sealed_{keys_};
  std::string body_ = std::string((2 << 20) + 77, 0);
  SegmentPlace place_;
};

TEST_F(SealedSegmentStoreTest, ATornWriteIsToldWithAndWithoutTheKey) {
  OpenSealed(false);
  const std::string whole = Extent();
  // The same body in the same place, as it was sealed before.
  const SegmentPlace old = std::exchange(place_, Write({1, 0}, body_));
  const std::string before = Extent();
  place_ = old;
  ASSERT_NE(before.substr(0, 512), whole.substr(0, 512)) << "every write has a nonce of its own";
  for (const bool locked : {false, true}) {
    keys_->locked = locked;
    PutExtent(whole);
    EXPECT_OK(store_->WriteAgain({{1, 0}, place_}));
    for (const size_t begin : {size_t{0}, size_t{512}, size_t{1} << 20, whole.size() - 4096}) {
      for (const size_t bytes : {size_t{512}, size_t{4096}, size_t{1} << 20}) {
        std::string torn = whole;
        torn.replace(begin, bytes, before, begin, bytes);
        if (begin + bytes < whole.size() || bytes >= 4096) {
          PutExtent(torn);
          EXPECT_THAT(store_->WriteAgain({{1, 0}, place_}), HasCode(StatusCode::kDataLoss))
              << begin << " " << bytes;
        }
      }
    }
  }
}

TEST_F(SealedSegmentStoreTest, NoWrongByteIsHandedOut) {
  for (const bool direct_io : {false, true}) {
    OpenSealed(direct_io);
    const auto good = Read({1, 0}, place_);
    ASSERT_OK(good.status());
    EXPECT_TRUE(AsString(good->span()) == body_);
    const std::string whole = Extent();
    for (const size_t at : {size_t{0}, size_t{100}, size_t{600} << 10, body_.size() - 1}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      PutExtent(bad);
      EXPECT_THAT(Read({1, 0}, place_).status(), HasCode(StatusCode::kDataLoss)) << at;
    }
    PutExtent(whole);
    keys_->locked = true;
    EXPECT_THAT(Read({1, 0}, place_).status(), HasCode(StatusCode::kUnavailable));
    keys_->locked = false;
    EXPECT_OK(Read({1, 0}, place_).status());
    ASSERT_EQ(truncate(File().c_str(), static_cast<off_t>(place_.offset + (1 << 20))), 0);
    EXPECT_THAT(Read({1, 0}, place_).status(), HasCode(StatusCode::kDataLoss));
    store_.reset();
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(SegmentStoreTest, FilesOfAnotherVersionStayAsTheyAre) {
  Open();
  const SegmentPlace place = Write({1, 0}, std::string(9000, 'x'));
  store_.reset();
  const std::string path = folder_ + "/000001.kvs";
  // Version 2, with a right digest.
  std::string header = SegmentFileHeader(1);
  header[4] = 2;
  const uint64_t digest = Xxh3(AsBytes(header).first(16));
  header.replace(16, 8, reinterpret_cast<const char*>(&digest), 8);
  EXPECT_THAT(CheckSegmentFileHeader(AsBytes(header), 1), HasCode(StatusCode::kFailedPrecondition));
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file << header;
  }
  const auto bytes = [&] {
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string before = bytes();
  Open();
  store_->SetLive({});
  EXPECT_THAT(Read({1, 0}, place).status(), HasCode(StatusCode::kDataLoss));
  const SegmentPlace other = Write({2, 0}, std::string(9000, 'y'));
  EXPECT_EQ(other.file, 2u);
  EXPECT_OK(Read({2, 0}, other).status());
  EXPECT_TRUE(bytes() == before);
}

TEST_F(SegmentStoreTest, ManyThreadsAtOnce) {
  Open();
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937_64 random(t);
      std::vector<std::pair<std::string, std::vector<SegmentPlace>>> pages;
      for (uint64_t step = 0; step < 200; ++step) {
        const std::string body(4096 + random() % 60'000, static_cast<char>('a' + random() % 26));
        const std::vector<SegmentStore::Body> bodies(
            1 + random() % 3,
            {{t, static_cast<uint16_t>(step)}, 0, AsBytes(body), Xxh3(AsBytes(body))});
        const auto written = store_->Write(bodies);
        ASSERT_OK(written.status());
        pages.emplace_back(body, written->places);
        if (step % 16 == 0) {
          EXPECT_OK(store_->Sync(written->commit));
        }
        const size_t at = random() % pages.size();
        std::vector<SegmentStore::Wanted> wanted;
        const auto index = static_cast<uint16_t>(at);
        const uint64_t digest = Xxh3(AsBytes(pages[at].first));
        for (const SegmentPlace& place : pages[at].second) {
          wanted.push_back({{t, index}, place, 0, digest});
        }
        for (const auto& read : store_->Read(wanted)) {
          ASSERT_OK(read.status());
          EXPECT_TRUE(AsString(read->span()) == pages[at].first);
        }
        if (step % 3 != 0) continue;
        // Freed and written again, by any thread.
        std::vector<Extent> extents;
        for (const SegmentPlace& place : pages[at].second) extents.push_back(place.extent());
        store_->Free(extents);
        pages[at].second.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->last_commit(), 800u);
}

TEST_F(SegmentStoreTest, ABodyLargerThanAFileHasOneOfItsOwn) {
  Open();
  const std::string body((9 << 20) + 1, 'x');
  const SegmentPlace place = Write({1, 0}, body);
  const auto read = Read({1, 0}, place);
  ASSERT_OK(read.status());
  EXPECT_TRUE(AsString(read->span()) == body);
}

}  // namespace
}  // namespace kvstow
