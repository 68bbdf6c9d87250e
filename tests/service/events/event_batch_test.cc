// The bytes of a batch are those that msgspec writes for vLLM's structs: the texts below are its
// output. tests/client/python/kv_events_test.py compares with msgspec itself.
#include "service/events/event_batch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"

namespace kvstow {
namespace {

std::string Hex(const std::string& bytes) { return HexOf(AsBytes(bytes)); }

TEST(EventBatchTest, EveryEventAndEveryWidthOfANumber) {
  EventBatch batch;
  batch.AddCleared();
  const std::vector<uint64_t> widths = {1,     127,   128,        255,        256,
                                        65535, 65536, UINT32_MAX, 4294967296, UINT64_MAX};
  batch.AddStored(widths, 64, "");
  const std::vector<uint64_t> five = {5}, seven = {7};
  batch.AddStored(five, 300, "adapter");
  batch.AddRemoved(seven);
  EXPECT_EQ(batch.events(), 4u);
  EXPECT_EQ(batch.hashes(), 12u);
  EXPECT_EQ(Hex(batch.Finish(1.5)),
            "93cb3ff80000000000009481a474797065b0416c6c426c6f636b73436c656172656488a474797065ab42"
            "6c6f636b53746f726564ac626c6f636b5f6861736865739a017fcc80ccffcd0100cdffffce00010000ce"
            "ffffffffcf0000000100000000cfffffffffffffffffb1706172656e745f626c6f636b5f68617368c0a9"
            "746f6b656e5f69647390aa626c6f636b5f73697a6540a76c6f72615f6964c0a66d656469756da753544f"
            "52414745a96c6f72615f6e616d65c088a474797065ab426c6f636b53746f726564ac626c6f636b5f6861"
            "736865739105b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b"
            "5f73697a65cd012ca76c6f72615f6964c0a66d656469756da753544f52414745a96c6f72615f6e616d65"
            "a76164617074657283a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107"
            "a66d656469756da753544f5241474500");
}

TEST(EventBatchTest, AFinishedBatchLeavesNothingBehind) {
  EventBatch batch;
  batch.AddCleared();
  batch.Finish(0);
  EXPECT_EQ(Hex(batch.Finish(0)), "93cb00000000000000009000");
}

TEST(EventBatchTest, LongListsAndTexts) {
  EventBatch batch;
  std::vector<uint64_t> hashes(16);
  std::iota(hashes.begin(), hashes.end(), 0);
  batch.AddRemoved(hashes);
  EXPECT_EQ(Hex(batch.Finish(0)),
            "93cb00000000000000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573"
            "dc0010000102030405060708090a0b0c0d0e0fa66d656469756da753544f5241474500");

  batch.AddRemoved(std::vector<uint64_t>(70'000, 9));
  const std::string many = batch.Finish(0);
  EXPECT_EQ(many.size(), 70'064u);
  EXPECT_EQ(Hex(many.substr(43, 6)), "dd0001117009");

  const std::vector<uint64_t> one = {1};
  batch.AddStored(one, 1, std::string(40, 'x'));
  const std::string text = batch.Finish(0);
  EXPECT_EQ(Hex(text.substr(text.size() - 43, 3)), "d92878");
  batch.AddStored(one, 1, std::string(300, 'x'));
  EXPECT_EQ(HexOf(Sha256(AsBytes(batch.Finish(0)))),
            "dd39de32654cb803216f202a63b3dd7115e15a4d7b775248e81f349947316627");
}

// vLLM: int.from_bytes(hash, "big") & (2**64 - 1).
TEST(EventBatchTest, AHashIsTheEndOfAKey) {
  EXPECT_EQ(EventHash(""), 0u);
  EXPECT_EQ(EventHash("\x01\x02"), 0x0102u);
  EXPECT_EQ(EventHash("\xFF\xFE\xFD\xFC\xFB\xFA\xF9\xF8"), 0xFFFEFDFCFBFAF9F8u);
  EXPECT_EQ(EventHash(std::string(24, 'a') + "\x80\x01\x02\x03\x04\x05\x06\x07"),
            0x8001020304050607u);
}

}  // namespace
}  // namespace kvstow
