// Quantizers against what theory and the literature give for a standard Gaussian.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "kernels/quantize/levels.h"
#include "kernels/quantize/minifloat.h"
#include "kernels/recipe.h"

namespace kvstow {
namespace {

std::unique_ptr<Quantizer> Make(absl::string_view text) {
  const auto recipe = Recipe::Parse(text);
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

struct Oracle {
  const char* recipe;
  double mse;

  friend void PrintTo(const Oracle& o, std::ostream* out) { *out << o.recipe; }
};

class GaussianOracle : public ::testing::TestWithParam<Oracle> {};

TEST_P(GaussianOracle, ErrorIsThatOfTheReference) {
  const auto quantizer = Make(GetParam().recipe);
  EXPECT_NEAR(GaussianMse(*quantizer, 64), GetParam().mse, 0.02 * GetParam().mse);
  EXPECT_NEAR(GaussianMse(*quantizer, 64, Part::kV), GetParam().mse, 0.02 * GetParam().mse);
}

// From an independent implementation (numpy, 6 million values), the last digit uncertain.
INSTANTIATE_TEST_SUITE_P(
    Quantize, GaussianOracle,
    ::testing::Values(
        Oracle{"affine(bits=2,group=32)", .1543}, Oracle{"affine(bits=3,group=32)", .0281},
        Oracle{"affine(bits=4,group=32)", .00612}, Oracle{"affine(bits=8,group=32)", 2.12e-5},
        Oracle{"affine(bits=2,group=64)", .2025}, Oracle{"affine(bits=3,group=64)", .0370},
        Oracle{"affine(bits=4,group=64)", .00804}, Oracle{"affine(bits=8,group=64)", 2.79e-5},
        Oracle{"affine(bits=4,group=32,k=channel,v=channel)", .00612},
        Oracle{"minifloat(format=e4m3)", 6.27e-4}));

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
