#include "storage/disk/async_writes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "storage/disk/block_pool.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

constexpr size_t kBlock = 4096;

class AsyncWritesTest : public testing::Test {
 protected:
  ~AsyncWritesTest() override { close(fd_); }
  AsyncWrites::Part Part(size_t i) const {
    std::memset(block_.get() + i * kBlock, 'a' + static_cast<int>(i), kBlock);
    return {i * kBlock, {block_.get() + i * kBlock, kBlock}};
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() + "/file";
  const int fd_ = open(path_.c_str(), O_RDWR | O_CREAT, 0600);
  const std::shared_ptr<uint8_t[]> block_ = AlignedBlock((AsyncWrites::kMost + 1) * kBlock);
};

TEST_F(AsyncWritesTest, WritesAllPartsAndNoMoreAtOnceThanItMay) {
  AsyncWrites writes;
  if (!writes.Start(fd_, Part(0))) GTEST_SKIP() << "the kernel has no native asynchronous I/O";
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 1 - round; i < AsyncWrites::kMost; ++i) {
      EXPECT_TRUE(writes.Start(fd_, Part(i)));
    }
    EXPECT_FALSE(writes.Start(fd_, Part(AsyncWrites::kMost)));
    EXPECT_TRUE(writes.Wait().empty());
  }
  std::string there(AsyncWrites::kMost * kBlock, 0);
  ASSERT_EQ(pread(fd_, there.data(), there.size(), 0), static_cast<ssize_t>(there.size()));
  EXPECT_EQ(std::memcmp(there.data(), block_.get(), there.size()), 0);
}

TEST_F(AsyncWritesTest, SaysWhatWasNotWritten) {
  AsyncWrites writes;
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  // Refused at once or when it is done: both are told.
  if (writes.Start(full, Part(1))) {
    const auto failed = writes.Wait();
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].offset, kBlock);
  }
  close(full);
  EXPECT_FALSE(writes.Start(-1, Part(0)));
  EXPECT_TRUE(writes.Wait().empty());
}

TEST_F(AsyncWritesTest, ThePoolGivesThemOutAgain) {
  AsyncWritesPool pool;
  auto one = pool.Take(), two = pool.Take();
  AsyncWrites* const first = one.get();
  EXPECT_NE(first, two.get());
  pool.Give(std::move(one));
  EXPECT_EQ(pool.Take().get(), first);
}

}  // namespace
}  // namespace kvstow
