// Sealed values of the remote store: bytes as docs/FORMAT.md gives them, and nothing that anybody
// without the key can read, move or change.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "service/remote/remote_key_record.h"
#include "service/remote/remote_page.h"
#include "service/remote/remote_purge.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using Bytes32 = std::array<uint8_t, kAeadKeyBytes>;

SharedBytes Joined(const std::vector<SharedBytes>& parts) {
  std::string bytes;
  for (const SharedBytes& part : parts) absl::StrAppend(&bytes, AsString(part.span()));
  return SharedBytes::Take(std::move(bytes));
}

std::string Golden(const std::string& name) {
  std::ifstream in(TestsPath(absl::StrCat("golden/", name, ".bin")), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

AeadNonce FixedNonce() {
  AeadNonce nonce;
  nonce.fill(7);
  return nonce;
}

RemoteKeyPtr KeyOfByte(uint8_t byte) {
  return std::make_shared<const RemoteKey>(byte, SecretKey(Bytes32{byte}));
}

MasterKey MasterOfByte(uint8_t byte) {
  return {.id = byte, .secret = std::make_shared<const SecretKey>(Bytes32{byte})};
}

Space SpaceOfTest() {
  Space space;
  space.name = "s";
  space.tenant = "t";
  space.fingerprint.fill(7);
  return space;
}

RemotePlace PlaceOfTest(const std::string& key = "key", uint8_t secret = 3) {
  return PlaceOf(SpaceOfTest(), {.generation = 2, .key = KeyOfByte(secret)}, key);
}

const SharedBytes& Body() {
  static const SharedBytes body =
      SharedBytes::Take("the body of a segment, twice a block and more");
  return body;
}

SegmentFacts FactsOfBody() {
  return {.bytes = static_cast<uint32_t>(Body().size()), .gain = 1, .digest = Xxh3(Body().span())};
}

SharedBytes SealedSegment(const RemotePlace& place) {
  return Joined(SegmentValue(place, 1, FactsOfBody(), Body(), FixedNonce()));
}

TEST(SealedPage, BytesAreThoseOfTheFormat) {
  EXPECT_EQ(HexOf(SealedSegment(PlaceOfTest()).span()),
            HexOf(AsBytes(Golden("remote_sealed_segment_v1"))));
  const KeyRecord record = Wrap(MasterOfByte(5), "t", *KeyOfByte(3), FixedNonce());
  EXPECT_EQ(HexOf(Joined(KeyRecordValue("t", record)).span()),
            HexOf(AsBytes(Golden("remote_key_v1"))));
  EXPECT_EQ(HexOf(PlaceOfTest().tag.bytes), "6948622b6344065271d7c595b400ef70") << "docs/FORMAT.md";
  EXPECT_EQ(HexOf(KeyTagOf("t").bytes), "5bba3bd37b5c09b138b68e91e4ae1147") << "docs/FORMAT.md";
}

TEST(SealedPage, OldBytesOpen) {
  const auto body = ParseSegmentValue(PlaceOfTest(), 1, FactsOfBody(),
                                      SharedBytes::Take(Golden("remote_sealed_segment_v1")));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(AsString(body->span()), AsString(Body().span()));
  const auto record = ParseKeyRecord("t", SharedBytes::Take(Golden("remote_key_v1")));
  ASSERT_TRUE(record.ok()) << record.status();
  const auto key = Unwrap(std::vector<MasterKey>{MasterOfByte(4), MasterOfByte(5)}, "t", *record);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ((*key)->id(), 3u);
  EXPECT_EQ(HexOf((*key)->secret().bytes()), HexOf(Bytes32{3}));
}

TEST(SealedPage, EveryChangeIsAMiss) {
  const RemotePlace place = PlaceOfTest();
  const SharedBytes value = SealedSegment(place);
  for (size_t at = 0; at < value.size(); ++at) {
    std::string bytes(AsString(value.span()));
    EXPECT_FALSE(
        ParseSegmentValue(place, 1, FactsOfBody(), SharedBytes::Take(bytes.substr(0, at))).ok());
    bytes[at] = static_cast<char>(bytes[at] ^ 16);
    EXPECT_FALSE(ParseSegmentValue(place, 1, FactsOfBody(), SharedBytes::Take(bytes)).ok()) << at;
  }
}

TEST(SealedPage, AValueOpensInItsPlaceAlone) {
  const SharedBytes value = SealedSegment(PlaceOfTest());
  EXPECT_TRUE(ParseSegmentValue(PlaceOfTest(), 1, FactsOfBody(), value).ok());
  const auto fails = [&](const RemotePlace& place, size_t index) {
    return absl::IsDataLoss(ParseSegmentValue(place, index, FactsOfBody(), value).status());
  };
  EXPECT_TRUE(fails(PlaceOfTest("kez"), 1));
  EXPECT_TRUE(fails(PlaceOfTest("key", 4), 1)) << "another key, and so another name";
  EXPECT_TRUE(fails(PlaceOfTest(), 0));
  RemotePlace moved = PlaceOfTest();
  moved.key = KeyOfByte(4);
  EXPECT_TRUE(fails(moved, 1)) << "another key at the same name";
  EXPECT_TRUE(absl::IsDataLoss(OpenFramed(PlaceOfTest(), RemoteKind::kRecord, 1, value).status()));
  SegmentFacts other = FactsOfBody();
  other.digest = 1;
  EXPECT_TRUE(absl::IsAborted(ParseSegmentValue(PlaceOfTest(), 1, other, value).status()))
      << "of another coding of the page";
}

TEST(SealedPage, ClearValuesAndSealedOnesAreNotMistakenForEachOther) {
  const RemotePlace sealed = PlaceOfTest();
  const RemotePlace clear = {sealed.tag, nullptr};
  const SharedBytes forged = Joined(SegmentValue(clear, 1, FactsOfBody(), Body()));
  EXPECT_TRUE(absl::IsDataLoss(ParseSegmentValue(sealed, 1, FactsOfBody(), forged).status()))
      << "who has no key put it there";
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ParseSegmentValue(clear, 1, FactsOfBody(), SealedSegment(sealed)).status()));
}

TEST(SealedPage, RecordsAndPurgesComeBackAndTellNothing) {
  const RemotePlace place = PlaceOfTest();
  PageRecord record{.number = 1, .name = {.space = 0, .key = "key"}, .tokens = 16};
  record.header = SharedBytes::Take("a header of a page");
  record.facts.push_back(FactsOfBody());
  const SharedBytes value = Joined(RecordValue(place, record));
  const auto back = ParseRecordValue(place, "key", value);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->tokens, 16u);
  EXPECT_FALSE(absl::StrContains(AsString(value.span()), "a header"));
  const PurgeRecord purge{.generation = 3, .deleted = {{1, "a-key-of-a-page"}}};
  const SharedBytes told = Joined(PurgeValue(place, purge));
  EXPECT_FALSE(absl::StrContains(AsString(told.span()), "a-key"));
  const auto again = ParsePurgeValue(place, told);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, purge);
}

TEST(SealedPage, TwoSealsOfOneValueDiffer) {
  const auto seal = [] { return Joined(SegmentValue(PlaceOfTest(), 1, FactsOfBody(), Body())); };
  EXPECT_NE(HexOf(seal().span()), HexOf(seal().span()));
}

TEST(RemoteKeyRecord, IsBoundToWhatItIs) {
  const MasterKey master = MasterOfByte(5);
  const KeyRecord record = Wrap(master, "t", *KeyOfByte(3));
  const std::vector<MasterKey> ours = {master}, others = {MasterOfByte(6)};
  EXPECT_TRUE(Unwrap(ours, "t", record).ok());
  EXPECT_TRUE(absl::IsUnavailable(Unwrap(others, "t", record).status()));
  EXPECT_TRUE(absl::IsUnavailable(Unwrap({}, "t", record).status()));
  EXPECT_TRUE(absl::IsDataLoss(Unwrap(ours, "u", record).status())) << "of another tenant";
  KeyRecord changed = record;
  changed.id = 4;
  EXPECT_TRUE(absl::IsDataLoss(Unwrap(ours, "t", changed).status()));
  MasterKey pretends = MasterOfByte(6);
  pretends.id = 5;
  EXPECT_TRUE(absl::IsDataLoss(Unwrap(std::vector{pretends}, "t", record).status()));
}

TEST(RemoteKeyRecord, EveryDamageIsNoticed) {
  const SharedBytes value = Joined(KeyRecordValue("t", Wrap(MasterOfByte(5), "t", *KeyOfByte(3))));
  EXPECT_TRUE(ParseKeyRecord("t", value).ok());
  EXPECT_FALSE(ParseKeyRecord("u", value).ok());
  for (size_t at = 0; at < value.size(); ++at) {
    std::string bytes(AsString(value.span()));
    EXPECT_FALSE(ParseKeyRecord("t", SharedBytes::Take(bytes.substr(0, at))).ok()) << at;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    EXPECT_FALSE(ParseKeyRecord("t", SharedBytes::Take(bytes)).ok()) << at;
  }
}

}  // namespace
}  // namespace kvstow
