// Records at rest: golden bytes, and every damage is noticed.
#include "storage/record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/paths.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

using absl::StatusCode;

PageRecord Example() {
  PageRecord record{.number = 0x0102030405060708,
                    .name = {.space = 9, .key = "a key"},
                    .header = SharedBytes::Take(std::string("opaque header")),
                    .raw_bytes = 1 << 20,
                    .first_position = 4096,
                    .tokens = 256,
                    .whole = true,
                    .facts = {{.bytes = 1000, .gain = 1.5f, .digest = 0x1122334455667788},
                              {.bytes = 1, .gain = 0, .digest = 2}}};
  for (int i = 0; i < 16; ++i) record.raw_digest.bytes[i] = static_cast<uint8_t>(0xa0 + i);
  return record;
}

SpaceRecord ExampleSpace() {
  return {.id = 7, .bytes = SharedBytes::Take(std::string("opaque spec"))};
}

std::string Golden(const std::string& name) {
  std::ifstream file(TestsPath("golden/" + name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Record, PageIsAsTheGoldenFileSays) {
  const std::string golden = Golden("page_record_v1.bin");
  ASSERT_EQ(HexOf(AsBytes(SerializePageRecord(Example()))), HexOf(AsBytes(golden)));
  const auto parsed = ParsePageRecord(AsBytes(golden));
  ASSERT_OK(parsed.status());
  const PageRecord want = Example();
  EXPECT_EQ(parsed->number, want.number);
  EXPECT_EQ(parsed->name, want.name);
  EXPECT_EQ(AsString(parsed->header.span()), "opaque header");
  EXPECT_EQ(parsed->raw_digest, want.raw_digest);
  EXPECT_EQ(parsed->raw_bytes, want.raw_bytes);
  EXPECT_EQ(parsed->first_position, want.first_position);
  EXPECT_EQ(parsed->tokens, want.tokens);
  EXPECT_TRUE(parsed->whole);
  ASSERT_EQ(parsed->facts.size(), 2u);
  EXPECT_EQ(parsed->facts[0].bytes, 1000u);
  EXPECT_EQ(parsed->facts[0].gain, 1.5f);
  EXPECT_EQ(parsed->facts[0].digest, 0x1122334455667788u);
}

TEST(Record, APageMayNameTheOneBeforeIt) {
  PageRecord example = Example();
  example.parent = 0x99aabbccddeeff00;
  const std::string golden = Golden("page_record_v1_parent.bin");
  ASSERT_EQ(HexOf(AsBytes(SerializePageRecord(example))), HexOf(AsBytes(golden)));
  const auto parsed = ParsePageRecord(AsBytes(golden));
  ASSERT_OK(parsed.status());
  EXPECT_EQ(parsed->parent, example.parent);
  EXPECT_EQ(AsString(parsed->header.span()), "opaque header");
  EXPECT_EQ(ParsePageRecord(AsBytes(Golden("page_record_v1.bin")))->parent, std::nullopt);
}

TEST(Record, SpaceIsAsTheGoldenFileSays) {
  const std::string golden = Golden("space_record_v1.bin");
  ASSERT_EQ(HexOf(AsBytes(SerializeSpaceRecord(ExampleSpace()))), HexOf(AsBytes(golden)));
  const auto parsed = ParseSpaceRecord(AsBytes(golden));
  ASSERT_OK(parsed.status());
  EXPECT_EQ(parsed->id, 7u);
  EXPECT_EQ(AsString(parsed->bytes.span()), "opaque spec");
}

TEST(Record, EveryFlippedBitAndEveryCutIsNoticed) {
  const std::string good = SerializePageRecord(Example());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(ParsePageRecord(AsBytes(bad)).status(), HasCode(StatusCode::kDataLoss)) << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(ParsePageRecord(AsBytes(good).first(size)).status(),
                HasCode(StatusCode::kDataLoss));
  }
  EXPECT_FALSE(ParseSpaceRecord(AsBytes(good)).ok()) << "a page is no space";
}

// A record that was written whole by another build.
std::string Resealed(std::string record, size_t at, uint8_t value) {
  record.resize(record.size() - sizeof(uint64_t));
  record[at] = static_cast<char>(value);
  const uint64_t digest = Xxh3(AsBytes(record));
  record.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  return record;
}

TEST(Record, AnUnknownVersionIsToldFromDamage) {
  const std::string later = Resealed(SerializePageRecord(Example()), 4, kRecordVersion + 1);
  EXPECT_THAT(ParsePageRecord(AsBytes(later)).status(), HasCode(StatusCode::kFailedPrecondition));
  const std::string flagged = Resealed(SerializePageRecord(Example()), 6, 8);
  EXPECT_THAT(ParsePageRecord(AsBytes(flagged)).status(), HasCode(StatusCode::kFailedPrecondition));
}

TEST(Record, LengthsThatContradictEachOtherAreRefused) {
  const std::string good = SerializePageRecord(Example());
  for (size_t at = 8; at + sizeof(uint64_t) < good.size(); ++at) {
    // Whatever a field is set to, parsing stays within the bytes; the digest is right here.
    const auto parsed = ParsePageRecord(AsBytes(Resealed(good, at, 0xff)));
    if (!parsed.ok()) {
      EXPECT_THAT(parsed.status(), HasCode(StatusCode::kDataLoss)) << at;
    }
  }
}

TEST(Record, KeysSortByNumber) {
  EXPECT_LT(PageRecordKey(255), PageRecordKey(256));
  EXPECT_LT(SegmentKey({1, 65535}), SegmentKey({2, 0}));
  EXPECT_EQ(NumberInKey(AsBytes(PageRecordKey(123456789))), 123456789u);
  EXPECT_EQ(NumberInKey(AsBytes(SpaceRecordKey(77))), 77u);
  EXPECT_EQ(NumberInKey(AsBytes("three")), 0u);
}

}  // namespace
}  // namespace kvstow
