// Run codecs that look beyond one slab: positions, depth of a layer, neighbouring layers.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/transform/rope.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokens = 60;

KvSpec Spec(uint32_t layers) {
  KvSpec spec = testing::SpecOf(DType::kF32, layers, 2, 32, 32, kTokens);
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 100000};
  return spec;
}

// Each slab's squared error relative to its energy, K and V of the first layer first.
std::vector<double> Errors(const KvSpec& spec, absl::string_view recipe,
                           const std::vector<uint8_t>& raw) {
  const auto codec = MakeCodec(*ParseRecipe(recipe), spec);
  EXPECT_TRUE(codec.ok()) << codec.status();
  const auto page = (*codec)->Encode({.raw = raw, .tokens = kTokens, .first_position = 700});
  EXPECT_TRUE(page.ok()) << page.status();
  EXPECT_FALSE(page->header.fell_back);
  std::vector<uint8_t> back(raw.size());
  EXPECT_TRUE(DecodePage(page->header, page->segments, back).ok());
  std::vector<double> errors;
  const size_t slab = raw.size() / (2 * spec.layers);
  for (size_t at = 0; at < raw.size(); at += slab) {
    errors.push_back(testing::RelativeError(spec.dtype, std::span(raw).subspan(at, slab),
                                            std::span(back).subspan(at, slab)));
  }
  return errors;
}

TEST(RopeOpTest, KeysThatDifferByTheirPositionsAloneAreOfRankOne) {
  const KvSpec spec = Spec(1);
  std::vector<uint8_t> raw = testing::GaussianPage(spec, kTokens);
  std::vector<float> k = testing::ValuesOf(spec.dtype, raw);
  k.resize(k.size() / 2);
  for (size_t i = 64; i < k.size(); ++i) k[i] = k[i % 64];  // every token as the first
  RopeRotation(spec.rope, spec.head_dim_k, 700, kTokens).Redo(spec.kv_heads, k.data());
  StoreFloats(spec.dtype, k.data(), k.size(), raw.data());
  EXPECT_LT(Errors(spec, "rope|k|lowrank(rank=1)|v|keep", raw)[0], 1e-6);
  EXPECT_GT(Errors(spec, "k|lowrank(rank=1)|v|keep", raw)[0], 0.1);
}

TEST(SharedBasisTest, LayersThatFollowEachOtherShareTheirBasis) {
  const KvSpec spec = Spec(2);
  std::vector<float> values = testing::ValuesOf(spec.dtype, testing::GaussianPage(spec, kTokens));
  // K and V of the second layer are those of the first, turned within each token.
  const size_t slab = values.size() / 4;
  for (size_t i = 0; i < 2 * slab; ++i)
    values[2 * slab + i] = -0.5f * values[i - i % 64 + 63 - i % 64];
  std::vector<uint8_t> raw(values.size() * sizeof(float));
  StoreFloats(spec.dtype, values.data(), values.size(), raw.data());
  for (const double error : Errors(spec, "run(2)|sharedbasis(k=0.5,v=0.5)", raw)) {
    EXPECT_LT(error, 1e-6);
  }
  for (const double error : Errors(spec, "run(1)|sharedbasis(k=0.5,v=0.5)", raw)) {
    EXPECT_GT(error, 0.05);
  }
}

TEST(CachegenTest, StepsGrowWithTheLayer) {
  const KvSpec spec = Spec(6);
  const auto raw = testing::GaussianPage(spec, kTokens);
  const std::vector<double> e =
      Errors(spec, "deltas(every=10,bins=256,early=0.1,middle=0.2,late=0.4)", raw);
  for (size_t slab = 4; slab < 12; ++slab) {
    EXPECT_NEAR(e[slab] / e[slab - 4], 4, 0.8) << "slab " << slab;
  }
  // Differences of independent values have twice their energy, nine tokens of ten are differences.
  EXPECT_NEAR(e[0], 0.9 * 2 * 0.1 * 0.1 / 12, 1e-4);
}

TEST(CachegenTest, BinsHaveATableByLayer) {
  const KvSpec spec = Spec(4);
  const auto raw = testing::GaussianPage(spec, kTokens);
  const std::vector<double> e =
      Errors(spec, "bins(k=64,k_then=32,k_from=3,v=32,v_then=16,v_from=1)", raw);
  const double k = 31.0 * 31 / (15 * 15), v = 15.0 * 15 / (7 * 7);
  EXPECT_NEAR(e[2] / e[0], 1, 0.1);
  EXPECT_NEAR(e[6] / e[4], k, 0.1 * k);
  EXPECT_NEAR(e[3] / e[1], v, 0.1 * v);
  EXPECT_NEAR(e[7] / e[3], 1, 0.1);
}

TEST(CachegenTest, ARowWithoutATableIsDamage) {
  const KvSpec spec = Spec(1);
  const auto raw = testing::GaussianPage(spec, kTokens);
  const auto codec = MakeCodec(*ParseRecipe("bins"), spec);
  auto page = (*codec)->Encode({.raw = raw, .tokens = kTokens});
  std::vector<uint8_t> body(page->segments[0].span().begin(), page->segments[0].span().end());
  body[2 * 2 * kTokens] = 57;  // behind the magnitudes of K and V
  page->segments[0] = SharedBytes::Take(std::move(body));
  std::vector<uint8_t> back(raw.size());
  EXPECT_TRUE(absl::IsDataLoss(DecodePage(page->header, page->segments, back)));
}

}  // namespace
}  // namespace kvstow
