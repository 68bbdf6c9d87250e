#include "kernels/entropy/byte_rans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "base/digest.h"
#include "kernels/entropy/byte_classes.h"
#include "tests/kernels/every_target.h"

namespace kvstow {
namespace {

// Blocks of bytes whose columns follow one of `kinds` laws, tables fitted to them.
struct Sample {
  std::vector<uint8_t> bytes;
  std::vector<std::vector<uint8_t>> classes;  // of each block
  size_t rows;
  std::vector<ByteFrequencies> tables;

  std::vector<ByteRansBlock> Blocks() const {
    std::vector<ByteRansBlock> blocks;
    for (const auto& c : classes) blocks.push_back({c, rows});
    return blocks;
  }
  std::string Encoded() const {
    std::string out;
    ByteRansEncode(tables, Blocks(), bytes, out);
    return out;
  }
};

Sample MakeSample(size_t rows, std::span<const size_t> widths, double spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Sample s{.rows = rows};
  constexpr size_t kKinds = 3;
  std::vector<ByteCounts> counts(kKinds, ByteCounts{});
  for (const size_t width : widths) {
    std::vector<uint8_t>& classes = s.classes.emplace_back(width);
    for (uint8_t& c : classes) c = static_cast<uint8_t>(random() % kKinds);
    for (size_t i = 0; i < rows * width; ++i) {
      const uint8_t kind = classes[i % width];
      const auto byte = static_cast<uint8_t>(std::lround(60 + 40 * kind + normal(random) * spread));
      s.bytes.push_back(byte);
      ++counts[kind][byte];
    }
  }
  for (ByteCounts& c : counts) {
    c[7] += 1;  // no table is empty
    s.tables.push_back(NormalizeCounts(c));
  }
  return s;
}

// The bytes that `stream` gives; empty when it is refused.
std::vector<uint8_t> Decode(const Sample& s, const std::string& stream,
                            const ByteRansLoops& loops = ByteRansLoops::Best()) {
  const std::vector<uint32_t> slots = ByteRansSlots(s.tables);
  ByteRansDecoder decoder(AsBytes(stream));
  std::vector<uint8_t> out(s.bytes.size());
  uint8_t* next = out.data();
  for (const auto& classes : s.classes) {
    const std::vector<uint32_t> columns = ByteRansColumns(classes);
    const size_t count = s.rows * classes.size();
    if (!decoder.Decode(slots, columns, count, next, loops)) return {};
    next += count;
  }
  return decoder.AtEnd() ? out : std::vector<uint8_t>{};
}

constexpr size_t kWidths[][3] = {{192, 192, 192}, {1, 7, 31}, {33, 64, 100}, {576, 5, 32}};

TEST(ByteRans, GivesTheBytesBackOnEveryTarget) {
  OnEveryTarget<ByteRansLoops>([&](const auto& best, const auto& reference) {
    for (const auto& widths : kWidths) {
      for (const size_t rows : {1, 2, 5, 64}) {
        for (const double spread : {0.0, 0.1, 3.0, 12.0}) {
          const Sample s = MakeSample(rows, widths, spread, static_cast<uint32_t>(rows));
          const std::string stream = s.Encoded();
          ASSERT_EQ(Decode(s, stream, best), s.bytes) << widths[0] << " x " << rows;
          ASSERT_EQ(Decode(s, stream, reference), s.bytes) << widths[0] << " x " << rows;
        }
      }
    }
  });
}

TEST(ByteRans, CostsWhatTheTablesSay) {
  for (const double spread : {0.1, 1.0, 6.0, 15.0}) {
    const Sample s = MakeSample(256, kWidths[0], spread, 3);
    double bits = 0;
    for (size_t i = 0; i < s.bytes.size(); ++i) {
      const size_t block = i / (192 * 256);
      bits += kByteRansBits - std::log2(s.tables[s.classes[block][i % 192]][s.bytes[i]]);
    }
    const auto words = static_cast<double>(s.Encoded().size() - 4 * kByteRansLanes);
    // The words lack what the states hold above their least.
    EXPECT_NEAR(words, bits / 8, 0.01 * bits / 8 + 2 * kByteRansLanes) << spread;
  }
}

TEST(ByteRans, DamageIsRefusedOrOtherBytesAndNeverACrash) {
  const Sample s = MakeSample(9, kWidths[2], 4, 5);
  const std::string stream = s.Encoded();
  for (size_t size = 0; size < stream.size(); ++size)
    EXPECT_TRUE(Decode(s, stream.substr(0, size)).empty()) << size;
  EXPECT_TRUE(Decode(s, stream + "xx").empty());
  std::mt19937 random(1);
  size_t refused = 0;
  for (size_t at = 0; at < stream.size(); ++at) {
    std::string bad = stream;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    const auto got = Decode(s, bad);
    EXPECT_NE(got, s.bytes) << at;
    EXPECT_EQ(got, Decode(s, bad, ByteRansLoops::Reference())) << at;
    refused += got.empty();
  }
  EXPECT_GT(refused, stream.size() * 99 / 100);
}

TEST(ByteFrequencies, AreCloseToTheCountsAndSumUp) {
  std::mt19937 random(2);
  for (int turn = 0; turn < 200; ++turn) {
    ByteCounts counts{};
    uint64_t total = 0;
    for (uint32_t& count : counts) {
      const int shift = static_cast<int>(random() % 30);
      count = random() % 3 == 0 ? 0 : static_cast<uint32_t>(random()) >> (turn % 2 ? shift : 31);
      total += count;
    }
    counts[turn] += 1;
    total += 1;
    const ByteFrequencies frequencies = NormalizeCounts(counts);
    uint32_t sum = 0;
    for (size_t i = 0; i < 256; ++i) {
      sum += frequencies[i];
      EXPECT_EQ(frequencies[i] == 0, counts[i] == 0);
    }
    EXPECT_EQ(sum, kByteRansTotal);
    std::string bytes;
    WriteFrequencies(frequencies, bytes);
    ByteReader reader(AsBytes(bytes));
    const auto read = ReadFrequencies(reader);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, frequencies);
    EXPECT_EQ(reader.remaining(), 0u);
    for (size_t size = 0; size < bytes.size(); ++size) {
      ByteReader cut(AsBytes(bytes).first(size));
      EXPECT_EQ(ReadFrequencies(cut).status().code(), absl::StatusCode::kDataLoss);
    }
  }
  ByteCounts one{};
  one[200] = 5;
  EXPECT_EQ(NormalizeCounts(one)[200], kByteRansTotal);
}

TEST(ByteFrequencies, ABadSumIsRefused) {
  for (const std::string& bytes : {std::string("\0\1\1\1", 4), std::string("\5\4", 2),
                                   std::string("\0\1\xff\xff\xff\xff", 6)}) {
    ByteReader reader(AsBytes(bytes));
    EXPECT_EQ(ReadFrequencies(reader).status().code(), absl::StatusCode::kDataLoss);
  }
}

class ByteClassesOfRows : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Rows, ByteClassesOfRows, testing::Values(200, 256, 257, 700));

TEST_P(ByteClassesOfRows, ColumnsOfOneLawShareATable) {
  const size_t widths[] = {48, 10};
  const size_t rows = GetParam();
  std::mt19937 random(4);
  std::vector<uint8_t> bytes;
  for (const size_t width : widths) {
    for (size_t i = 0; i < rows * width; ++i)
      bytes.push_back(static_cast<uint8_t>(i % width % 3 * 50 + random() % 8));
  }
  const ByteClasses classes = ClassifyColumns(bytes, widths, rows, 3);
  ASSERT_EQ(classes.tables.size(), 3u);
  for (size_t c = 0; c < 58; ++c)
    EXPECT_EQ(classes.of[c], classes.of[(c < 48 ? c : c - 48) % 3]) << c;
  const auto count = static_cast<double>(bytes.size());
  EXPECT_NEAR(static_cast<double>(classes.bits), 3 * count, 0.02 * count);
  const ByteClasses one = OneClass(bytes, 58);
  EXPECT_EQ(one.of, std::vector<uint8_t>(58, 0));
  EXPECT_NEAR(static_cast<double>(one.bits), (3 + std::log2(3)) * count, 0.02 * count);
  EXPECT_LE(ClassifyColumns(bytes, widths, rows, kMaxByteClasses).bits, classes.bits);
}

TEST(ByteClasses, EveryTargetFindsTheCheapestClass) {
  std::mt19937 random(6);
  const auto costs = std::make_unique<ByteCosts>();
  OnEveryTarget<ByteClassLoops>([&](const auto& best, const auto& reference) {
    for (size_t turn = 0; turn < 400; ++turn) {
      const uint32_t spread = turn % 4 == 0 ? 2 : 8192;  // few costs are often equal
      for (auto& of_byte : *costs) {
        for (uint32_t& cost : of_byte) cost = random() % spread;
      }
      std::vector<ByteCount> entries(turn % 70);
      for (ByteCount& e : entries)
        e = {static_cast<uint8_t>(random()), static_cast<uint16_t>(1 + random() % 65535)};
      const size_t most = 1 + turn % kMaxByteClasses;
      const uint8_t found = best.cheapest(entries, *costs, most);
      ASSERT_LT(found, most);
      ASSERT_EQ(found, reference.cheapest(entries, *costs, most)) << turn;
    }
  });
}

TEST(ByteClasses, LogarithmsAreThoseOfTheLibraryRoundedDown) {
  for (uint64_t x = 1; x < uint64_t{1} << 32; x = x * 9 / 8 + 1) {
    const double log = std::log2(static_cast<double>(x)) * 256;
    EXPECT_NEAR(Log2Fixed(static_cast<uint32_t>(x)), std::floor(log + 1e-9), 1) << x;
    EXPECT_LE(Log2Fixed(static_cast<uint32_t>(x)), log + 1e-9) << x;
  }
}

}  // namespace
}  // namespace kvstow
