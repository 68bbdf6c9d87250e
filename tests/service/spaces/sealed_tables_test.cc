// Tables that tell of pages, sealed: golden bytes, and no file opens that was changed or moved.
#include "service/spaces/sealed_tables.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/digest.h"
#include "tests/paths.h"
#include "tests/storage/test_keys.h"

namespace kvstow::testing {
namespace {

using absl::StatusCode;

constexpr char kText[] = "tables of a space";
constexpr uint64_t kNumber = 0x0123456789abcdef;
const TablesPlace kPlace{.tenant = "acme", .space = 3, .number = kNumber};

AeadNonce FixedNonce() {
  AeadNonce out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i);
  return out;
}

std::string Example() {
  return SealTables(TestKeys::KeyOf("acme", 1), kPlace, AsBytes(kText), FixedNonce());
}

std::string Golden() {
  std::ifstream file(TestsPath("golden/sealed_tables_v1.bin"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The digest of the head made anew: what whoever can write the disk would do.
std::string Redigested(std::string file) {
  const size_t head = file.size() - sizeof(kText) + 1 - sizeof(uint64_t);
  const uint64_t digest = Xxh3(AsBytes(file).first(head));
  return file.replace(head, sizeof(digest), reinterpret_cast<const char*>(&digest), sizeof(digest));
}

StatusCode CodeOf(const std::string& file, uint64_t number = kNumber) {
  TestKeys keys;
  return OpenTables(keys, number, file).status().code();
}

TEST(SealedTables, GoldenBytes) {
  const std::string golden = Golden();
  EXPECT_EQ(HexOf(AsBytes(Example())), HexOf(AsBytes(golden)));
  TestKeys keys;
  const auto opened = OpenTables(keys, kNumber, golden);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(AsString(opened->blob.span()), kText);
  EXPECT_EQ(opened->place, kPlace);
  EXPECT_EQ(PlaceOfTables(kNumber, AsBytes(golden)).value(), kPlace);
  EXPECT_EQ(golden.find("tables"), std::string::npos);
}

TEST(SealedTables, NothingOpensThatWasChangedOrMoved) {
  EXPECT_EQ(CodeOf(Example()), StatusCode::kOk);
  EXPECT_EQ(CodeOf(Example(), kNumber + 1), StatusCode::kDataLoss) << "renamed";
  const std::string file = Example();
  for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string changed = file;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(CodeOf(changed), StatusCode::kOk) << bit;
    if (Redigested(changed) == file) continue;  // it was a bit of the digest
    EXPECT_NE(CodeOf(Redigested(changed)), StatusCode::kOk) << bit;
  }
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(CodeOf(file.substr(0, size)), StatusCode::kOk) << size;
  }
  EXPECT_EQ(CodeOf(file + "x"), StatusCode::kDataLoss);

  std::string other_space = file;
  other_space[8] = 4;
  EXPECT_EQ(CodeOf(other_space), StatusCode::kDataLoss);
  EXPECT_EQ(CodeOf(Redigested(other_space)), StatusCode::kDataLoss);
  std::string other_tenant = file;
  other_tenant.replace(other_tenant.find("acme"), 4, "evil");
  EXPECT_EQ(CodeOf(Redigested(other_tenant)), StatusCode::kDataLoss);
  std::string other_version = file;
  other_version[4] = 2;
  EXPECT_EQ(CodeOf(Redigested(other_version)), StatusCode::kFailedPrecondition);
}

TEST(SealedTables, WithoutItsKeyAFileSaysWhoseItIs) {
  TestKeys keys;
  keys.locked = true;
  EXPECT_EQ(OpenTables(keys, kNumber, Example()).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(PlaceOfTables(kNumber, AsBytes(Example()))->tenant, "acme");
}

TEST(SealedTables, NamesOfFiles) {
  EXPECT_EQ(TablesFileName(kNumber), "0123456789abcdef.kvcal");
  EXPECT_EQ(TablesNumberOf("0123456789abcdef.kvcal").value(), kNumber);
  for (const char* name : {"123456789abcdef.kvcal", "0123456789abcdef", "0x23456789abcdef.kvcal2",
                           "0123456789abcdefg.kvcal", ".kvcal", ""}) {
    EXPECT_EQ(TablesNumberOf(name).status().code(), StatusCode::kDataLoss) << name;
  }
}

}  // namespace
}  // namespace kvstow::testing
