// Quantizers against what theory and the literature give for a standard Gaussian.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/codec/ops.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/quantize/block_scales.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/e4m3.h"
#include "kernels/quantize/levels.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {
namespace {

std::unique_ptr<Quantizer> Make(absl::string_view text) {
  const auto recipe = ParseRecipe(text);
  const OpArguments arguments(recipe->ops()[0]);
  auto made = FindOp(arguments.op().name)->make_quantizer(arguments);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Mean squared error of the first `levels` levels (0 = all) on Gaussian vectors of `dim`.
double GaussianMse(const Quantizer& quantizer, uint32_t dim, Part part = Part::kK,
                   uint32_t levels = 0) {
  const SlabShape shape{part, 4096, 2, dim};
  std::vector<float> values(shape.values()), decoded(shape.values());
  // True tails: the largest value of a vector decides what `levels` loses.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  std::vector<std::vector<uint8_t>> bodies;
  std::vector<uint8_t*> out;
  for (uint32_t l = 0; l < quantizer.levels(); ++l) {
    out.push_back(bodies.emplace_back(quantizer.LevelBytes(shape, l)).data());
  }
  EXPECT_TRUE(quantizer.Encode(shape, values.data(), out));
  const std::vector<const uint8_t*> in(out.begin(), out.end());
  const size_t used = levels == 0 ? in.size() : levels;
  EXPECT_TRUE(quantizer.Decode(shape, std::span(in).first(used), decoded.data()));
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += (double{values[i]} - decoded[i]) * (double{values[i]} - decoded[i]);
  }
  return sum / static_cast<double>(values.size());
}

TEST(QuantizerTest, TilesGiveTheBytesAndValuesOfTheSlab) {
  for (const char* recipe :
       {"affine(bits=8,group=64)", "affine(bits=3,group=32,k=channel)", "affine(k=tensor)",
        "symmetric(bits=4,group=16,k=channel)", "symmetric(bits=5,group=48)", "minifloat",
        "block(format=q4_0)", "block(format=mxfp8)", "block(format=nvfp4)", "codebook(bits=3)",
        "levels(1,2,4)", "sketch(bits=3)"}) {
    SCOPED_TRACE(recipe);
    const std::unique_ptr<Quantizer> quantizer = Make(recipe);
    const SlabShape shape{Part::kK, 75, 2, 40};
    std::vector<float> values(shape.values());
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    const auto code = [&](uint32_t tile_tokens) {
      std::vector<std::vector<uint8_t>> bodies;
      std::vector<uint8_t*> out;
      for (uint32_t l = 0; l < quantizer->levels(); ++l) {
        out.push_back(bodies.emplace_back(quantizer->LevelBytes(shape, l)).data());
      }
      const std::vector<const uint8_t*> in(out.begin(), out.end());
      std::vector<float> decoded(shape.values());
      for (uint32_t first = 0; first < shape.tokens; first += tile_tokens) {
        const SlabTile tile(shape, first, std::min(tile_tokens, shape.tokens - first));
        EXPECT_TRUE(quantizer->Encode(tile, values.data() + tile.first_value(), out));
        EXPECT_TRUE(quantizer->Decode(tile, in, decoded.data() + tile.first_value()));
      }
      return std::pair(bodies, decoded);
    };
    EXPECT_EQ(code(quantizer->TileTokens(shape)), code(shape.tokens));
  }
}

struct Oracle {
  const char* recipe;
  double mse;
  uint32_t dim = 64;

  friend void PrintTo(const Oracle& o, std::ostream* out) { *out << o.recipe; }
};

class GaussianOracle : public ::testing::TestWithParam<Oracle> {};

TEST_P(GaussianOracle, ErrorIsThatOfTheReference) {
  const auto quantizer = Make(GetParam().recipe);
  const uint32_t dim = GetParam().dim;
  EXPECT_NEAR(GaussianMse(*quantizer, dim), GetParam().mse, 0.02 * GetParam().mse);
  EXPECT_NEAR(GaussianMse(*quantizer, dim, Part::kV), GetParam().mse, 0.02 * GetParam().mse);
}

// From an independent implementation (numpy, 6 million values), the last digit uncertain.
INSTANTIATE_TEST_SUITE_P(
    Quantize, GaussianOracle,
    ::testing::Values(
        Oracle{"affine(bits=2,group=16)", .1067}, Oracle{"affine(bits=3,group=16)", .0194},
        Oracle{"affine(bits=4,group=16)", .00423}, Oracle{"affine(bits=2,group=32)", .1543},
        Oracle{"affine(bits=3,group=32)", .0281}, Oracle{"affine(bits=4,group=32)", .00612},
        Oracle{"affine(bits=8,group=32)", 2.12e-5}, Oracle{"affine(bits=2,group=64)", .2025},
        Oracle{"affine(bits=3,group=64)", .0370}, Oracle{"affine(bits=4,group=64)", .00804},
        Oracle{"affine(bits=8,group=64)", 2.79e-5},
        Oracle{"affine(bits=4,group=32,k=channel,v=channel)", .00612},
        Oracle{"affine(bits=2,group=128)", .251, 128},
        Oracle{"affine(bits=3,group=128)", .0446, 128},
        Oracle{"affine(bits=4,group=128)", .00991, 128},
        Oracle{"minifloat(format=e4m3)", 6.27e-4}));

INSTANTIATE_TEST_SUITE_P(Symmetric, GaussianOracle,
                         ::testing::Values(Oracle{"symmetric(bits=2,group=32)", .430},
                                           Oracle{"symmetric(bits=3,group=32)", .0514},
                                           Oracle{"symmetric(bits=4,group=32)", .00941},
                                           Oracle{"symmetric(bits=8,group=32)", 2.85e-5},
                                           Oracle{"symmetric(bits=2,group=64)", .512},
                                           Oracle{"symmetric(bits=2,group=128)", .585, 128},
                                           Oracle{"symmetric(bits=3,group=128)", .0758, 128},
                                           Oracle{"symmetric(bits=3,group=64)", .0631},
                                           Oracle{"symmetric(bits=4,group=64)", .0116},
                                           Oracle{"symmetric(bits=4,group=128)", .0138, 128},
                                           Oracle{"symmetric(bits=4,group=64,k=channel,v=channel)",
                                                  .0116}));

INSTANTIATE_TEST_SUITE_P(Block, GaussianOracle,
                         ::testing::Values(Oracle{"block(format=q8_0)", 2.86e-5},
                                           Oracle{"block(format=q4_0)", .00738},
                                           Oracle{"block(format=nvfp4)", .00904},
                                           Oracle{"block(format=mxfp4)", .0133},
                                           Oracle{"block(format=mxfp8)", 8.64e-4}));

INSTANTIATE_TEST_SUITE_P(Codebook, GaussianOracle,
                         ::testing::Values(Oracle{"codebook(bits=1)", .3584},
                                           Oracle{"codebook(bits=1)", .3610, 128},
                                           Oracle{"codebook(bits=2)", .1145},
                                           Oracle{"codebook(bits=3)", .0334},
                                           Oracle{"codebook(bits=4)", .00914},
                                           Oracle{"codebook(bits=3,norm=corrected)", .0328},
                                           Oracle{"codebook(bits=4,norm=corrected)", .00885},
                                           Oracle{"codebook(bits=2)", .1159, 128},
                                           Oracle{"codebook(bits=3)", .0340, 128},
                                           Oracle{"codebook(bits=4)", .00932, 128}));

// By tests/reference/presets.py, whose matrix is the same.
INSTANTIATE_TEST_SUITE_P(Sketch, GaussianOracle,
                         ::testing::Values(Oracle{"sketch(bits=2)", .5844},
                                           Oracle{"sketch(bits=3)", .1872},
                                           Oracle{"sketch(bits=4)", .0544},
                                           Oracle{"sketch(bits=3)", .1823, 128},
                                           Oracle{"sketch(bits=4)", .0532, 128}));

INSTANTIATE_TEST_SUITE_P(Polar, GaussianOracle,
                         ::testing::Values(Oracle{"polar", .0321}, Oracle{"polar", .0321, 128}));

INSTANTIATE_TEST_SUITE_P(Signs, GaussianOracle,
                         ::testing::Values(Oracle{"signs(rows=2)", .7802},
                                           Oracle{"signs(rows=16)", .0986},
                                           Oracle{"signs(rows=2)", .7881, 128}));

std::vector<uint8_t> Encoded(const Quantizer& quantizer, const SlabShape& shape,
                             const std::vector<float>& values) {
  std::vector<uint8_t> body(quantizer.LevelBytes(shape, 0));
  uint8_t* const out = body.data();
  EXPECT_TRUE(quantizer.Encode(shape, values.data(), std::span(&out, 1)));
  return body;
}

std::vector<float> Decoded(const Quantizer& quantizer, const SlabShape& shape,
                           const std::vector<uint8_t>& body) {
  std::vector<float> values(shape.values());
  const uint8_t* const in = body.data();
  EXPECT_TRUE(quantizer.Decode(shape, std::span(&in, 1), values.data()));
  return values;
}

TEST(AffineTest, ATensorHasOneStepAndOneMinimum) {
  const auto quantizer = Make("affine(bits=2,group=4,k=tensor)");
  const SlabShape shape{Part::kK, 2, 2, 4};
  std::vector<float> values(16);
  for (size_t i = 0; i < 16; ++i) values[i] = static_cast<float>(i % 4) - 1;
  const auto body = Encoded(*quantizer, shape, values);
  // Step 1, minimum -1, codes 0 1 2 3.
  EXPECT_EQ(body, (std::vector<uint8_t>{0, 0x3c, 0, 0xbc, 0xe4, 0xe4, 0xe4, 0xe4}));
  EXPECT_EQ(Decoded(*quantizer, shape, body), values);
}

// Worked out by hand from ggml's block_q4_0 and block_q8_0.
TEST(BlockTest, BytesAreThoseOfLlamaCpp) {
  const SlabShape shape{Part::kK, 1, 1, 32};
  std::vector<float> values(32, 0.0f);
  values[0] = 8;   // the largest: d = -1, q = 0
  values[1] = -3;  // q = 3 + 8
  values[17] = -7.9f;
  const auto q4 = Make("block(format=q4_0)"), q8 = Make("block(format=q8_0)");
  auto body = Encoded(*q4, shape, values);
  std::vector<uint8_t> expected(18, 0x88);
  expected[0] = 0, expected[1] = 0xbc, expected[2] = 0x80, expected[3] = 0xfb;
  EXPECT_EQ(body, expected);
  auto back = Decoded(*q4, shape, body);
  EXPECT_EQ(back[0], 8);
  EXPECT_EQ(back[1], -3);
  EXPECT_EQ(back[17], -7);

  values[0] = -127;
  values[17] = 2.5f;  // away from zero
  body = Encoded(*q8, shape, values);
  expected.assign(34, 0);
  expected[1] = 0x3c, expected[2] = 0x81, expected[3] = 0xfd, expected[19] = 3;
  EXPECT_EQ(body, expected);
  EXPECT_EQ(Decoded(*q8, shape, body)[0], -127);
}

TEST(BlockTest, EveryE2M1CodeComesBackAndRoundsToNearestEven) {
  for (uint8_t code = 0; code < 7; ++code) {
    EXPECT_EQ(FloatToE2M1(E2M1ToFloat(code)), code);
    EXPECT_EQ(FloatToE2M1(-E2M1ToFloat(code)), code | 8);
    const float middle = (E2M1ToFloat(code) + E2M1ToFloat(code + 1)) / 2;
    EXPECT_EQ(FloatToE2M1(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(FloatToE2M1(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(FloatToE2M1(std::nextafter(middle, 9.0f)), code + 1);
  }
  EXPECT_EQ(E2M1ToFloat(FloatToE2M1(1e30f)), 6.0f);
}

TEST(BlockTest, SharedScalesThatNoEncoderWritesAreRefused) {
  const SlabShape shape{Part::kK, 1, 1, 32};
  float values[32];
  const auto decodes = [&](const char* recipe, std::vector<uint8_t> body) {
    const auto quantizer = Make(recipe);
    EXPECT_EQ(body.size(), quantizer->LevelBytes(shape, 0));
    const uint8_t* const in = body.data();
    return quantizer->Decode(shape, std::span(&in, 1), values);
  };
  for (const char* recipe : {"block(format=mxfp4)", "block(format=mxfp8)"}) {
    std::vector<uint8_t> body(std::string_view(recipe) == "block(format=mxfp4)" ? 17 : 33);
    body[0] = 127;
    EXPECT_TRUE(decodes(recipe, body));
    body[0] = 255;
    EXPECT_FALSE(decodes(recipe, body));
    body[0] = 254;  // 2^127, of which the largest code makes Inf
    EXPECT_FALSE(decodes(recipe, body));
  }
  std::vector<uint8_t> body(4 + 2 * 9);
  EXPECT_TRUE(decodes("block(format=nvfp4)", body));
  body[4] = 0x7f;
  EXPECT_FALSE(decodes("block(format=nvfp4)", body));
  body[4] = 0, body[2] = 0x80, body[3] = 0x7f;  // a slab scale of Inf
  EXPECT_FALSE(decodes("block(format=nvfp4)", body));
}

// Each entry is the mean of its cell under the law: the condition that Lloyd and Max gave.
TEST(CodebookTest, EntriesAreTheMeansOfTheirCells) {
  constexpr int kSteps = 1 << 17;
  for (const uint32_t dim : {64u, 128u, 80u}) {
    const double end = dim == 80 ? 9 : std::sqrt(dim);
    for (uint32_t bits = 1; bits <= 4; ++bits) {
      const std::vector<float> entries = LloydMax(bits, dim);
      std::vector<double> weight(entries.size()), moment(entries.size());
      for (int i = 0; i < kSteps; ++i) {
        const double u = ((i + .5) / kSteps * 2 - 1) * end;
        const double p =
            dim == 80 ? std::exp(-u * u / 2) : std::pow(1 - u * u / dim, (dim - 3.0) / 2);
        size_t cell = 0;
        while (cell + 1 < entries.size() && (entries[cell] + entries[cell + 1]) / 2 < u) ++cell;
        weight[cell] += p;
        moment[cell] += p * u;
      }
      for (size_t i = 0; i < entries.size(); ++i) {
        EXPECT_NEAR(entries[i], moment[i] / weight[i], 3e-4) << dim << ", " << bits << " bits";
      }
    }
  }
}

TEST(CodebookTest, EntriesAreThoseOfTheTables) {
  const struct {
    uint32_t bits, dim;
    std::vector<float> positive;
  } tables[] = {
      {1, 80, {.7978f}},
      {2, 80, {.4524f, 1.5099f}},
      {3, 80, {.2446f, .7552f, 1.3430f, 2.1511f}},
      {4, 80, {.1275f, .3858f, .6534f, .9384f, 1.2519f, 1.6136f, 2.0647f, 2.7288f}},
      {1, 64, {.8009f}},
      {2, 64, {.4519f, 1.4998f}},
      {3, 64, {.2432f, .7495f, 1.3280f, 2.1102f}},
      {4, 64, {.1263f, .3823f, .6471f, .9279f, 1.2351f, 1.5864f, 2.0191f, 2.6430f}},
      {1, 128, {.7993f}},
      {4, 128, {.1269f, .3842f, .6506f, .9333f, 1.2434f, 1.5998f, 2.0417f, 2.6853f}},
  };
  for (const auto& t : tables) {
    const std::vector<float> entries = LloydMax(t.bits, t.dim);
    ASSERT_EQ(entries.size(), 2 * t.positive.size());
    for (size_t i = 0; i < t.positive.size(); ++i)
      EXPECT_NEAR(entries[t.positive.size() + i] / t.positive[i], 1, 0.01)
          << t.dim << ", " << t.bits;
  }
}

TEST(CodebookTest, TheCorrectedNormKeepsTheLength) {
  const auto quantizer = Make("codebook(bits=2,norm=corrected)");
  const SlabShape shape{Part::kV, 50, 2, 64};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(shape.values());
  for (float& value : values) value = normal(random);
  const std::vector<float> back = Decoded(*quantizer, shape, Encoded(*quantizer, shape, values));
  for (size_t v = 0; v < shape.vectors(); ++v) {
    double before = 0, after = 0;
    for (size_t i = v * 64; i < (v + 1) * 64; ++i) {
      before += double{values[i]} * values[i];
      after += double{back[i]} * back[i];
    }
    EXPECT_NEAR(after / before, 1, 1.5e-3);  // fp16 rounds the length
  }
}

TEST(MinifloatTest, EveryCodeComesBackAndRoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto c = static_cast<uint8_t>(code);
    EXPECT_EQ(FloatToE4M3(E4M3ToFloat(c)), c);
    EXPECT_EQ(FloatToE4M3(-E4M3ToFloat(c)), c | 0x80);
    const float middle = (E4M3ToFloat(c) + E4M3ToFloat(c + 1)) / 2;
    EXPECT_EQ(FloatToE4M3(middle), c % 2 == 0 ? c : c + 1) << code;
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, 0.0f)), c);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, 1e9f)), c + 1);
  }
  EXPECT_EQ(E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(FloatToE4M3(1e30f), 0x7e);
  EXPECT_EQ(FloatToE4M3(-470.0f), 0xfe);
}

TEST(LevelsTest, ErrorOfAGaussianAtEachLevelIsAsDocumented) {
  const auto quantizer = Make("levels(2,2,4)");
  const double expected[2][3] = {{.1360, .00904, 3.47e-5}, {.1517, .01059, 4.12e-5}};
  for (const uint32_t dim : {64u, 128u}) {
    for (uint32_t level = 1; level <= 3; ++level) {
      const double mse = expected[dim == 128][level - 1];
      EXPECT_NEAR(GaussianMse(*quantizer, dim, Part::kK, level), mse, 0.02 * mse)
          << dim << " channels, " << level << " levels";
    }
  }
}

TEST(LevelsTest, ALeadingPartIsTheCodeOfFewerBits) {
  const auto fine = Make("levels(2,2,4)"), coarse = Make("levels(4)");
  EXPECT_EQ(GaussianMse(*fine, 64, Part::kK, 2), GaussianMse(*coarse, 64));
}

// The model of LevelCentroids by numeric integration.
TEST(LevelsTest, CentroidsAreThoseOfTheModel) {
  constexpr double kTop = 2.7, kChannels = 96;
  constexpr int kSteps = 1 << 16;
  for (uint32_t bits = 1; bits <= 8; ++bits) {
    const std::vector<float> centroids = LevelCentroids(bits);
    const size_t half = size_t{1} << (bits - 1);
    std::vector<double> weight(half), moment(half);
    double all = 0;
    for (int i = 0; i < kSteps; ++i) {
      const double u = (i + .5) / kSteps, p = std::exp(-u * u * kTop * kTop / 2);
      weight[i * half / kSteps] += p;
      moment[i * half / kSteps] += p * u;
      all += p;
    }
    const double top = all / (kChannels - 1);  // weight of the largest value
    weight[half - 1] += top;
    moment[half - 1] += top;
    for (size_t i = 0; i < half; ++i) {
      const double tolerance = bits <= 4 || i == half - 1 ? 1e-5 : 0.04 / half;
      EXPECT_NEAR(centroids[half + i], moment[i] / weight[i], tolerance) << bits << " bits, " << i;
      EXPECT_EQ(centroids[half - 1 - i], -centroids[half + i]);
    }
  }
}

}  // namespace
}  // namespace kvstow
