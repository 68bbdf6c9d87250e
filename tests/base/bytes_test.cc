#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "base/digest.h"

namespace kvstow {
namespace {

TEST(ByteWriterTest, WritesLittleEndianInOrder) {
  ByteWriter writer;
  writer.Put(uint8_t{0x01});
  writer.Put(uint16_t{0x0302});
  writer.Put(uint32_t{0x07060504});
  writer.Put(1.0f);
  writer.PutString16("ab");
  writer.PutBytes(AsBytes("z"));
  EXPECT_EQ(HexOf(AsBytes(writer.bytes())),
            "01"
            "0203"
            "04050607"
            "0000803f"
            "02006162"
            "7a");
  EXPECT_EQ(writer.size(), 16u);
  EXPECT_EQ(std::move(writer).Take().size(), 16u);
}

TEST(ByteReaderTest, ReadsBackWhatWasWritten) {
  ByteWriter writer;
  writer.Put(uint64_t{1} << 63);
  writer.PutString16("");
  writer.PutString16("key");
  writer.Put(-2.5);
  writer.Put(int8_t{-1});
  ByteReader reader(AsBytes(writer.bytes()));
  EXPECT_EQ(reader.Get<uint64_t>(), uint64_t{1} << 63);
  EXPECT_EQ(reader.GetString16(), "");
  EXPECT_EQ(reader.GetString16(), "key");
  EXPECT_EQ(reader.Get<double>(), -2.5);
  EXPECT_EQ(reader.remaining(), 1u);
  EXPECT_EQ(reader.Get<int8_t>(), -1);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(ByteReaderTest, AfterOneFailureEveryReadFails) {
  ByteReader reader(AsBytes("abc"));
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint8_t>(), 0u) << "three bytes are there, but the reader has failed";
  EXPECT_TRUE(reader.GetBytes(1).empty());
  EXPECT_EQ(reader.GetString16(), "");
  EXPECT_FALSE(reader.ok());
}

TEST(ByteReaderTest, EveryCutOfARecordFailsAndStaysInBounds) {
  ByteWriter writer;
  writer.Put(uint32_t{7});
  writer.PutString16("twelve bytes");
  writer.Put(uint64_t{9});
  const std::string whole = writer.bytes();
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    // An exact allocation: the address sanitizer sees any read past it.
    const std::vector<uint8_t> bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut));
    ByteReader reader(bytes);
    reader.Get<uint32_t>();
    reader.GetString16();
    reader.Get<uint64_t>();
    EXPECT_EQ(reader.ok(), cut == whole.size()) << "cut at " << cut;
  }
}

TEST(ByteReaderTest, ALengthThatLiesFails) {
  ByteReader reader(
      AsBytes(absl::string_view("\xff\xff"
                                "abc",
                                5)));
  EXPECT_EQ(reader.GetString16(), "");
  EXPECT_FALSE(reader.ok());
  ByteReader huge(AsBytes("abc"));
  EXPECT_TRUE(huge.GetBytes(std::numeric_limits<size_t>::max()).empty());
  EXPECT_FALSE(huge.ok());
}

TEST(ParseSizeTest, TakesWhatPeopleWrite) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"1b", 1},
      {"64MiB", 64ull << 20},
      {"64mib", 64ull << 20},
      {"64 MiB", 64ull << 20},
      {" 64MiB ", 64ull << 20},
      {"64M", 64ull << 20},
      {"1k", 1024},
      {"1kB", 1000},
      {"30GB", 30'000'000'000},
      {"30GiB", 30ull << 30},
      {"1.5TiB", 3ull << 39},
      {"0.5K", 512},
      {"2TB", 2'000'000'000'000},
  };
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseSize(text);
    ASSERT_TRUE(parsed.ok()) << "'" << text << "': " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << "'" << text << "'";
  }
}

TEST(ParseSizeTest, RefusesTheRestAndNamesIt) {
  for (const char* text : {"", " ", "MiB", "-1", "+1", "1.2.3", "1 2", "12QB", "1MiBs", "0x10",
                           "1e3", ".", "nan", "inf", "9000000TiB", "99999999999999999999999999"}) {
    const auto parsed = ParseSize(text);
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
        << "'" << text << "' gave " << *parsed;
    EXPECT_THAT(std::string(parsed.status().message()),
                testing::HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(FormatSizeTest, ThreeFigures) {
  const std::pair<uint64_t, const char*> cases[] = {
      {0, "0 B"},
      {1023, "1023 B"},
      {1024, "1.00 KiB"},
      {1536, "1.50 KiB"},
      {10240, "10.0 KiB"},
      {102400, "100 KiB"},
      {64 << 20, "64.0 MiB"},
      {3ull << 39, "1.50 TiB"},
      {5ull << 50, "5.00 PiB"},
      {UINT64_MAX, "16384 PiB"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(FormatSize(bytes), text) << bytes;
}

TEST(FormatSizeTest, IsReadBackWithinItsPrecision) {
  for (uint64_t bytes = 1; bytes < uint64_t{1} << 49; bytes = bytes * 3 + 1) {
    const auto parsed = ParseSize(FormatSize(bytes));
    ASSERT_TRUE(parsed.ok()) << FormatSize(bytes);
    EXPECT_NEAR(static_cast<double>(*parsed), static_cast<double>(bytes), 0.006 * bytes) << bytes;
  }
}

}  // namespace
}  // namespace kvstow
