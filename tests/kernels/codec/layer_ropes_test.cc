// Pages in which some layers have another RoPE: codecs take off each layer's own. Such pages have
// channels of K with means, which RoPE hides where it is not taken off.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/planes_run_codec.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kTokens = 128;
constexpr uint64_t kFirst = 3000;  // far enough for the frequencies to matter

// Every other layer turns K by frequencies of its own.
KvSpec TwoRopes() {
  KvSpec spec = CorrelatedSpec(/*layers=*/4);
  spec.other_rope = {.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 50}, .layers = {1, 3}};
  return spec;
}

// What somebody says who knows of one of them alone.
KvSpec OneRope() {
  KvSpec spec = TwoRopes();
  spec.other_rope = {};
  return spec;
}

class LayerRopes : public ::testing::TestWithParam<std::string> {
 protected:
  // Adds what the recipe needs, fitted to pages of two RoPEs by somebody who takes them for `said`.
  static void Calibrate(const KvSpec& said, CalibrationStore& calibrations) {
    const Recipe recipe = *ParseRecipe(GetParam());
    if (MakeCodec(recipe, said, calibrations).ok()) return;
    const auto fit = StartCalibration(recipe, said, {});
    ASSERT_TRUE(fit.ok()) << fit.status();
    for (int pass = 0; pass < (*fit)->passes(); ++pass) {
      for (uint64_t text = 0; text < 6; ++text) {
        const auto raw = CorrelatedPage(TwoRopes(), kTokens, text, kFirst);
        ASSERT_TRUE((*fit)->Add({.raw = raw, .tokens = kTokens, .first_position = kFirst}).ok());
      }
      ASSERT_TRUE((*fit)->EndPass().ok());
    }
    ASSERT_TRUE(calibrations.Add(AsBytes((*fit)->Finish().value())).ok());
  }

  static EncodedPage Encode(const KvSpec& said, const CalibrationStore& calibrations) {
    const auto codec = MakeCodec(*ParseRecipe(GetParam()), said, calibrations);
    EXPECT_TRUE(codec.ok()) << codec.status();
    if (!codec.ok()) return {};
    const auto raw = CorrelatedPage(TwoRopes(), kTokens, 9, kFirst);
    return (*codec)->Encode({.raw = raw, .tokens = kTokens, .first_position = kFirst}).value();
  }

  // Bytes of the page, and its error.
  struct Cost {
    double bytes, error;
  };
  static Cost CostOf(const KvSpec& said) {
    CalibrationStore calibrations;
    Calibrate(said, calibrations);
    const EncodedPage page = Encode(said, calibrations);
    const auto raw = CorrelatedPage(TwoRopes(), kTokens, 9, kFirst);
    std::vector<uint8_t> back(raw.size());
    EXPECT_TRUE(DecodePage(page.header, page.segments, back, calibrations).ok());
    return {static_cast<double>(page.StoredBytes()), RelativeError(DType::kF16, raw, back)};
  }
};

TEST_P(LayerRopes, APageThatSaysBothIsSmallerOrCloser) {
  const Cost both = CostOf(TwoRopes()), one = CostOf(OneRope());
  EXPECT_LE(both.bytes, 1.01 * one.bytes);
  EXPECT_LE(both.error, 1.01 * one.error);
  EXPECT_LT(both.bytes * both.error, 0.8 * one.bytes * one.error);
}

TEST_P(LayerRopes, LayersDecodeAlone) {
  CalibrationStore calibrations;
  Calibrate(TwoRopes(), calibrations);
  const EncodedPage page = Encode(TwoRopes(), calibrations);
  const size_t layer_bytes = LayerBytes(TwoRopes(), kTokens);
  std::vector<uint8_t> whole(4 * layer_bytes);
  ASSERT_TRUE(DecodePage(page.header, page.segments, whole, calibrations).ok());
  const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(), page.segments.end());
  for (uint32_t layer = 0; layer < 4; ++layer) {
    std::vector<uint8_t> alone(layer_bytes);
    const PageRange wanted{{layer, 1}, {0, kTokens}};
    ASSERT_TRUE(DecodePage(page.header, bodies, wanted, alone, calibrations).ok());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + layer * layer_bytes))
        << layer;
  }
}

// All codecs that take RoPE off.
INSTANTIATE_TEST_SUITE_P(Codecs, LayerRopes,
                         ::testing::Values("planes(step=0.5)", "run(layers=1)|planes(step=0.5)",
                                           "kvstow", "run(layers=4)|rope|mean|affine(bits=4)",
                                           "joint(run=2)", "pca(run=4)"),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param) name += std::isalnum(c) ? c : '_';
                           return name;
                         });

// int8 goes by channel where K has large means: what tells it must take off each layer's own RoPE.
TEST(LayerRopesTest, KeysWithMeansAreFoundInAllLayers) {
  for (const uint32_t others : {1u, 3u}) {
    KvSpec spec = SpecOf(DType::kF16, 4, 2, 64, 64, 256);
    spec.rope = {.layout = RopeSpec::Layout::kHalf};
    spec.other_rope.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 1e6};
    for (uint32_t layer = 0; layer < others; ++layer) spec.other_rope.layers.push_back(layer);
    const auto codec = MakeCodec(*ParseRecipe("int8"), spec);
    ASSERT_TRUE(codec.ok()) << codec.status();
    const auto coded = [&](float means) {
      const auto raw = CorrelatedPage(spec, 256, 1, 8, means);
      const auto page = (*codec)->Encode({.raw = raw, .tokens = 256, .first_position = 8});
      return page.value().header.pipeline;
    };
    EXPECT_NE(coded(300), coded(0)) << others;
  }
}

}  // namespace
}  // namespace kvstow::testing
