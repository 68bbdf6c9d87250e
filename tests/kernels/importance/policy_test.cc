// Score ops and policies: each score means what its header says, every preset can be made and
// selects what its budget allows, and bad input is named.
#include "kernels/importance/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/importance/query_scores.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

using testing::GaussianPage;
using ::testing::HasSubstr;

constexpr uint32_t kTokens = 48;

class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest() {
    spec_ = testing::SpecOf(DType::kF32, 3, 2, 16, 16, 64);
    spec_.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 10000};
    raw_ = GaussianPage(spec_, kTokens, 5);
    for (const char* name : {"attn_sum", "attn_window", "attn_window_var", "attn_last", "attn_hits",
                             "kvzip", "kvzap"}) {
      columns_[name] = Column(4, std::hash<std::string>()(name) % 1000);
    }
    queries_ = Queries();
  }

  AttentionColumn Column(uint32_t heads, uint64_t seed) const {
    AttentionColumn column{.heads = heads, .queries = kTokens};
    testing::Gaussian next(seed);
    for (size_t i = 0; i < size_t{spec_.layers} * kTokens * heads; ++i) {
      column.scores.push_back(std::abs(next()));
    }
    return column;
  }
  QueryStatistics Queries() const {
    QueryStatistics q{.layers = spec_.layers, .heads = 4, .dim = spec_.head_dim_k};
    testing::Gaussian next(3);
    for (size_t i = 0; i < size_t{q.layers} * q.heads * q.dim; ++i) q.mean.push_back(next());
    for (size_t i = 0; i < size_t{q.layers} * q.heads; ++i) {
      for (uint32_t r = 0; r < q.dim; ++r) {
        for (uint32_t c = 0; c < q.dim; ++c) q.covariance.push_back(r == c ? 0.5F : 0.0F);
      }
      for (uint32_t f = 0; f < q.dim / 2; ++f) q.magnitude.push_back(1.5F);
    }
    FindDirections(q);
    return q;
  }
  PageToScore Page() const {
    return {
        .spec = spec_, .raw = raw_, .tokens = kTokens, .columns = &columns_, .queries = &queries_};
  }
  static absl::StatusOr<ImportancePolicy> Make(absl::string_view text) {
    const auto recipe = ParseRecipe(text);
    if (!recipe.ok()) return recipe.status();
    return ImportancePolicy::Make(recipe->ops());
  }
  ScoreMap Scores(absl::string_view ops) const {
    const auto policy = Make(absl::StrCat(ops, "|budget(keep=0.5)"));
    EXPECT_TRUE(policy.ok()) << policy.status();
    if (!policy.ok()) return {};
    const auto scores = policy->Scores(Page());
    EXPECT_TRUE(scores.ok()) << scores.status();
    return scores.ok() ? *scores : ScoreMap();
  }
  // Value `c` of K of a token as it is stored.
  float Key(uint32_t layer, uint32_t token, uint32_t head, uint32_t c) const {
    const size_t at = SlabOffset(spec_, layer, Part::kK, kTokens) / 4;
    const auto* values = reinterpret_cast<const float*>(raw_.data());
    return values[at + (size_t{token} * spec_.kv_heads + head) * spec_.head_dim_k + c];
  }
  float KeyNorm(uint32_t layer, uint32_t token, uint32_t head) const {
    double sum = 0;
    for (uint32_t c = 0; c < spec_.head_dim_k; ++c) {
      sum += std::pow(Key(layer, token, head, c), 2);
    }
    return static_cast<float>(std::sqrt(sum));
  }

  KvSpec spec_;
  std::vector<uint8_t> raw_;
  AttentionColumns columns_;
  QueryStatistics queries_;
};

TEST_F(PolicyTest, EveryPresetSelects) {
  for (const Preset& preset : PolicyPresets()) {
    std::string text(preset.pipeline);
    if (preset.name == "duoattention") text.replace(text.find("heads=0"), 7, "heads=a8");
    const auto policy = Make(text);
    ASSERT_TRUE(policy.ok()) << preset.name << ": " << policy.status();
    const auto selection = policy->Select(Page());
    ASSERT_TRUE(selection.ok()) << preset.name << ": " << selection.status();
    const auto again = policy->Select(Page());
    EXPECT_EQ(selection->keep, again->keep) << preset.name;
    EXPECT_EQ(selection->keep.size(), size_t{spec_.layers} * kTokens * spec_.kv_heads);
    const bool has_column = !policy->columns().empty();
    EXPECT_EQ(has_column, preset.needs == "attention") << preset.name;
  }
}

TEST_F(PolicyTest, WithoutTheColumnAPresetSaysWhatItNeeds) {
  PageToScore page = Page();
  page.columns = nullptr;
  page.queries = nullptr;
  for (const Preset& preset : PolicyPresets()) {
    if (preset.name == "duoattention") continue;
    const auto selection = Make(preset.pipeline)->Select(page);
    if (preset.needs.empty()) {
      EXPECT_TRUE(selection.ok()) << preset.name << ": " << selection.status();
    } else {
      EXPECT_EQ(selection.status().code(), absl::StatusCode::kFailedPrecondition) << preset.name;
    }
  }
}

TEST_F(PolicyTest, KeyNormIsMinusTheLength) {
  const ScoreMap scores = Scores("key_norm");
  EXPECT_NEAR(scores.Layer(1)[7 * 2 + 1], -KeyNorm(1, 7, 1), 1e-5);
}

TEST_F(PolicyTest, AKeyThatRepeatsTheMeanIsLeastDiverse) {
  // All keys of a head the same but one.
  auto* values = reinterpret_cast<float*>(raw_.data());
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t c = 0; c < 32; ++c) values[t * 32 + c] = t == 9 ? (c % 2 ? -1 : 1) : 1;
  }
  for (const char* op : {"key_diversity", "redundancy", "leverage"}) {
    const ScoreMap scores = Scores(op);
    for (uint32_t t = 0; t < kTokens; ++t) {
      if (t == 9) continue;
      EXPECT_LT(scores.Layer(0)[t * 2], scores.Layer(0)[9 * 2]) << op << " " << t;
    }
  }
}

TEST_F(PolicyTest, LeverageSumsToTheDimension) {
  const ScoreMap scores = Scores("leverage");
  double sum = 0;
  for (uint32_t t = 0; t < kTokens; ++t) sum += scores.Layer(2)[t * 2];
  EXPECT_NEAR(sum, spec_.head_dim_k, 0.05);
}

TEST_F(PolicyTest, RandomDependsOnThePositionInTheSequence) {
  PageToScore page = Page();
  const auto policy = Make("random(seed=3)|budget(keep=0.5)");
  const auto here = policy->Scores(page);
  page.first_position = 16;
  const auto later = policy->Scores(page);
  for (uint32_t t = 0; t + 16 < kTokens; ++t) {
    EXPECT_EQ(here->Layer(1)[(t + 16) * 2], later->Layer(1)[t * 2]) << t;
  }
}

TEST_F(PolicyTest, TheLastPartitionOfALagScoresHighest) {
  const ScoreMap scores = Scores("lag(size=16)");
  for (uint32_t t = 0; t < 32; ++t) EXPECT_LT(scores.Layer(0)[t * 2], 2.01F);
  double sum = 0;
  for (uint32_t t = 0; t < 16; ++t) sum += scores.Layer(0)[t * 2];
  EXPECT_NEAR(sum, 2, 1e-4) << "a softmax of K and one of V";
  for (uint32_t t = 32; t < kTokens; ++t) EXPECT_GT(scores.Layer(0)[t * 2], 3);
}

TEST_F(PolicyTest, ExpectedAttentionIsADistribution) {
  const ScoreMap scores = Scores("expected");
  for (uint32_t l = 0; l < spec_.layers; ++l) {
    double sum = 0;
    for (uint32_t t = 0; t < kTokens; ++t) sum += scores.Layer(l)[t * 2];
    EXPECT_NEAR(sum, 1, 1e-4) << l;
  }
}

TEST_F(PolicyTest, ExpectedAttentionOfAnIsotropicQueryGoesByTheKeyNorm) {
  std::fill(queries_.mean.begin(), queries_.mean.end(), 0.0F);
  const ScoreMap scores = Scores("expected");
  for (uint32_t t = 1; t < kTokens; ++t) {
    const bool longer = KeyNorm(0, t, 0) > KeyNorm(0, t - 1, 0);
    EXPECT_EQ(scores.Layer(0)[t * 2] > scores.Layer(0)[(t - 1) * 2], longer) << t;
  }
}

// By turning each key back from each of the positions to come, instead of the queries' moments.
TEST_F(PolicyTest, ExpectedAttentionIsThatOfTurnedQueries) {
  testing::Gaussian next(9);
  const uint32_t dim = queries_.dim, half = dim / 2;
  for (size_t head = 0; head < queries_.mean.size() / dim; ++head) {
    float along[16];
    for (float& x : along) x = next();
    for (uint32_t i = 0; i < dim * dim; ++i) {
      queries_.covariance[head * dim * dim + i] += along[i / dim] * along[i % dim];
    }
  }
  const auto logit = [&](uint32_t t, uint32_t query_head) {
    const float* const mean = queries_.mean.data() + (4 + query_head) * dim;
    const float* const covariance = queries_.covariance.data() + (4 + query_head) * dim * dim;
    double sum = 0;
    for (uint32_t spot = 0; spot < 24; ++spot) {
      double u[16];
      for (uint32_t f = 0; f < half; ++f) {
        const double angle = (kTokens + 512 * spot / 23) * std::pow(10000.0, -1.0 * f / half);
        const double a = Key(1, t, 1, f), b = Key(1, t, 1, f + half);
        u[f] = a * std::cos(angle) + b * std::sin(angle);
        u[f + half] = b * std::cos(angle) - a * std::sin(angle);
      }
      for (uint32_t r = 0; r < dim; ++r) {
        sum += u[r] * mean[r] / std::sqrt(dim) / 24;
        for (uint32_t c = 0; c < dim; ++c) {
          sum += u[r] * covariance[r * dim + c] * u[c] / (2 * dim) / 24;
        }
      }
    }
    return sum;
  };
  std::vector<double> want(kTokens);
  for (const uint32_t query_head : {2, 3}) {
    double total = 0;
    for (uint32_t t = 0; t < kTokens; ++t) total += std::exp(logit(t, query_head));
    for (uint32_t t = 0; t < kTokens; ++t) want[t] += std::exp(logit(t, query_head)) / total / 2;
  }
  const ScoreMap scores = Scores("expected(ahead=512)");
  for (uint32_t t = 0; t < kTokens; ++t) {
    EXPECT_NEAR(scores.Layer(1)[t * 2 + 1], want[t], 1e-4 * want[t] + 1e-7) << t;
  }
}

TEST_F(PolicyTest, TheQueryDirectionIsThatOfTheMean) {
  // Queries along channel 0 only: the score is K's channel 0 before RoPE.
  spec_.rope.k_after_rope = false;
  std::fill(queries_.mean.begin(), queries_.mean.end(), 0.0F);
  for (size_t i = 0; i < queries_.mean.size(); i += queries_.dim) queries_.mean[i] = 3;
  FindDirections(queries_);
  const ScoreMap scores = Scores("query_direction");
  for (uint32_t t = 0; t < kTokens; ++t) {
    EXPECT_NEAR(scores.Layer(1)[t * 2 + 1], Key(1, t, 1, 0), 1e-4) << t;
  }
}

TEST_F(PolicyTest, QueryHeadsAreAveragedIntoTheirKvHead) {
  const ScoreMap scores = Scores("column(name=attn_sum)");
  const AttentionColumn& column = columns_["attn_sum"];
  const size_t entry = (size_t{1} * kTokens + 5) * 4 + 2;
  EXPECT_NEAR(scores.Layer(1)[5 * 2 + 1], (column.scores[entry] + column.scores[entry + 1]) / 2,
              1e-6);
}

TEST_F(PolicyTest, SeenDividesByTheQueriesThatSawTheToken) {
  const ScoreMap plain = Scores("column(name=attn_sum)");
  const ScoreMap seen = Scores("column(name=attn_sum,seen=16)");
  EXPECT_NEAR(seen.Layer(0)[8 * 2], plain.Layer(0)[8 * 2] / (kTokens - 8), 1e-7);
  EXPECT_NEAR(seen.Layer(0)[47 * 2], plain.Layer(0)[47 * 2] / 16, 1e-7);
}

TEST_F(PolicyTest, ProductsAndSums) {
  const ScoreMap a = Scores("column(name=attn_sum)"), b = Scores("value_norm");
  const ScoreMap product = Scores("column(name=attn_sum)|value_norm|times");
  const ScoreMap sum = Scores("column(name=attn_sum)|value_norm|plus(weight=0.5)");
  for (size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_FLOAT_EQ(product.values[i], a.values[i] * b.values[i]);
    EXPECT_NEAR(sum.values[i], a.values[i] + 0.5 * b.values[i], 1e-5);
  }
}

TEST_F(PolicyTest, ScoresThatAreNotFiniteRankLeast) {
  AttentionColumn& column = columns_["attn_sum"];
  column = Column(spec_.kv_heads, 8);
  const auto score = [&](uint32_t t) -> float& { return column.scores[t * spec_.kv_heads]; };
  for (uint32_t t = 0; t < kTokens; t += 3) {
    score(t) = t % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                          : std::numeric_limits<float>::infinity();
  }
  const ScoreMap plain = Scores("column(name=attn_sum)");
  const ScoreMap rank = Scores("column(name=attn_sum)|norm(kind=rank)");
  for (uint32_t t = 0; t < kTokens; ++t) {
    const float of = rank.Layer(0)[t * spec_.kv_heads];
    const float least = 1.0F / 3;  // a third is not finite
    EXPECT_TRUE(std::isfinite(plain.Layer(0)[t * spec_.kv_heads]) ? of >= least : of < least) << t;
  }
}

TEST_F(PolicyTest, PoolingAndChunks) {
  const ScoreMap plain = Scores("column(name=attn_sum)");
  const auto at = [](const ScoreMap& map, uint32_t t) { return map.Layer(0)[t * 2]; };
  const ScoreMap mean = Scores("column(name=attn_sum)|pool(kind=mean,width=3)");
  EXPECT_NEAR(at(mean, 5), (at(plain, 4) + at(plain, 5) + at(plain, 6)) / 3, 1e-6);
  EXPECT_NEAR(at(mean, 0), (2 * at(plain, 0) + at(plain, 1)) / 3, 1e-6) << "the end repeats";
  const ScoreMap most = Scores("column(name=attn_sum)|pool(kind=max,width=3)");
  EXPECT_EQ(at(most, 5), std::max({at(plain, 4), at(plain, 5), at(plain, 6)}));
  const ScoreMap chunk = Scores("column(name=attn_sum)|chunk(size=20)");
  EXPECT_EQ(at(chunk, 0), at(chunk, 19));
  EXPECT_NE(at(chunk, 19), at(chunk, 20));
}

TEST_F(PolicyTest, NamedTokensStay) {
  std::vector<uint8_t> named(kTokens, 0);
  named[11] = 1;
  PageToScore page = Page();
  page.protected_tokens = named;
  const auto selection = Make("position|budget(keep=0.25)")->Select(page);
  ASSERT_TRUE(selection.ok());
  EXPECT_TRUE(selection->Kept(2, 11, 1));
  EXPECT_FALSE(selection->Kept(2, 12, 1));
}

TEST_F(PolicyTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"position", "ends in 'budget'"},
      {"budget(keep=0.5)", "leave 0 scores"},
      {"position|random|budget(keep=0.5)", "leave 2 scores"},
      {"position|times|budget(keep=0.5)", "takes 2 scores"},
      {"position|budget(keep=1.5)", "keep"},
      {"position|budget(keep=0.5,scope=word)", "scope"},
      {"position|pool(kind=mean,width=4)|budget(keep=0.5)", "odd"},
      {"position|hadamard|budget(keep=0.5)", "makes no score"},
      {"random(sed=1)|budget(keep=0.5)", "unknown"},
      {"head_table(heads=xyz)|budget(keep=0.5)", "hexadecimal"},
  };
  for (const auto& [text, what] : wrong) {
    const auto policy = Make(text);
    ASSERT_FALSE(policy.ok()) << text;
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(what)) << text;
  }
}

TEST_F(PolicyTest, ColumnsOfTheWrongSizeAreRefused) {
  columns_["attn_sum"].scores.pop_back();
  const auto short_column = Make("column(name=attn_sum)|budget(keep=0.5)")->Select(Page());
  EXPECT_EQ(short_column.status().code(), absl::StatusCode::kInvalidArgument);
  columns_["attn_sum"] = Column(3, 1);  // 3 heads do not divide among 2
  const auto odd = Make("column(name=attn_sum)|budget(keep=0.5)")->Select(Page());
  EXPECT_EQ(odd.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PolicyTest, APageWithNanHasNoScore) {
  reinterpret_cast<float*>(raw_.data())[100] = std::nanf("");
  const auto scores = Make("key_norm|budget(keep=0.5)")->Scores(Page());
  EXPECT_EQ(scores.status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(PolicyTest, OneToken) {
  const std::vector<uint8_t> raw = GaussianPage(spec_, 1);
  AttentionColumns columns;
  for (const auto& [name, column] : columns_) {
    columns[name] = {.heads = 2, .queries = 1, .scores = std::vector<float>(6, 0.5F)};
  }
  const PageToScore page{
      .spec = spec_, .raw = raw, .tokens = 1, .columns = &columns, .queries = &queries_};
  for (const Preset& preset : PolicyPresets()) {
    if (preset.name == "duoattention") continue;
    const auto selection = Make(preset.pipeline)->Select(page);
    EXPECT_TRUE(selection.ok()) << preset.name << ": " << selection.status();
  }
}

}  // namespace
}  // namespace kvstow
