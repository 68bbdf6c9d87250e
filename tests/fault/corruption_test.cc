// Damage on disk: always a miss and a counter, never wrong bytes, and the store goes on.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

class CorruptionTest : public StoreTest {
 protected:
  static constexpr uint64_t kPages = 24;

  // Two segments in segment files and one small one in a table.
  static PrfPage PageOf(uint64_t key) { return {.key = key, .sizes = {9000, 12000, 2000}}; }
  void Fill() {
    for (uint64_t key = 1; key <= kPages; ++key) {
      ASSERT_OK(store_->Put(PageOf(key).ToStore()).status());
    }
    ASSERT_OK(store_->Flush());
  }
  std::vector<fs::path> Files(const std::string& kind) {
    std::vector<fs::path> out;
    for (const auto& file : fs::recursive_directory_iterator(dir_.path() + "/db")) {
      if (!file.is_regular_file()) continue;
      const std::string name = file.path().filename().string();
      const bool skip = name == "LOCK" || name.starts_with("LOG") || file.file_size() == 0;
      if (!skip && (kind.empty() || file.path().extension() == kind)) out.push_back(file.path());
    }
    return out;
  }
  void FlipBits(const fs::path& file, int count) {
    const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    const auto size = static_cast<off_t>(fs::file_size(file));
    for (int i = 0; i < count; ++i) {
      const off_t at = static_cast<off_t>(random_() % size);
      uint8_t byte = 0;
      ASSERT_EQ(pread(fd, &byte, 1, at), 1);
      byte ^= 1 << random_() % 8;
      ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    }
    fsync(fd);
    close(fd);
  }
  // Segments that came back right; wrong bytes fail the test inside.
  size_t ReadAll() {
    size_t good = 0;
    for (uint64_t key = 1; key <= kPages; ++key) good += ReadBack(PageOf(key));
    return good;
  }
  uint64_t Noticed() {
    const StoreCounters counters = store_->residency().Counters();
    return counters.corrupt_segments + counters.lost_segments + counters.damaged_records;
  }
  void ExpectItGoesOn() {
    for (uint64_t key = 1; key <= kPages; ++key) {
      store_->Delete(PageOf(key).name(), true).IgnoreError();  // a miss is what most are
    }
    options_.budget_bytes[1] = 1 << 20;  // in case the disk takes nothing any more
    const PrfPage page = PageOf(1000);
    EXPECT_OK(store_->Put(page.ToStore()).status());
    EXPECT_EQ(ReadBack(page), 3u);
    store_->Delete(page.name(), true).IgnoreError();
  }

  std::mt19937_64 random_{2026};
};

TEST_F(CorruptionTest, FlippedBitsInSegmentFilesUnderARunningStore) {
  Open(0, 0, 64 << 20);
  Fill();
  ASSERT_FALSE(Files(".kvs").empty());
  for (const fs::path& file : Files(".kvs")) FlipBits(file, 12);
  const size_t good = ReadAll();
  EXPECT_LT(good, kPages * 3);
  EXPECT_GT(good, 0u);
  EXPECT_GT(store_->residency().Counters().corrupt_segments, 0u);
  EXPECT_EQ(ReadAll(), good) << "what was dropped is not found again";
  ExpectItGoesOn();
}

TEST_F(CorruptionTest, ADeletedSegmentFile) {
  Open(0, 0, 64 << 20);
  Fill();
  store_.reset();
  for (const fs::path& file : Files(".kvs")) fs::remove(file);
  Reopen();
  EXPECT_EQ(ReadAll(), 0u);
  ASSERT_OK(store_->Put(PageOf(1).ToStore()).status());
  EXPECT_EQ(ReadBack(PageOf(1)), 3u);
}

TEST_F(CorruptionTest, ATruncatedSegmentFile) {
  Open(0, 0, 64 << 20);
  Fill();
  store_.reset();
  for (const fs::path& file : Files(".kvs")) fs::resize_file(file, kPages * 12000);
  Reopen();
  const size_t good = ReadAll();
  EXPECT_LT(good, kPages * 3);
  EXPECT_GT(Noticed() + fs::exists(dir_.path() + "/db.damaged-1"), 0u);
  ASSERT_OK(store_->Put(PageOf(1000).ToStore()).status());
  EXPECT_EQ(ReadBack(PageOf(1000)), 3u);
}

TEST_F(CorruptionTest, DamagedMetadataIsSetAside) {
  Open(0, 0, 64 << 20);
  Fill();
  store_.reset();
  fs::resize_file(dir_.path() + "/db/CURRENT", 5);
  Reopen();
  EXPECT_EQ(ReadAll(), 0u);
  EXPECT_TRUE(fs::exists(dir_.path() + "/db.damaged-1")) << "nothing was thrown away";
  Fill();
  EXPECT_EQ(ReadAll(), kPages * 3);
}

TEST_F(CorruptionTest, AnyFileAnyDamage) {
  Open(0, 0, 64 << 20);
  for (int round = 0; round < 8; ++round) {
    Fill();
    ASSERT_EQ(ReadAll(), kPages * 3);
    store_.reset();
    const std::vector<fs::path> files = Files("");
    const fs::path& file = files[random_() % files.size()];
    const int damage = static_cast<int>(random_() % 4);
    SCOPED_TRACE(
        absl::StrCat("round ", round, ": damage ", damage, " to ", file.filename().string()));
    if (damage == 0) {
      fs::remove(file);
    } else if (damage == 1) {
      fs::resize_file(file, random_() % fs::file_size(file));
    } else {
      FlipBits(file, damage == 2 ? 1 : 20);
    }
    ReopenDamaged();
    ReadAll();
    // A fresh start for the next round; the damaged database is left as it is.
    store_.reset();
    fs::remove_all(dir_.path() + "/db");
    Reopen();
  }
}

}  // namespace
}  // namespace kvstow
