// Attention by mean queries: against a plain computation, and what it does to the codes of a page.
#include "kernels/importance/foretold_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/codec/calibrate.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/transform/rope.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/random_query_means.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kHeads = 4;  // of queries, two for each KV head

// The definition, in F64 and straight: the mean queries at all tokens, each over what it sees.
std::vector<double> PlainScores(const KvSpec& spec, const QueryMeans::Layer& of,
                                std::span<const uint8_t> raw, uint32_t tokens, uint64_t first) {
  const uint32_t dim = spec.head_dim_k, heads = spec.kv_heads;
  const JointVectors vectors(spec, {{of.layer, 1}, tokens, first});
  std::vector<float> x(tokens * vectors.width());
  const size_t layer_bytes = LayerBytes(spec, tokens);
  EXPECT_TRUE(
      vectors.Gather(raw.subspan(of.layer * layer_bytes, layer_bytes), {0, tokens}, x.data()));
  std::vector<float> k, q;
  for (uint32_t t = 0; t < tokens; ++t) {
    const float* const row = x.data() + t * vectors.width();
    k.insert(k.end(), row, row + size_t{heads} * dim);
    q.insert(q.end(), of.means.begin(), of.means.end());
  }
  RopeSpec rope = RopeOfLayer(spec, of.layer);
  rope.k_after_rope = true;
  const RopeRotation rotation(rope, dim, first, tokens);
  rotation.Redo(heads, k.data());
  rotation.Redo(kHeads, q.data());
  std::vector<double> scores(tokens * heads), seen(tokens);
  for (uint32_t asking = (tokens - 1) % kQueriesEvery; asking < tokens; asking += kQueriesEvery) {
    for (uint32_t t = 0; t <= asking; ++t) ++seen[t];
    for (uint32_t head = 0; head < kHeads; ++head) {
      const uint32_t kv_head = head / (kHeads / heads);
      std::vector<double> weights;
      for (uint32_t t = 0; t <= asking; ++t) {
        const float* const a = q.data() + (size_t{asking} * kHeads + head) * dim;
        weights.push_back(
            std::exp(std::inner_product(a, a + dim, &k[(t * heads + kv_head) * dim], 0.0)));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (uint32_t t = 0; t <= asking; ++t) scores[t * heads + kv_head] += weights[t] / sum;
    }
  }
  for (uint32_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (uint32_t t = 0; t < tokens; ++t) sum += scores[t * heads + h] /= seen[t];
    for (uint32_t t = 0; t < tokens; ++t) scores[t * heads + h] *= tokens / sum;
  }
  return scores;
}

class ForetoldAttentionTest : public ::testing::Test {
 protected:
  static absl::StatusOr<ScoreMap> Scores(const KvSpec& spec, const QueryMeans& means,
                                         std::span<const uint8_t> raw, uint32_t tokens,
                                         uint64_t first) {
    return ForetoldAttention(means,
                             {.spec = spec, .raw = raw, .tokens = tokens, .first_position = first});
  }
};

TEST_F(ForetoldAttentionTest, IsWhatThePlainDefinitionGives) {
  for (const auto layout :
       {RopeSpec::Layout::kNone, RopeSpec::Layout::kHalf, RopeSpec::Layout::kInterleaved}) {
    for (const bool after_rope : {true, false}) {
      for (const uint32_t tokens : {1u, 7u, 8u, 65u, 128u}) {
        KvSpec spec = CorrelatedSpec();
        spec.rope.layout = layout;
        spec.rope.k_after_rope = after_rope;
        spec.other_rope = {.rope = spec.rope, .layers = {1}};
        spec.other_rope.rope.theta = 50;
        const auto raw = CorrelatedPage(spec, tokens, 3, 40);
        const QueryMeans means = RandomMeans(spec, {0, 1, 2}, kHeads);
        const auto scores = Scores(spec, means, raw, tokens, 40);
        ASSERT_TRUE(scores.ok()) << scores.status();
        for (uint32_t layer = 0; layer < 3; ++layer) {
          const auto plain = PlainScores(spec, means.layers[layer], raw, tokens, 40);
          for (size_t i = 0; i < plain.size(); ++i) {
            ASSERT_NEAR(scores->Layer(layer)[i], plain[i], 0.1 * plain[i] + 1e-3)
                << "layer " << layer << ", token " << i / spec.kv_heads << " of " << tokens;
          }
        }
      }
    }
  }
}

TEST_F(ForetoldAttentionTest, LayersWithoutQueriesStandBetweenTheirNeighbours) {
  const KvSpec spec = CorrelatedSpec(7);
  const auto raw = CorrelatedPage(spec, 64, 3);
  const ScoreMap scores = Scores(spec, RandomMeans(spec, {1, 5}, kHeads), raw, 64, 0).value();
  for (size_t i = 0; i < scores.LayerSize(); ++i) {
    const float a = scores.Layer(1)[i], b = scores.Layer(5)[i];
    EXPECT_EQ(scores.Layer(0)[i], a);
    EXPECT_NEAR(scores.Layer(2)[i], 0.75f * a + 0.25f * b, 1e-5f);
    EXPECT_NEAR(scores.Layer(4)[i], 0.25f * a + 0.75f * b, 1e-5f);
    EXPECT_EQ(scores.Layer(6)[i], b);
  }
}

TEST_F(ForetoldAttentionTest, ValuesThatAreNoNumbersHaveNoScore) {
  const KvSpec spec = CorrelatedSpec(3);
  auto raw = CorrelatedPage(spec, 16, 3);
  const size_t at = SlabOffset(spec, 1, Part::kK, 16);
  raw[at] = raw[at + 1] = 0xff;
  const auto scores = Scores(spec, RandomMeans(spec, {1}, kHeads), raw, 16, 0);
  EXPECT_TRUE(absl::IsOutOfRange(scores.status())) << scores.status();
  EXPECT_TRUE(
      Scores(spec, RandomMeans(spec, {0, 2}, kHeads), raw, 16, 0).ok());  // they read other layers
}

// What it is for: a codec with mean queries spends its bytes on the tokens that queries seek.
class ForetoldStepsTest : public ::testing::Test {
 protected:
  static KvSpec Spec() {
    KvSpec spec = CorrelatedSpec(3);
    spec.rope.layout = RopeSpec::Layout::kNone;  // a query seeks the same channel everywhere
    return spec;
  }
  // All queries seek keys whose first channel is large.
  QueryMeans Seeking() const {
    QueryMeans out = RandomMeans(spec_, {1}, kHeads);
    std::vector<float>& means = out.layers[0].means;
    std::ranges::fill(means, 0);
    for (uint32_t head = 0; head < kHeads; ++head) means[head * spec_.head_dim_k] = 1;
    return out;
  }
  EncodedPage Encode(absl::string_view recipe, const std::string& blob,
                     const AttentionColumns* columns = nullptr) {
    CalibrationStore store;
    store.Add(ParseCalibration(AsBytes(blob)).value());
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec_, store).value();
    return codec
        ->Encode({.raw = raw_, .tokens = kTokens, .first_position = 128, .columns = columns})
        .value();
  }
  // Squared error of each token, over all layers.
  std::vector<double> Errors(const std::string& blob) {
    const EncodedPage page = Encode("kvstow-cal(run=1,step=2)", blob);
    CalibrationStore store;
    store.Add(ParseCalibration(AsBytes(blob)).value());
    std::vector<uint8_t> back(raw_.size());
    EXPECT_TRUE(DecodePage(page.header, page.segments, back, store).ok());
    const JointVectors vectors(spec_, {{0, spec_.layers}, kTokens, 128});
    std::vector<float> before(kTokens * vectors.width()), after(before.size());
    vectors.Gather(raw_, {0, kTokens}, before.data());
    vectors.Gather(back, {0, kTokens}, after.data());
    std::vector<double> out(kTokens);
    for (size_t i = 0; i < before.size(); ++i) {
      out[i / vectors.width()] += std::pow(before[i] - after[i], 2);
    }
    return out;
  }

  static constexpr uint32_t kTokens = 128;
  const KvSpec spec_ = Spec();
  const std::vector<uint8_t> raw_ = CorrelatedPage(spec_, kTokens, 20, 128);
  const std::string plain_ = FitCorrelated(spec_, 1, {}, true).value();
};

TEST_F(ForetoldStepsTest, SoughtTokensAreCodedMoreFinely) {
  const QueryMeans means = Seeking();
  const auto scores = PlainScores(spec_, means.layers[0], raw_, kTokens, 128);
  const auto before = Errors(plain_), after = Errors(WithMeans(spec_, plain_, means));
  std::vector<size_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::ranges::sort(tokens, std::greater(), [&](size_t t) { return scores[t * spec_.kv_heads]; });
  const auto sum = [&](const std::vector<double>& errors, size_t from, size_t to) {
    double out = 0;
    for (size_t i = from; i < to; ++i) out += errors[tokens[i]];
    return out;
  };
  // Processors round the transform differently, and a token then has another step class.
  const double sought = sum(after, 0, 16) / sum(before, 0, 16);
  EXPECT_LT(sought, 0.8);
  EXPECT_GT(sum(after, 112, 128) / sum(before, 112, 128), 1.25 * sought);
}

TEST_F(ForetoldStepsTest, WhatAWorkerReportsComesFirst) {
  AttentionColumns columns;
  AttentionColumn& column = columns["attn_sum"];
  column.heads = spec_.kv_heads;
  for (size_t i = 0; i < size_t{spec_.layers} * kTokens * spec_.kv_heads; ++i) {
    column.scores.push_back(static_cast<float>(1 + i / spec_.kv_heads % 7));
  }
  constexpr absl::string_view kRecipe = "column(name=attn_sum)|class|kvstow-cal(run=1,step=4)";
  const std::string asking = WithMeans(spec_, plain_, Seeking());
  const auto bodies = [](const EncodedPage& page) {
    std::string out;
    for (const SharedBytes& body : page.segments) absl::StrAppend(&out, AsString(body.span()));
    return out;
  };
  EXPECT_EQ(bodies(Encode(kRecipe, asking, &columns)), bodies(Encode(kRecipe, plain_, &columns)));
  EXPECT_NE(bodies(Encode(kRecipe, asking)), bodies(Encode(kRecipe, plain_)));
}

}  // namespace
}  // namespace kvstow::testing
