// Memory of two processes, here mapped twice by one.
#include "base/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace kvstow {
namespace {

class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemory theirs_ = *SharedMemory::Create(4 * kSharedPageBytes - 7);
  SharedMemory ours_ = *SharedMemory::Map(dup(theirs_.descriptor()));
};

bool All(std::span<const uint8_t> bytes, uint8_t value) {
  return std::ranges::all_of(bytes, [value](uint8_t b) { return b == value; });
}

TEST_F(SharedMemoryTest, BothSeeTheSameBytesAndNobodyCanCutThem) {
  ASSERT_EQ(ours_.bytes().size(), 4 * kSharedPageBytes);
  ASSERT_EQ(theirs_.bytes().size(), 4 * kSharedPageBytes);
  ours_.bytes()[5000] = 17;
  EXPECT_EQ(theirs_.bytes()[5000], 17);
  EXPECT_NE(ftruncate(ours_.descriptor(), 0), 0);
  EXPECT_NE(ftruncate(ours_.descriptor(), 1 << 20), 0);
}

TEST_F(SharedMemoryTest, WhatThePeerWritesLaterDoesNotShow) {
  std::ranges::fill(ours_.bytes(), 1);
  const auto middle = ours_.bytes().subspan(kSharedPageBytes, 2 * kSharedPageBytes);
  ASSERT_TRUE(ours_.Unshare(middle, SharedMemory::Peer::kWrites).ok());
  std::ranges::fill(middle, 2);
  std::ranges::fill(theirs_.bytes(), 3);
  EXPECT_TRUE(All(middle, 2));
  EXPECT_TRUE(All(ours_.bytes().first(kSharedPageBytes), 3)) << "the rest is shared as before";
  EXPECT_TRUE(All(ours_.bytes().last(kSharedPageBytes), 3));
}

TEST_F(SharedMemoryTest, WhatWeWriteLaterThePeerDoesNotSee) {
  std::ranges::fill(ours_.bytes(), 1);
  const auto first = ours_.bytes().first(kSharedPageBytes);
  ASSERT_TRUE(ours_.Unshare(first.first(10), SharedMemory::Peer::kReads).ok());
  EXPECT_TRUE(All(first, 1)) << "its content stays";
  std::ranges::fill(first, 2);
  EXPECT_TRUE(All(theirs_.bytes(), 1));
}

TEST(SharedMemoryErrors, WhatIsNoSealedMemoryIsRefused) {
  EXPECT_TRUE(absl::IsFailedPrecondition(SharedMemory::Map(-1).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(SharedMemory::Map(open("/dev/null", O_RDWR)).status()));
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(SharedMemory::Map(unsealed).status()));
}

}  // namespace
}  // namespace kvstow
