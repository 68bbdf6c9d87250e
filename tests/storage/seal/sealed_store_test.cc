// A whole store that is sealed: what its files tell, what comes back, and what whoever can write
// the disk achieves: misses and counters, never other bytes.
#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "storage/disk/rocks_database.h"
#include "storage/disk/rocks_options.h"
#include "storage/disk/segment_format.h"
#include "storage/seal/vault.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;

class SealedStoreTest : public StoreTest {
 protected:
  static constexpr uint64_t kPages = 12;

  SealedStoreTest() { keys_ = test_keys_; }
  // One segment in its value, two in segment files, of which one goes through in several parts.
  static PrfPage PageOf(uint64_t key) { return {.key = key, .sizes = {2000, 9000, 400'000}}; }
  void Fill(Ack ack = Ack::kProcess) {
    for (uint64_t key = 1; key <= kPages; ++key) {
      ASSERT_OK(store_->Put(PageOf(key).ToStore(ack)).status());
    }
    ASSERT_OK(store_->Flush());
  }
  size_t ReadAll() {
    size_t good = 0;
    for (uint64_t key = 1; key <= kPages; ++key) good += ReadBack(PageOf(key));
    return good;
  }
  uint64_t Noticed() {
    const StoreCounters counters = store_->residency().Counters();
    return counters.corrupt_segments + counters.lost_segments + counters.damaged_records;
  }
  // Everything in the store's folder.
  std::string AllBytes() {
    std::string out;
    for (const auto& file : fs::recursive_directory_iterator(dir_.path())) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path(), std::ios::binary);
      out.append(std::istreambuf_iterator<char>(in), {});
    }
    return out;
  }
  // How many secrets of the pages are in there.
  size_t Secrets(const std::string& bytes) {
    size_t found = 0;
    const auto look = [&](absl::string_view secret) {
      found += bytes.find(std::string(secret)) == std::string::npos ? 0 : 1;
    };
    for (uint64_t key = 1; key <= kPages; ++key) {
      const PrfPage page = PageOf(key);
      look(page.name().key);
      look(AsString(page.ToStore().header.span()));
      for (size_t i = 0; i < page.sizes.size(); ++i) {
        const auto body = page.Body(i);
        for (size_t at = 24; at + 16 <= body.size(); at += body.size() / 7) {
          look(AsString(std::span(body).subspan(at, 16)));
        }
      }
    }
    look("what the space is");
    for (const uint32_t id : {1, 2}) look(AsString(TestKeys::KeyOf("", id).secret->bytes()));
    return found;
  }
  // Lets whoever can write the disk do something to the closed store.
  using Values =
      std::function<void(rocksdb::DB&, const std::vector<rocksdb::ColumnFamilyHandle*>&)>;
  void Tamper(const Values& change) {
    store_.reset();
    rocksdb::DB* db = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> families;
    const auto options = DatabaseOptions(rocksdb::Env::Default(), false);
    ASSERT_TRUE(
        rocksdb::DB::Open(options, dir_.path() + "/db", Families(64 << 20), &families, &db).ok());
    change(*db, families);
    for (rocksdb::ColumnFamilyHandle* family : families) db->DestroyColumnFamilyHandle(family);
    ASSERT_TRUE(db->Close().ok());
    delete db;
  }
  static std::string Get(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family,
                         const std::string& key) {
    std::string value;
    EXPECT_TRUE(db.Get({}, family, key, &value).ok());
    return value;
  }
  std::string ReadExtent(const SegmentPlace& place) {
    std::string out(place.extent().bytes, '\0');
    const int fd = open(FileOf(place).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(pread(fd, out.data(), out.size(), static_cast<off_t>(place.offset)),
              static_cast<ssize_t>(out.size()));
    close(fd);
    return out;
  }
  void WriteExtent(const SegmentPlace& place, const std::string& bytes) {
    const int fd = open(FileOf(place).c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(place.offset)),
              static_cast<ssize_t>(bytes.size()));
    close(fd);
  }
  std::string FileOf(const SegmentPlace& place) {
    return absl::StrCat(dir_.path(), "/db/segments/00000", place.file, ".kvs");
  }
  // Puts the sealed body of `from` in the place of `to`, with everything that needs no key made
  // right.
  void Replace(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* segments, SegmentId from,
               SegmentId to) {
    const std::string from_key = SegmentKey(from), to_key = SegmentKey(to);
    const std::string source = Get(db, segments, from_key), target = Get(db, segments, to_key);
    const auto body = ParseSegmentValue(AsBytes(from_key), AsBytes(source));
    const auto old = ParseSegmentValue(AsBytes(to_key), AsBytes(target));
    ASSERT_TRUE(body.ok() && old.ok() && body->place.length == old->place.length);
    ASSERT_TRUE(body->place.sealed());
    SegmentPlace place = old->place;
    place.seal = body->place.seal;
    if (place.file != 0) {
      std::string extent = ReadExtent(body->place);
      extent.resize(place.length);
      extent += ExtentTail(to, place.length, DigestOfSealed(AsBytes(extent)));
      WriteExtent(place, extent);
    }
    ASSERT_TRUE(
        db.Put({}, segments, to_key, SerializeSegmentValue(to_key, place, body->body)).ok());
  }

  const std::shared_ptr<TestKeys> test_keys_ = std::make_shared<TestKeys>();
};

TEST_F(SealedStoreTest, NoFileHoldsAnythingOfAPage) {
  for (const bool sealed : {false, true}) {
    keys_ = sealed ? test_keys_ : NoDataKeys();
    Open(0, 0, 64 << 20);
    ASSERT_OK(
        store_->SaveSpace({.id = 2, .bytes = SharedBytes::Take(std::string("what the space is"))}));
    Fill(Ack::kDurable);
    const size_t running = Secrets(AllBytes());
    store_.reset();
    const size_t closed = Secrets(AllBytes());
    if (sealed) {
      EXPECT_EQ(running, 0u);
      EXPECT_EQ(closed, 0u);
    } else {
      EXPECT_GT(closed, kPages * 10) << "this finds nothing even in clear";
    }
    fs::remove_all(dir_.path() + "/db");
  }
}

TEST_F(SealedStoreTest, PagesComeBack) {
  Open(0, 0, 64 << 20);
  Fill();
  EXPECT_EQ(ReadAll(), 3 * kPages);
  Reopen();
  EXPECT_EQ(ReadAll(), 3 * kPages);
  EXPECT_EQ(Noticed() + store_->residency().Counters().locked_records, 0u);
}

TEST_F(SealedStoreTest, WithoutTheKeysPagesAreMissesAndStay) {
  Open(0, 0, 64 << 20);
  Fill();
  for (const bool no_keys : {false, true}) {
    if (no_keys) {
      keys_ = NoDataKeys();
    } else {
      test_keys_->locked = true;
    }
    OpenStore();
    EXPECT_EQ(store_->residency().Counters().recovered_pages, 0u);
    EXPECT_EQ(store_->residency().Counters().locked_records, kPages + 1);
    EXPECT_EQ(Noticed(), 0u) << "out of reach is not damage";
    EXPECT_EQ(ReadAll(), 0u);
    // Life goes on, in a space of its own.
    const SpaceId id = store_->residency().NewSpaceId();
    ASSERT_OK(store_->SaveSpace({.id = id, .bytes = SharedBytes::Take(std::string("new"))}));
    const PrfPage page{.key = 500, .space = id};
    EXPECT_EQ(store_->Put(page.ToStore(Ack::kProcess)).ok(), no_keys) << "nothing goes in clear";
    EXPECT_OK(store_->residency().CheckInvariants());
  }
  keys_ = test_keys_;
  test_keys_->locked = false;
  Reopen();
  EXPECT_EQ(ReadAll(), 3 * kPages) << "the keys are back";
}

// After a crash that left nothing known as synced, and one sector of a body as it was before.
TEST_F(SealedStoreTest, ATornBodyEndsWhatCommitsLeftWithAndWithoutTheKeys) {
  for (const bool locked : {false, true}) {
    SCOPED_TRACE(locked);
    Open(0, 0, 64 << 20);
    Fill();
    constexpr uint64_t kTorn = 8;
    Tamper([&](rocksdb::DB& db, const auto& families) {
      ASSERT_TRUE(db.Delete({}, families[kDefault], kSyncedKey).ok());
      const std::string key = SegmentKey({kTorn, 2});
      const std::string value = Get(db, families[kSegments], key);
      const auto parsed = ParseSegmentValue(AsBytes(key), AsBytes(value));
      std::string extent = ReadExtent(parsed->place);
      extent.replace(300 * 512, 512, 512, '\0');
      WriteExtent(parsed->place, extent);
    });
    test_keys_->locked = locked;
    OpenStore();  // recovers
    store_.reset();
    test_keys_->locked = false;
    OpenStore();
    for (uint64_t key = 1; key <= kPages; ++key) {
      // A commit is lost as a whole; what is left of a page is its part before the commit.
      EXPECT_EQ(ReadBack(PageOf(key)), key < kTorn ? 3u : 0u) << key;
    }
    EXPECT_EQ(Noticed(), 0u);
    store_.reset();
    fs::remove_all(dir_.path() + "/db");
  }
}

TEST_F(SealedStoreTest, WhatWasInClearStaysReadableWhereItMay) {
  const auto migrated = std::make_shared<TestKeys>(true);
  keys_ = NoDataKeys();
  Open(0, 0, 64 << 20);
  Fill();
  keys_ = migrated;
  Reopen();
  EXPECT_EQ(ReadAll(), 3 * kPages);
  const PrfPage page{.key = 500, .sizes = {5000}};
  ASSERT_OK(store_->Put(page.ToStore(Ack::kProcess)).status());
  store_.reset();
  EXPECT_EQ(AllBytes().find(page.name().key), std::string::npos) << "new pages are sealed";
  Reopen();
  EXPECT_EQ(ReadAll(), 3 * kPages);
  EXPECT_EQ(ReadBack(page), 1u);
  // A store that says that it never was in clear believes none of it.
  keys_ = test_keys_;
  OpenStore();
  EXPECT_EQ(ReadAll(), 0u);
  EXPECT_EQ(ReadBack(page), 1u) << "it was sealed";
  EXPECT_EQ(store_->residency().Counters().damaged_records, kPages);
}

TEST_F(SealedStoreTest, ARotatedKeyServesNewPagesAndOldOnesStayReadable) {
  Open(0, 0, 64 << 20);
  ASSERT_OK(store_->Put(PageOf(1).ToStore(Ack::kProcess)).status());
  test_keys_->newest = 2;
  ASSERT_OK(store_->Put(PageOf(2).ToStore(Ack::kProcess)).status());
  EXPECT_EQ(ReadBack(PageOf(1)) + ReadBack(PageOf(2)), 6u);
  Tamper([](rocksdb::DB& db, const auto& families) {
    for (const PageNumber page : {1, 2}) {
      const std::string key = SegmentKey({page, 1}), value = Get(db, families[kSegments], key);
      EXPECT_EQ(ParseSegmentValue(AsBytes(key), AsBytes(value))->place.seal.key, page);
    }
  });
  Reopen();
  EXPECT_EQ(ReadBack(PageOf(1)) + ReadBack(PageOf(2)), 6u);
}

TEST_F(SealedStoreTest, SwappedAndMovedBodiesAreMisses) {
  for (const uint16_t index : {0, 1, 2}) {
    SCOPED_TRACE(index);
    Open(0, 0, 64 << 20);
    Fill();
    Tamper([&](rocksdb::DB& db, const auto& families) {
      Replace(db, families[kSegments], {1, index}, {2, index});
      Replace(db, families[kSegments], {3, index}, {4, index});
      Replace(db, families[kSegments], {5, index}, {3, index});
    });
    Reopen();
    EXPECT_EQ(ReadAll(), 3 * (kPages - 3) + 3 * index) << "a miss from the moved segment on";
    EXPECT_EQ(Noticed(), 3u);
    store_.reset();
    fs::remove_all(dir_.path() + "/db");
  }
}

// Page numbers may come again after a crash that lost their record. What one page left cannot take
// the place of another of the same number.
TEST_F(SealedStoreTest, AnOlderBodyOfTheSameNumberIsAMiss) {
  Open(0, 0, 64 << 20);
  ASSERT_OK(store_->Put(PageOf(1).ToStore(Ack::kProcess)).status());
  std::vector<std::pair<std::string, std::string>> old;
  Tamper([&](rocksdb::DB& db, const auto& families) {
    for (const uint16_t i : {0}) {
      old.emplace_back(SegmentKey({1, i}), Get(db, families[kSegments], SegmentKey({1, i})));
    }
  });
  fs::remove_all(dir_.path() + "/db");
  Reopen();
  PrfPage other = PageOf(1);
  other.version = 2;
  ASSERT_OK(store_->Put(other.ToStore(Ack::kProcess)).status());
  Tamper([&](rocksdb::DB& db, const auto& families) {
    for (const auto& [key, value] : old) {
      ASSERT_TRUE(db.Put({}, families[kSegments], key, value).ok());
    }
  });
  Reopen();
  EXPECT_EQ(ReadBack(other), 0u);
  EXPECT_EQ(Noticed(), 1u);
}

TEST_F(SealedStoreTest, RecordsThatMovedAreLeftAlone) {
  Open(0, 0, 64 << 20);
  Fill();
  Tamper([&](rocksdb::DB& db, const auto& families) {
    const std::string one = Get(db, families[Family::kPages], PageRecordKey(1)),
                      two = Get(db, families[Family::kPages], PageRecordKey(2));
    ASSERT_TRUE(db.Put({}, families[Family::kPages], PageRecordKey(1), two).ok());
    // With its number made right.
    constexpr size_t kNumberAt = 16;
    std::string moved = one;
    moved[kNumberAt] = 2;
    moved.resize(moved.size() - 8);
    const uint64_t digest = Xxh3(AsBytes(moved));
    moved.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
    ASSERT_TRUE(db.Put({}, families[Family::kPages], PageRecordKey(2), moved).ok());
    // In clear: anybody could write that.
    PageRecord clear{.number = 3, .name = PageOf(3).name(), .tokens = 16};
    clear.facts = PageOf(4).ToStore().facts;
    ASSERT_TRUE(
        db.Put({}, families[Family::kPages], PageRecordKey(3), SerializePageRecord(clear)).ok());
  });
  Reopen();
  EXPECT_EQ(ReadAll(), 3 * (kPages - 3));
  EXPECT_EQ(store_->residency().Counters().damaged_records, 3u);
}

// A body in clear under a sealed record, with the digest that the record names.
TEST_F(SealedStoreTest, ABodyInClearIsNotBelieved) {
  Open(0, 0, 64 << 20);
  Fill();
  Tamper([&](rocksdb::DB& db, const auto& families) {
    const std::string key = SegmentKey({1, 0});
    const auto body = PageOf(1).Body(0);
    const SegmentPlace place{.commit = 1, .length = static_cast<uint32_t>(body.size())};
    ASSERT_TRUE(db.Put({}, families[kSegments], key, SerializeSegmentValue(key, place, body)).ok());
  });
  Reopen();
  EXPECT_EQ(ReadBack(PageOf(1)), 0u);
  EXPECT_EQ(Noticed(), 1u);
}

TEST_F(SealedStoreTest, APageOfAnotherTenantsSpaceIsNotOpenedByItsKeys) {
  Open(0, 0, 64 << 20);
  for (const SpaceId id : {SpaceId{2}, SpaceId{3}}) {
    ASSERT_OK(store_->SaveSpace({.id = id,
                                 .bytes = SharedBytes::Take(std::string("space")),
                                 .tenant = id == 2 ? "acme" : "other"}));
  }
  const PrfPage ours{.key = 1, .sizes = {2000, 9000}, .space = 2};
  const PrfPage theirs{.key = 1, .sizes = {2000, 9000}, .space = 3};
  ASSERT_OK(store_->Put(ours.ToStore(Ack::kProcess)).status());
  ASSERT_OK(store_->Put(theirs.ToStore(Ack::kProcess)).status());
  Reopen();
  EXPECT_EQ(ReadBack(ours) + ReadBack(theirs), 4u);
  Tamper([&](rocksdb::DB& db, const auto& families) {
    Replace(db, families[kSegments], {1, 0}, {2, 0});
    // The spaces change hands.
    const std::string two = Get(db, families[kSpaces], SpaceRecordKey(2));
    ASSERT_TRUE(db.Put({}, families[kSpaces], SpaceRecordKey(3), two).ok());
  });
  OpenStore();
  EXPECT_EQ(ReadBack(ours), 2u);
  EXPECT_EQ(ReadBack(theirs), 0u);
  EXPECT_GE(store_->residency().Counters().damaged_records, 1u);
}

}  // namespace
}  // namespace kvstow
