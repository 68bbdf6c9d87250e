// Mean queries: kept in a section of a calibration blob.
#include "kernels/calibration/query_means.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/digest.h"
#include "kernels/calibration/model_stats.h"
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

QueryMeans Means(std::vector<uint32_t> layers = {0, 3}) {
  QueryMeans out;
  out.heads = kHeads;
  for (const uint32_t layer : layers) {
    Gaussian gaussian(layer);
    QueryMeans::Layer& of = out.layers.emplace_back(QueryMeans::Layer{.layer = layer});
    for (size_t i = 0; i < kHeads * 4; ++i) of.means.push_back(gaussian());
  }
  return out;
}

absl::StatusOr<std::string> Blob(const QueryMeans& queries) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  const auto section = QueryMeansSection(shape, queries);
  if (!section.ok()) return section.status();
  return SerializeCalibration(shape, {&*section, 1});
}

std::string BytesOfFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(QueryMeansTest, ASectionHasWhatWasPutIntoIt) {
  const auto read = ParseCalibration(AsBytes(*Blob(Means()))).value();
  const QueryMeans* const means = QueryMeansOf(*read);
  ASSERT_NE(means, nullptr);
  EXPECT_EQ(means->heads, kHeads);
  ASSERT_EQ(means->layers.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(means->layers[i].layer, Means().layers[i].layer);
    EXPECT_EQ(means->layers[i].means, Means().layers[i].means);
  }
}

TEST(QueryMeansTest, QueriesThatDoNotFitAreRefused) {
  const auto refused = [](const auto& change, const char* why) {
    QueryMeans queries = Means();
    change(queries);
    const absl::Status status = Blob(queries).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  refused([](auto& q) { q.heads = 3; }, "layer 0 have 16 values, not 12");
  refused([](auto& q) { q.layers[1].means.pop_back(); }, "layer 3 have 15 values");
  refused([](auto& q) { q.layers[0].means[7] = NAN; }, "layer 0 is cut off or not finite");
  refused([](auto& q) { q.layers.clear(); }, "0 of 5 layers");
  refused([](auto& q) { q.layers[1].layer = 5; }, "number 1 is of no layer");
  refused([](auto& q) { q.layers[1].layer = 0; }, "out of order");
  for (const uint32_t heads : {0u, 3u}) {  // of two KV heads
    refused(
        [&](auto& q) {
          q.heads = heads;
          for (auto& layer : q.layers) layer.means.resize(heads * 4);
        },
        "query heads for 2 KV heads");
  }
}

TEST(QueryMeansTest, DamagedSectionsAreRefused) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  const std::string body = QueryMeansSection(shape, Means())->body;
  ASSERT_TRUE(ParseQueryMeans(shape, AsBytes(body)).ok());
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(ParseQueryMeans(shape, AsBytes(body).first(bytes)).status()))
        << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseQueryMeans(shape, AsBytes(body + '\0')).status()));
  for (const uint32_t bad : {0u, 3u, 8u, 1u << 20, 0xfffffffeu}) {
    for (const size_t at : {size_t{0}, size_t{4}}) {
      std::string changed = body;
      std::memcpy(changed.data() + at, &bad, 4);
      EXPECT_TRUE(absl::IsDataLoss(ParseQueryMeans(shape, AsBytes(changed)).status()))
          << bad << " at " << at;
    }
  }
}

ModelStats Stats(const KvSpec& spec) {
  ModelStats stats;
  const size_t heads = size_t{spec.layers} * spec.kv_heads;
  stats.metric_k.resize(heads * 16, 1), stats.metric_v.resize(heads * 4, 1);
  stats.gain_k.resize(heads, 1), stats.gain_v.resize(heads, 1);
  return stats;
}

TEST(QueryMeansTest, TheyStandBesideTheStatisticsOfAModel) {
  ModelStats stats = Stats(Spec());
  stats.queries = std::make_shared<QueryMeans>(Means());
  const std::string blob = *StatsCalibration(Spec(), stats);
  const auto read = ParseModelStats(AsBytes(blob), Spec());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_NE(read->queries, nullptr);
  EXPECT_EQ(read->queries->layers[1].means, Means().layers[1].means);
  const auto scaled = ParseModelStats(AsBytes(*WithScaledCosts(AsBytes(blob), 4, 1)), Spec());
  EXPECT_NE(scaled->queries, nullptr) << "other costs, the same queries";
  stats.queries = nullptr;
  EXPECT_EQ(ParseModelStats(AsBytes(*StatsCalibration(Spec(), stats)), Spec())->queries, nullptr);
}

// The second of two ranks, with layers 2 to 4: KV head 1, whose query heads are 2 and 3.
TEST(QueryMeansTest, ARankHasThoseOfItsLayersAndHeads) {
  ModelStats stats = Stats(Spec());
  stats.queries = std::make_shared<QueryMeans>(Means());
  KvSpec part = Spec();
  part.layers = 3, part.kv_heads = 1;
  const CalibrationShape model = ShapeFor(Spec(), 1);
  const auto rank = [&](uint32_t first_layer) {
    const RankOfModel of{.first_layer = first_layer, .tensor_rank = 1, .tensor_size = 2};
    return ParseModelStats(AsBytes(*StatsOfRank(model, stats, part, of)), part)->queries;
  };
  const auto found = rank(2);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->heads, 2u);
  ASSERT_EQ(found->layers.size(), 1u);
  EXPECT_EQ(found->layers[0].layer, 1u);
  const std::vector<float> whole = Means().layers[1].means;
  EXPECT_EQ(found->layers[0].means, std::vector<float>(whole.begin() + 8, whole.end()));
  part.layers = 2;
  EXPECT_EQ(rank(1), nullptr) << "layers 1 and 2 have none";
}

// A section at rest: read for ever, and made again byte for byte.
TEST(QueryMeansTest, ItsGoldenFileIsReadForEver) {
  const std::filesystem::path path = TestsPath("golden/calibration_v2_query_means.kvcal");
  const std::string golden = BytesOfFile(path), made = *Blob(Means());
  if (golden.empty()) {
    const auto fresh = std::filesystem::temp_directory_path() / path.filename();
    std::ofstream(fresh, std::ios::binary) << made;
    FAIL() << "no golden file; a new one is " << fresh;
  }
  EXPECT_EQ(made, golden);
  EXPECT_EQ(QueryMeansOf(*ParseCalibration(AsBytes(golden)).value())->layers[1].layer, 3u);
}

// Section `query_maps` came before it. Nothing uses it, and pages of its calibration are read.
TEST(QueryMeansTest, TheFormerSectionIsReadForEver) {
  const std::string golden = BytesOfFile(TestsPath("golden/calibration_v2_query_maps.kvcal"));
  const auto read = ParseCalibration(AsBytes(golden));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(QueryMeansOf(**read), nullptr);
}

}  // namespace
}  // namespace kvstow::testing
