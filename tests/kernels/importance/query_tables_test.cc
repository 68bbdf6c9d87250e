// The section `queries` of a calibration: what is sent is what policies read, a fit is the mixture
// of its texts, and bad statistics are named.
#include "kernels/importance/query_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_needs.h"
#include "kernels/importance/query_scores.h"
#include "tests/kernels/pages.h"
#include "tests/paths.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 128;
constexpr char kRecipe[] = "expected-attention(keep=0.5)|int8";

KvSpec Spec() {
  KvSpec spec = SpecOf(DType::kF32, 3, 2, 8, 8, 128);
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 10000};
  return spec;
}

// Statistics of some queries; they are those of two heads a KV head.
QueryStatistics Statistics(uint64_t seed, const KvSpec& spec = Spec()) {
  QueryStatistics q{.layers = spec.layers, .heads = 2 * spec.kv_heads, .dim = spec.head_dim_k};
  Gaussian next(seed);
  for (size_t h = 0; h < size_t{q.layers} * q.heads; ++h) {
    std::vector<float> vector(q.dim);
    for (float& x : vector) x = next();
    for (uint32_t r = 0; r < q.dim; ++r) {
      q.mean.push_back(next());
      for (uint32_t c = 0; c < q.dim; ++c) q.covariance.push_back(vector[r] * vector[c]);
    }
    for (uint32_t f = 0; f < q.dim / 2; ++f) q.magnitude.push_back(std::abs(next()));
  }
  FindDirections(q);
  return q;
}

std::shared_ptr<const Calibration> Parsed(const std::string& blob) {
  const auto calibration = ParseCalibration(AsBytes(blob));
  EXPECT_TRUE(calibration.ok()) << calibration.status();
  return calibration.ok() ? *calibration : nullptr;
}

const QueryStatistics& In(const Calibration& calibration) {
  return static_cast<const QueryTables*>(calibration.Tables(kQuerySection))->statistics;
}

// A number that tells the bodies of two encodings apart.
uint64_t Encoded(const Codec& codec, const QueryStatistics* queries = nullptr) {
  const auto raw = GaussianPage(codec.spec(), kTokens, 5);
  const auto page = codec.Encode({.raw = raw, .tokens = kTokens, .queries = queries});
  EXPECT_TRUE(page.ok()) << page.status();
  std::string out;
  if (!page.ok()) return 0;
  for (const SharedBytes& body : page->segments) out += std::string(AsString(body.span()));
  return Xxh3(AsBytes(out));
}

TEST(QueryTablesTest, ABlobHoldsTheVeryStatistics) {
  const QueryStatistics sent = Statistics(1);
  const auto blob = QueryCalibration(Spec(), sent);
  ASSERT_TRUE(blob.ok()) << blob.status();
  const auto calibration = Parsed(*blob);
  const QueryStatistics& read = In(*calibration);
  EXPECT_EQ(read.layers, sent.layers);
  EXPECT_EQ(read.heads, sent.heads);
  EXPECT_EQ(read.dim, sent.dim);
  EXPECT_EQ(read.mean, sent.mean);
  EXPECT_EQ(read.covariance, sent.covariance);
  EXPECT_EQ(read.magnitude, sent.magnitude);
  EXPECT_EQ(read.direction, sent.direction) << "follows from the others";
}

TEST(QueryTablesTest, ACodecReadsThemAndNamesThem) {
  const QueryStatistics sent = Statistics(1), other = Statistics(2);
  CalibrationStore store;
  const auto id = HexOf((*store.Add(AsBytes(*QueryCalibration(Spec(), sent))))->id());
  for (const char* policy : {"expected-attention", "qfilters", "triattention"}) {
    const auto recipe = *ParseRecipe(absl::StrCat(policy, "(keep=0.5)|int8"));
    const auto with_page = MakeCodec(recipe, Spec());
    const auto with_blob = MakeCodec(recipe, Spec(), store);
    ASSERT_TRUE(with_page.ok() && with_blob.ok()) << with_blob.status();
    EXPECT_EQ(Encoded(**with_blob), Encoded(**with_page, &sent)) << policy;
    EXPECT_EQ(Encoded(**with_blob, &other), Encoded(**with_page, &sent)) << "the recipe's count";
    EXPECT_NE(Encoded(**with_page, &other), Encoded(**with_page, &sent));

    const auto named = NameQueries(recipe, id);
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_THAT(named->pipeline(), HasSubstr("blob=" + id));
    EXPECT_EQ((*QueryNeeds(*named))->blob, id);
    EXPECT_EQ(*NameQueries(*named, std::string(32, '0')), *named) << "it names another";
    EXPECT_EQ(Encoded(**MakeCodec(*named, Spec(), store)), Encoded(**with_page, &sent));
    EXPECT_TRUE(absl::IsFailedPrecondition(MakeCodec(*named, Spec()).status()))
        << "a page's own are not those that were named";
  }
  EXPECT_FALSE(QueryNeeds(*ParseRecipe("keydiff|int8"))->has_value());
  EXPECT_EQ(*NameQueries(*ParseRecipe("keydiff|int8"), id), *ParseRecipe("keydiff|int8"));
}

TEST(QueryTablesTest, WithoutAnyOrWithSeveralTheCodecSaysSo) {
  const auto recipe = *ParseRecipe(kRecipe);
  const auto raw = GaussianPage(Spec(), kTokens, 5);
  const auto none = (*MakeCodec(recipe, Spec()))->Encode({.raw = raw, .tokens = kTokens});
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("kvstow codec calibrate"));
  CalibrationStore store;
  for (const uint64_t seed : {1, 2}) {
    ASSERT_TRUE(store.Add(AsBytes(*QueryCalibration(Spec(), Statistics(seed)))).ok());
  }
  const auto several = MakeCodec(recipe, Spec(), store);
  EXPECT_TRUE(absl::IsInvalidArgument(several.status()));
  EXPECT_THAT(std::string(several.status().message()), HasSubstr("both fit"));
  const auto two = QueryNeeds(
      *ParseRecipe("expected(ahead=8,blob=aa)|trigonometric(blob=bb)|plus|budget(keep=0.5)|int8"));
  EXPECT_TRUE(absl::IsInvalidArgument(two.status())) << two.status();
}

TEST(QueryTablesTest, AFitIsTheMixtureOfItsTexts) {
  const QueryStatistics a = Statistics(1), b = Statistics(2);
  const auto fit = StartCalibration(*ParseRecipe(kRecipe), Spec(), {});
  ASSERT_TRUE(fit.ok()) << fit.status();
  const auto raw = GaussianPage(Spec(), kTokens, 5);
  ASSERT_EQ((*fit)->passes(), 1);
  for (const QueryStatistics* q : {&a, static_cast<const QueryStatistics*>(nullptr), &b}) {
    ASSERT_TRUE((*fit)->Add({.raw = raw, .tokens = kTokens, .queries = q}).ok());
  }
  ASSERT_TRUE((*fit)->EndPass().ok());
  const auto blob = (*fit)->Finish();
  ASSERT_TRUE(blob.ok()) << blob.status();
  const auto calibration = Parsed(*blob);
  const QueryStatistics& q = In(*calibration);
  for (size_t i = 0; i < q.mean.size(); ++i) {
    EXPECT_NEAR(q.mean[i], (a.mean[i] + b.mean[i]) / 2, 1e-5);
  }
  for (size_t i = 0; i < q.magnitude.size(); ++i) {
    EXPECT_NEAR(q.magnitude[i], (a.magnitude[i] + b.magnitude[i]) / 2, 1e-5);
  }
  // Half the covariances, and what the means are apart.
  for (size_t i = 0; i < q.covariance.size(); ++i) {
    const size_t row = i / q.dim, column = row / q.dim * q.dim + i % q.dim;
    const double apart = (a.mean[row] - b.mean[row]) * (a.mean[column] - b.mean[column]) / 4;
    EXPECT_NEAR(q.covariance[i], (a.covariance[i] + b.covariance[i]) / 2 + apart, 1e-5);
  }
}

TEST(QueryTablesTest, AFitNeedsQueriesOfOneShape) {
  const auto raw = GaussianPage(Spec(), kTokens, 5);
  const auto fit = *StartCalibration(*ParseRecipe(kRecipe), Spec(), {});
  ASSERT_TRUE(fit->Add({.raw = raw, .tokens = kTokens}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(fit->Finish().status()));
  const QueryStatistics good = Statistics(1);
  QueryStatistics other = good;
  other.dim = 4;
  EXPECT_TRUE(
      absl::IsInvalidArgument(fit->Add({.raw = raw, .tokens = kTokens, .queries = &other})));
  ASSERT_TRUE(fit->Add({.raw = raw, .tokens = kTokens, .queries = &good}).ok());
  KvSpec wide = Spec();
  wide.kv_heads = 4;
  const QueryStatistics more = Statistics(1, wide);
  EXPECT_TRUE(absl::IsInvalidArgument(fit->Add({.raw = raw, .tokens = kTokens, .queries = &more})));
}

TEST(QueryTablesTest, BadStatisticsAreNamed) {
  const QueryStatistics good = Statistics(1);
  const auto refused = [&](const auto& spoil, const char* why) {
    QueryStatistics bad = good;
    spoil(bad);
    const auto blob = QueryCalibration(Spec(), bad);
    EXPECT_TRUE(absl::IsInvalidArgument(blob.status())) << why;
    EXPECT_THAT(std::string(blob.status().message()), HasSubstr(why));
  };
  refused([](auto& q) { q.heads = 3; }, "do not fit");
  refused([](auto& q) { q.layers = 2; }, "do not fit");
  refused([](auto& q) { q.mean.pop_back(); }, "do not fit");
  refused([](auto& q) { q.covariance.clear(); }, "do not fit");
  refused([](auto& q) { q.mean[9] = NAN; }, "layer 0, head 1: a statistic is not finite");
  refused([](auto& q) { q.covariance[0] = std::numeric_limits<float>::infinity(); }, "not finite");
  refused([](auto& q) { q.covariance[0] = -1; }, "a variance is below 0");
  refused([](auto& q) { q.magnitude[0] = -1; }, "a magnitude is below 0");
}

TEST(QueryTablesTest, DamagedSectionsAreRefused) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  const std::string blob = *QueryCalibration(Spec(), Statistics(1));
  const size_t floats = 8 + 4 + 36, heads = 3 * 4;
  std::string body = blob.substr(blob.size() - 16 - 4 - heads * floats * 4, 4 + heads * floats * 4);
  EXPECT_TRUE(ParseQueryTables(shape, AsBytes(body)).ok());
  EXPECT_TRUE(absl::IsDataLoss(ParseQueryTables(shape, {}).status()));
  EXPECT_TRUE(
      absl::IsDataLoss(ParseQueryTables(shape, AsBytes(body).first(body.size() - 1)).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseQueryTables(shape, AsBytes(body + '\0')).status()));
  for (const uint32_t bad : {0u, 3u, 8u, 0xfffffffeu}) {
    std::memcpy(body.data(), &bad, 4);
    EXPECT_TRUE(absl::IsDataLoss(ParseQueryTables(shape, AsBytes(body)).status())) << bad;
  }
}

// A blob at rest: read for ever, and made again byte for byte.
TEST(QueryTablesTest, ItsGoldenFileIsReadForEver) {
  const std::filesystem::path path = TestsPath("golden/calibration_v2_queries.kvcal");
  std::ifstream in(path, std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  QueryStatistics q{.layers = 1,
                    .heads = 2,
                    .dim = 2,
                    .mean = {1, -2, 0.5, 3},
                    .covariance = {4, 1, 1, 2, 1, 0, 0, 1},
                    .magnitude = {2.5, 0.25}};
  KvSpec spec = SpecOf(DType::kF16, 1, 1, 2, 2, 64);
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 10000};
  const std::string made = *QueryCalibration(spec, q);
  if (golden.empty()) {
    const auto fresh = std::filesystem::temp_directory_path() / path.filename();
    std::ofstream(fresh, std::ios::binary) << made;
    FAIL() << "no golden file; a new one is " << fresh;
  }
  EXPECT_EQ(made, golden);
  EXPECT_EQ(In(*Parsed(golden)).covariance, q.covariance);
}

}  // namespace
}  // namespace kvstow::testing
