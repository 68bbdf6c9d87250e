#include "base/shared_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.h"

namespace kvstow {
namespace {

TEST(SharedBytesTest, NothingIsEmpty) {
  const SharedBytes bytes;
  EXPECT_TRUE(bytes.empty());
  EXPECT_EQ(bytes.size(), 0u);
  EXPECT_EQ(bytes.owner(), nullptr);
  EXPECT_TRUE(SharedBytes::CopyOf({}).empty());
}

TEST(SharedBytesTest, CopyOfDoesNotFollowItsSource) {
  std::vector<uint8_t> source = {1, 2, 3};
  const SharedBytes bytes = SharedBytes::CopyOf(source);
  source[0] = 9;
  EXPECT_THAT(bytes.span(), testing::ElementsAre(1, 2, 3));
}

TEST(SharedBytesTest, TakeKeepsTheMemory) {
  std::vector<uint8_t> vector(1000, 7);
  const uint8_t* data = vector.data();
  EXPECT_EQ(SharedBytes::Take(std::move(vector)).data(), data);
  // A short string lives inside the object and moves with it; the view must follow.
  EXPECT_EQ(AsString(SharedBytes::Take(std::string("short")).span()), "short");
}

TEST(SharedBytesTest, CopiesAndSlicesShareOneOwner) {
  SharedBytes bytes = SharedBytes::Take(std::string("0123456789"));
  const SharedBytes copy = bytes;
  EXPECT_EQ(copy.data(), bytes.data());
  const SharedBytes slice = bytes.Slice(2, 3);
  EXPECT_EQ(AsString(slice.span()), "234");
  EXPECT_EQ(slice.data(), bytes.data() + 2);
  EXPECT_TRUE(bytes.Slice(10, 0).empty());
}

TEST(SharedBytesTest, TheLastReferenceFreesTheOwner) {
  auto owner = std::make_shared<std::string>("bytes");
  const std::weak_ptr<std::string> watch = owner;
  SharedBytes bytes(owner, AsBytes(*owner));
  owner.reset();
  SharedBytes slice = bytes.Slice(1, 2);
  bytes = {};
  ASSERT_FALSE(watch.expired()) << "the slice still needs it";
  EXPECT_EQ(AsString(slice.span()), "yt");
  slice = {};
  EXPECT_TRUE(watch.expired());
}

TEST(ByteBlockTest, IsFilledAndThenShared) {
  ByteBlock block(4);
  for (uint8_t i = 0; i < 4; ++i) block.span()[i] = i;
  const uint8_t* data = block.data();
  const SharedBytes bytes = std::move(block).Share();
  EXPECT_EQ(bytes.data(), data);
  EXPECT_THAT(bytes.span(), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(std::move(*std::make_unique<ByteBlock>(0)).Share().empty());
}

}  // namespace
}  // namespace kvstow
