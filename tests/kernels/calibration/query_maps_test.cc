// Maps from K and V to queries: kept in a section of a calibration blob.
#include "kernels/calibration/query_maps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "kernels/codec/calibrate.h"
#include "tests/kernels/pages.h"
#include "tests/paths.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHeads = 4;  // of queries

KvSpec Spec() {
  KvSpec spec = SpecOf(DType::kF16, 5, 2, 4, 2, 64);
  spec.rope.layout = RopeSpec::Layout::kHalf;
  return spec;
}

std::vector<QueryMapParts> Maps(std::vector<uint32_t> layers = {0, 3}) {
  constexpr size_t kOutputs = kHeads * 4, kValues = 2 * (4 + 2);
  std::vector<QueryMapParts> out;
  for (const uint32_t layer : layers) {
    Gaussian gaussian(layer);
    QueryMapParts& map = out.emplace_back(QueryMapParts{.layer = layer});
    for (size_t i = 0; i < kOutputs * kValues; ++i) map.weights.push_back(gaussian());
    for (size_t i = 0; i < kOutputs; ++i) map.constant.push_back(gaussian());
  }
  return out;
}

absl::StatusOr<std::string> Blob(uint32_t heads, const std::vector<QueryMapParts>& maps) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  const auto section = QueryMapsSection(shape, heads, maps);
  if (!section.ok()) return section.status();
  return SerializeCalibration(shape, {&*section, 1});
}

TEST(QueryMapsTest, ASectionHasWhatWasPutIntoIt) {
  const auto read = ParseCalibration(AsBytes(*Blob(kHeads, Maps()))).value();
  const QueryMaps* const maps = QueryMapsOf(*read);
  ASSERT_NE(maps, nullptr);
  EXPECT_EQ(maps->heads, kHeads);
  ASSERT_EQ(maps->layers.size(), 2u);
  const auto given = Maps();
  for (size_t i = 0; i < 2; ++i) {
    const QueryMap& map = maps->layers[i];
    EXPECT_EQ(map.layer, given[i].layer);
    EXPECT_EQ(map.constant, given[i].constant);
    ASSERT_EQ(map.weights.rows(), 12u);
    ASSERT_EQ(map.weights.columns(), 16u);
    // A row of zeros but one takes that row out of the matrix.
    for (size_t value = 0; value < 12; ++value) {
      std::vector<float> one(12), row(16);
      one[value] = 1;
      MultiplyRows(one.data(), 1, map.weights, {0, 16}, row.data(), 16);
      for (size_t q = 0; q < 16; ++q) {
        EXPECT_NEAR(row[q], given[i].weights[q * 12 + value], 5e-3) << value << " " << q;
      }
    }
  }
}

TEST(QueryMapsTest, ABlobWithoutHasNone) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  const CalibrationSection other{"nothing", ""};
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ParseCalibration(AsBytes(SerializeCalibration(shape, {&other, 1}))).status()));
}

TEST(QueryMapsTest, MapsThatDoNotFitAreRefused) {
  const auto refused = [](uint32_t heads, const auto& change, const char* why) {
    auto maps = Maps();
    change(maps);
    const absl::Status status = Blob(heads, maps).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  const auto as_it_is = [](auto&) {};
  refused(0, as_it_is, "0 query heads do not fit 2 KV heads");
  refused(3, as_it_is, "3 query heads do not fit 2 KV heads");
  refused(2, as_it_is, "layer 0 does not fit the pages");
  refused(
      kHeads, [](auto& maps) { maps.clear(); }, "0 maps for 5 layers");
  refused(
      kHeads, [](auto& maps) { maps[1].weights.pop_back(); }, "layer 3 does not fit");
  refused(
      kHeads, [](auto& maps) { maps[1].constant.pop_back(); }, "layer 3 does not fit");
  refused(
      kHeads, [](auto& maps) { maps[0].weights[7] = NAN; }, "not finite");
  refused(
      kHeads, [](auto& maps) { maps[0].constant[7] = INFINITY; }, "not finite");
  refused(
      kHeads, [](auto& maps) { maps[1].layer = 5; }, "map 1 is of no layer");
  refused(
      kHeads, [](auto& maps) { maps[1].layer = 0; }, "out of order");
}

TEST(QueryMapsTest, DamagedSectionsAreRefused) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  const std::string body = QueryMapsSection(shape, kHeads, Maps())->body;
  ASSERT_TRUE(ParseQueryMaps(shape, AsBytes(body)).ok());
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(ParseQueryMaps(shape, AsBytes(body).first(bytes)).status()))
        << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseQueryMaps(shape, AsBytes(body + '\0')).status()));
  for (const uint32_t bad : {0u, 3u, 8u, 1u << 20, 0xfffffffeu}) {
    for (const size_t at : {size_t{0}, size_t{4}}) {
      std::string changed = body;
      std::memcpy(changed.data() + at, &bad, 4);
      EXPECT_TRUE(absl::IsDataLoss(ParseQueryMaps(shape, AsBytes(changed)).status()))
          << bad << " at " << at;
    }
  }
}

// A section at rest: read for ever, and made again byte for byte.
TEST(QueryMapsTest, ItsGoldenFileIsReadForEver) {
  const std::filesystem::path path = TestsPath("golden/calibration_v2_query_maps.kvcal");
  std::ifstream in(path, std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  const std::string made = *Blob(kHeads, Maps());
  if (golden.empty()) {
    const auto fresh = std::filesystem::temp_directory_path() / path.filename();
    std::ofstream(fresh, std::ios::binary) << made;
    FAIL() << "no golden file; a new one is " << fresh;
  }
  EXPECT_EQ(made, golden);
  EXPECT_EQ(QueryMapsOf(*ParseCalibration(AsBytes(golden)).value())->layers[1].layer, 3u);
}

}  // namespace
}  // namespace kvstow::testing
