// Seals and sealed records: golden bytes, and nothing opens that was changed or moved.
#include "storage/seal/seal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "base/digest.h"
#include "storage/disk/segment_format.h"
#include "storage/seal/vault.h"
#include "tests/paths.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/status_matchers.h"
#include "tests/storage/test_keys.h"

namespace kvstow {
namespace {

using absl::StatusCode;

AeadNonce FixedNonce() {
  AeadNonce out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i);
  return out;
}

std::string Golden(const std::string& name) {
  std::ifstream file(TestsPath("golden/" + name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

PageRecord Example() {
  return {
      .number = 7,
      .name = {.space = 3, .key = "the key of a page"},
      .header = SharedBytes::Take(std::string("the header")),
      .raw_bytes = 1000,
      .tokens = 16,
      .facts = {{.bytes = 100, .gain = 2, .digest = 11}, {.bytes = 50, .gain = 1, .digest = 12}}};
}
SpaceRecord ExampleSpace() {
  return {.id = 3, .bytes = SharedBytes::Take(std::string("the spec")), .tenant = "acme"};
}

// The digest at the end of a record, made anew: what whoever can write the disk would do.
std::string Redigested(std::string record) {
  record.resize(record.size() - sizeof(uint64_t));
  const uint64_t digest = Xxh3(AsBytes(record));
  record.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  return record;
}

TEST(Seal, GoldenRecordsAndValues) {
  Vault vault(std::make_shared<TestKeys>(), &FixedNonce);
  const auto space = vault.Serialize(ExampleSpace());
  const auto page = vault.Serialize(Example());
  ASSERT_OK(space.status());
  ASSERT_OK(page.status());
  EXPECT_EQ(HexOf(AsBytes(*space)), HexOf(AsBytes(Golden("sealed_space_record_v1.bin"))));
  EXPECT_EQ(HexOf(AsBytes(*page)), HexOf(AsBytes(Golden("sealed_page_record_v1.bin"))));
  const auto back = vault.ParsePage(AsBytes(Golden("sealed_page_record_v1.bin")));
  ASSERT_OK(back.status());
  EXPECT_EQ(SerializePageRecord(*back), SerializePageRecord(Example()));
  const auto owned = vault.ParseSpace(AsBytes(Golden("sealed_space_record_v1.bin")));
  ASSERT_OK(owned.status());
  EXPECT_EQ(owned->tenant, "acme");

  // A small body in its value, and the place of a larger one.
  const std::string key = SegmentKey({7, 1}), body = "a small body of a page";
  auto sealing = vault.Seal({.space = 3, .page = 7, .index = 1, .digest = Xxh3(AsBytes(body))});
  ASSERT_TRUE(sealing.ok() && sealing->has_value());
  const SealedValue sealed = SealWhole(**std::move(sealing), AsBytes(body));
  SegmentPlace place{
      .commit = 9, .length = static_cast<uint32_t>(body.size()), .seal = sealed.seal};
  const std::string in_value = SerializeSegmentValue(key, place, AsBytes(sealed.bytes));
  EXPECT_EQ(HexOf(AsBytes(in_value)), HexOf(AsBytes(Golden("sealed_segment_value_v1.bin"))));
  place = {.commit = 9, .length = 5000, .file = 2, .offset = 8192, .seal = sealed.seal};
  const std::string in_file = SerializeSegmentValue(key, place, {});
  EXPECT_EQ(HexOf(AsBytes(in_file)), HexOf(AsBytes(Golden("sealed_segment_place_v1.bin"))));
  const auto parsed = ParseSegmentValue(AsBytes(key), AsBytes(in_file));
  ASSERT_OK(parsed.status());
  EXPECT_TRUE(parsed->place == place);
}

TEST(Seal, ATenantStaysWithItsSpaceInClearToo) {
  EXPECT_EQ(ParseSpaceRecord(AsBytes(SerializeSpaceRecord(ExampleSpace())))->tenant, "acme");
  SpaceRecord one = ExampleSpace();
  one.tenant = "";
  EXPECT_EQ(ParseSpaceRecord(AsBytes(SerializeSpaceRecord(one)))->tenant, "");
}

TEST(Seal, NothingOfARecordIsInClear) {
  Vault vault(std::make_shared<TestKeys>());
  const std::string page = *vault.Serialize(Example()), space = *vault.Serialize(ExampleSpace());
  for (const char* text : {"the key", "the header", "the spec", "kvPG", "kvSP"}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
    EXPECT_EQ(space.find(text), std::string::npos) << text;
  }
  EXPECT_NE(space.find("acme"), std::string::npos) << "the tenant's name finds the key";
}

// With the digest made anew, so that only the seal can tell.
TEST(Seal, NoFlippedByteOfARecordOpens) {
  Vault vault(std::make_shared<TestKeys>());
  const std::string page = *vault.Serialize(Example()), space = *vault.Serialize(ExampleSpace());
  for (const std::string& record : {page, space}) {
    for (size_t at = 0; at < record.size(); ++at) {
      for (const int bit : {0, 3, 7}) {
        std::string flipped = record;
        flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
        const auto parse = [&](const std::string& bytes) {
          return &record == &page || record == page ? vault.ParsePage(AsBytes(bytes)).status()
                                                    : vault.ParseSpace(AsBytes(bytes)).status();
        };
        EXPECT_FALSE(parse(flipped).ok()) << at;
        if (at + sizeof(uint64_t) < record.size()) {
          // Only fewer segments than were sealed may be claimed: what is cut off is a miss.
          const bool fewer =
              record == page && at == 24 && flipped[at] < record[at] && flipped[at] > 0;
          EXPECT_EQ(parse(Redigested(flipped)).ok(), fewer) << at;
        }
      }
    }
    for (size_t size = 0; size < record.size(); ++size) {
      EXPECT_FALSE(vault.ParsePage(AsBytes(record).first(size)).ok()) << size;
      EXPECT_FALSE(vault.ParseSpace(AsBytes(record).first(size)).ok()) << size;
    }
  }
}

// Every part of the place counts, and so does the tenant.
TEST(Seal, AValueOpensInItsPlaceAlone) {
  const auto keys = std::make_shared<TestKeys>();
  Vault vault(keys);
  vault.SetTenant(1, "acme");
  vault.SetTenant(2, "acme");
  vault.SetTenant(3, "other");
  const SealPlace place{.space = 1, .page = 5, .index = 2, .digest = 77};
  const std::string body = "the body of a segment";
  const SealedValue sealed = SealWhole(**vault.Seal(place), AsBytes(body));
  const auto opens = [&](Vault& from, const SealPlace& at, const Seal& seal) {
    auto opening = from.Open(at, seal);
    EXPECT_OK(opening.status());
    return OpenWhole(*std::move(opening), AsBytes(sealed.bytes)).status();
  };
  EXPECT_OK(opens(vault, place, sealed.seal));
  std::vector<SealPlace> others(6, place);
  others[0].space = 2;
  others[1].page = 6;
  others[2].index = 3;
  others[3].digest = 78;
  others[4].kind = SealPlace::Kind::kPage;
  others[5].space = 3;  // whose tenant has other keys of the same ids
  for (const SealPlace& other : others) {
    EXPECT_THAT(opens(vault, other, sealed.seal), HasCode(StatusCode::kDataLoss));
  }
  // The same space under another tenant.
  Vault moved(keys);
  moved.SetTenant(1, "other");
  EXPECT_THAT(opens(moved, place, sealed.seal), HasCode(StatusCode::kDataLoss));
  Seal older = sealed.seal;
  older.key = 2;
  EXPECT_THAT(opens(vault, place, older), HasCode(StatusCode::kDataLoss));
}

TEST(Seal, EverySealHasANonceOfItsOwn) {
  Vault vault(std::make_shared<TestKeys>());
  const SealPlace place{.space = 1, .page = 5, .index = 2, .digest = 77};
  std::set<AeadNonce> nonces;
  std::set<std::string> ciphertexts;
  for (int i = 0; i < 5000; ++i) {
    const SealedValue sealed = SealWhole(**vault.Seal(place), AsBytes("the same value, again"));
    nonces.insert(sealed.seal.nonce);
    ciphertexts.insert(sealed.bytes);
  }
  EXPECT_EQ(nonces.size(), 5000u);
  EXPECT_EQ(ciphertexts.size(), 5000u);
}

TEST(Seal, RecordsAreCutWithoutKeys) {
  Vault vault(std::make_shared<TestKeys>()), clear(NoDataKeys());
  for (Vault* const one : {&vault, &clear}) {
    const std::string bytes = *one->Serialize(Example());
    const auto same = TruncatePageRecord(AsBytes(bytes), 2),
               less = TruncatePageRecord(AsBytes(bytes), 1),
               none = TruncatePageRecord(AsBytes(bytes), 0);
    ASSERT_OK(same.status());
    EXPECT_EQ(same->segments, 2u);
    EXPECT_EQ(same->bytes, bytes);
    EXPECT_EQ(less->segments, 2u);
    const auto cut = one->ParsePage(AsBytes(less->bytes));
    ASSERT_OK(cut.status());
    EXPECT_EQ(cut->facts.size(), 1u);
    EXPECT_EQ(none->bytes, "");
    PageRecord whole = Example();
    whole.whole = true;
    EXPECT_EQ(TruncatePageRecord(AsBytes(*one->Serialize(whole)), 1)->bytes, "");
  }
}

TEST(Seal, WithoutTheKeyAValueIsOutOfReachAndNotDamaged) {
  const auto keys = std::make_shared<TestKeys>();
  Vault vault(keys);
  const std::string page = *vault.Serialize(Example()), space = *vault.Serialize(ExampleSpace());
  keys->locked = true;
  EXPECT_THAT(vault.ParsePage(AsBytes(page)).status(), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(vault.Serialize(Example()).status(), HasCode(StatusCode::kUnavailable));
  Vault none(NoDataKeys());
  EXPECT_THAT(none.ParsePage(AsBytes(page)).status(), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(none.ParseSpace(AsBytes(space)).status(), HasCode(StatusCode::kUnavailable));
}

TEST(Seal, AStoreThatNeverWasInClearTakesNothingInClear) {
  const std::string clear = SerializePageRecord(Example());
  EXPECT_OK(Vault(NoDataKeys()).ParsePage(AsBytes(clear)).status());
  EXPECT_OK(Vault(std::make_shared<TestKeys>(true)).ParsePage(AsBytes(clear)).status());
  EXPECT_THAT(Vault(std::make_shared<TestKeys>()).ParsePage(AsBytes(clear)).status(),
              HasCode(StatusCode::kDataLoss));
}

}  // namespace
}  // namespace kvstow
