#include "storage/disk/async_transfers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "storage/disk/block_pool.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

constexpr size_t kBlock = 4096;
constexpr size_t kMost = AsyncTransfers::kMost;

class AsyncTransfersTest : public testing::Test {
 protected:
  AsyncTransfersTest() {
    for (size_t i = 0; i <= kMost; ++i) {
      std::memset(block_.get() + i * kBlock, 'a' + static_cast<int>(i), kBlock);
    }
  }
  ~AsyncTransfersTest() override { close(fd_); }
  bool StartWrite(size_t i) {
    return transfers_.StartWrite(fd_, i * kBlock, {block_.get() + i * kBlock, kBlock});
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() + "/file";
  const int fd_ = open(path_.c_str(), O_RDWR | O_CREAT, 0600);
  const std::shared_ptr<uint8_t[]> block_ = AlignedBlock((kMost + 1) * kBlock);
  AsyncTransfers transfers_;
};

TEST_F(AsyncTransfersTest, WritesAllPartsAndNoMoreAtOnceThanItMay) {
  if (!StartWrite(0)) GTEST_SKIP() << "the kernel has no native asynchronous I/O";
  for (int round = 0; round < 3; ++round) {
    for (size_t i = transfers_.under_way(); i < kMost; ++i) EXPECT_TRUE(StartWrite(i));
    EXPECT_FALSE(StartWrite(kMost));
    EXPECT_TRUE(transfers_.WaitFirst());
    EXPECT_TRUE(StartWrite(kMost)) << "one has room again";
    while (transfers_.under_way() > 0) EXPECT_TRUE(transfers_.WaitFirst());
  }
  std::string there((kMost + 1) * kBlock, 0);
  ASSERT_EQ(pread(fd_, there.data(), there.size(), 0), static_cast<ssize_t>(there.size()));
  EXPECT_EQ(std::memcmp(there.data(), block_.get(), there.size()), 0);
}

TEST_F(AsyncTransfersTest, ReadsIntoSeveralBuffers) {
  ASSERT_EQ(pwrite(fd_, block_.get(), 4 * kBlock, 0), static_cast<ssize_t>(4 * kBlock));
  std::string one(kBlock, 0), two(2 * kBlock, 0), three(kBlock, 0);
  {
    const std::vector<iovec> buffers{{one.data(), one.size()}, {two.data(), two.size()}};
    if (!transfers_.StartRead(fd_, 0, buffers)) GTEST_SKIP() << "no native asynchronous I/O";
  }
  const iovec last{three.data(), three.size()};
  ASSERT_TRUE(transfers_.StartRead(fd_, 3 * kBlock, {&last, 1}));
  EXPECT_TRUE(transfers_.WaitFirst());
  EXPECT_TRUE(transfers_.WaitFirst());
  EXPECT_EQ(one + two + three, std::string(reinterpret_cast<char*>(block_.get()), 4 * kBlock));
}

TEST_F(AsyncTransfersTest, SaysWhatWasNotTransferredWhole) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  // Refused at once or when it is done: both are told.
  if (transfers_.StartWrite(full, 0, {block_.get(), kBlock})) {
    EXPECT_FALSE(transfers_.WaitFirst());
  }
  close(full);
  EXPECT_FALSE(transfers_.StartWrite(-1, 0, {block_.get(), kBlock}));
  EXPECT_EQ(transfers_.under_way(), 0u);
  // The file ends in the middle of the second read.
  ASSERT_EQ(pwrite(fd_, block_.get(), kBlock + 100, 0), static_cast<ssize_t>(kBlock + 100));
  std::string there(2 * kBlock, 0);
  const iovec first{there.data(), kBlock}, second{there.data() + kBlock, kBlock};
  if (!transfers_.StartRead(fd_, 0, {&first, 1})) GTEST_SKIP() << "no native asynchronous I/O";
  ASSERT_TRUE(transfers_.StartRead(fd_, kBlock, {&second, 1}));
  EXPECT_TRUE(transfers_.WaitFirst());
  EXPECT_FALSE(transfers_.WaitFirst());
}

TEST_F(AsyncTransfersTest, ThePoolGivesThemOutAgain) {
  AsyncTransfersPool pool;
  auto one = pool.Take(), two = pool.Take();
  AsyncTransfers* const first = one.get();
  EXPECT_NE(first, two.get());
  pool.Give(std::move(one));
  EXPECT_EQ(pool.Take().get(), first);
}

}  // namespace
}  // namespace kvstow
