// A full disk: reads go on, puts that need it say so, and writing resumes by itself.
#include <sys/mount.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class DiskFullTest : public StoreTest {
 protected:
  void SetUp() override {
    if (mount("kvstow-test", dir_.path().c_str(), "tmpfs", 0, "size=64m") != 0) {
      GTEST_SKIP() << "cannot mount a small tmpfs here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    StoreTest::TearDown();
    store_.reset();
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }

  bool mounted_ = false;
};

TEST_F(DiskFullTest, ReadsGoOnAndWritesResume) {
  const std::string ballast = dir_.path() + "/ballast";
  std::ofstream(ballast) << std::string(32 << 20, 'b');
  Open(0, 8 << 20, 64 << 20);

  const auto page_of = [](uint64_t key) {
    return PrfPage{.key = key, .sizes = {200'000, 200'000}};
  };
  absl::Status refused;
  uint64_t key = 0;
  while (refused.ok() && key < 1000) {
    refused = store_->Put(page_of(++key).ToStore(Ack::kProcess)).status();
  }
  EXPECT_THAT(refused, HasCode(StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(dir_.path()));
  EXPECT_EQ(store_->residency().Find(page_of(key).name()).status().code(), StatusCode::kNotFound);
  for (uint64_t k = 1; k < key; ++k) EXPECT_EQ(ReadBack(page_of(k)), 2u) << k;
  EXPECT_OK(store_->Put(page_of(2000).ToStore()).status()) << "memory does not need the disk";

  std::filesystem::remove(ballast);
  // RocksDB looks for free space every few seconds.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  absl::Status again;
  do {
    again = store_->Put(page_of(key).ToStore(Ack::kProcess)).status();
    if (!again.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (!again.ok() && std::chrono::steady_clock::now() < deadline);
  EXPECT_OK(again) << "writing did not resume";
  for (uint64_t k = 1; k <= key; ++k) EXPECT_EQ(ReadBack(page_of(k)), 2u) << k;
  Reopen();
  for (uint64_t k = 1; k <= key; ++k) EXPECT_EQ(ReadBack(page_of(k)), 2u) << k;
}

}  // namespace
}  // namespace kvstow
