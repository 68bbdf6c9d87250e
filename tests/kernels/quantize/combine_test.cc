// Quantizers made of others: who gets which values, and what stands where in the bodies.
#include "kernels/quantize/combine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/codec/compose.h"
#include "kernels/codec/parse_recipe.h"

namespace kvstow {
namespace {

std::unique_ptr<Quantizer> Make(absl::string_view text) {
  const auto recipe = ParseRecipe(text);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  auto slabs = ComposeSlabOps(recipe->ops());
  EXPECT_TRUE(slabs.ok()) << slabs.status();
  return MakeChain(std::move(slabs->transforms), std::move(slabs->quantizer));
}

std::vector<float> Normals(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

using Bodies = std::vector<std::vector<uint8_t>>;

Bodies Encoded(const Quantizer& quantizer, const SlabShape& shape,
               const std::vector<float>& values) {
  Bodies bodies;
  std::vector<uint8_t*> at;
  for (uint32_t l = 0; l < quantizer.levels(); ++l) {
    at.push_back(bodies.emplace_back(quantizer.LevelBytes(shape, l)).data());
  }
  EXPECT_TRUE(quantizer.Encode(shape, values.data(), at));
  return bodies;
}

bool Decode(const Quantizer& quantizer, const SlabShape& shape, const Bodies& bodies,
            std::vector<float>& values) {
  std::vector<const uint8_t*> at;
  for (const auto& body : bodies) at.push_back(body.data());
  values.assign(shape.values(), 0);
  return quantizer.Decode(shape, at, values.data());
}

std::vector<float> RoundTrip(absl::string_view recipe, const SlabShape& shape,
                             const std::vector<float>& values) {
  const auto quantizer = Make(recipe);
  std::vector<float> back;
  EXPECT_TRUE(Decode(*quantizer, shape, Encoded(*quantizer, shape, values), back));
  return back;
}

double Error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    energy += double{a[i]} * a[i];
  }
  return error / energy;
}

TEST(OutliersTest, TheChannelsWithTheMostEnergyGoFirstInEachGroupOfTokens) {
  const auto quantizer = Make("outliers(share=0.25,group=2)|affine(bits=8)|rest|affine(bits=1)");
  const SlabShape shape{Part::kK, 4, 1, 4};
  std::vector<float> values(16, 0.5f);
  values[1] = values[5] = -9;      // channel 1 of tokens 0 and 1
  values[8] = 3, values[15] = -4;  // of tokens 2 and 3: channel 3 before channel 0
  const Bodies bodies = Encoded(*quantizer, shape, values);
  EXPECT_EQ(bodies[0][0], 0b1000'0010);
  EXPECT_EQ(bodies[0].size(), 1 + (4 * 4 + 4) + (4 * 4 + 2));
  std::vector<float> back;
  ASSERT_TRUE(Decode(*quantizer, shape, bodies, back));
  EXPECT_EQ(back, values);
}

TEST(OutliersTest, AMaskWithAnotherNumberOfChannelsIsRefused) {
  const auto quantizer = Make("outliers(share=0.25)|affine(bits=8)|rest|affine(bits=4)");
  const SlabShape shape{Part::kK, 3, 2, 8};
  Bodies bodies = Encoded(*quantizer, shape, Normals(shape.values()));
  std::vector<float> back;
  for (const uint8_t mask : {0x00, 0x01, 0x07, 0xff}) {
    bodies[0][1] = mask;
    EXPECT_FALSE(Decode(*quantizer, shape, bodies, back)) << int{mask};
  }
  bodies[0][1] = 0x81;
  EXPECT_TRUE(Decode(*quantizer, shape, bodies, back));
}

TEST(OutliersTest, AVectorOfOneChannelHasNone) {
  const SlabShape shape{Part::kV, 5, 3, 1};
  const std::vector<float> values = Normals(shape.values());
  EXPECT_EQ(RoundTrip("outliers|affine(bits=1)|rest|affine(bits=8)", shape, values),
            RoundTrip("affine(bits=8)", shape, values));
}

// A value of the RoPE part, however large, changes no bit of what is decoded of the latent.
TEST(LatentTest, TheLatentAndTheRopePartShareNothing) {
  const SlabShape shape{Part::kK, 6, 1, 576};
  std::vector<float> values = Normals(shape.values());
  for (const char* recipe :
       {"latent(rope=64)|hadamard|levels(4,4)|rest|affine(bits=8,group=4096,k=tensor)",
        "latent(rope=64)|affine(bits=8,group=128)|rest|affine(bits=8)"}) {
    const std::vector<float> before = RoundTrip(recipe, shape, values);
    std::vector<float> louder = values;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % 576 >= 512) louder[i] *= 1000;
    }
    const std::vector<float> after = RoundTrip(recipe, shape, louder);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % 576 < 512) {
        ASSERT_EQ(before[i], after[i]) << recipe << ", value " << i;
      }
    }
    EXPECT_LT(Error(values, before), 1e-3);
  }
}

TEST(AnchorTest, DifferencesAreToTheDecodedAnchor) {
  const SlabShape shape{Part::kK, 25, 2, 16};
  std::vector<float> values = Normals(shape.values());
  // Tokens close to the first of their ten.
  for (size_t t = 0; t < 25; ++t) {
    for (size_t c = 0; c < 32 && t % 10 != 0; ++c) {
      values[t * 32 + c] = values[t / 10 * 10 * 32 + c] + values[t * 32 + c] / 16;
    }
  }
  // Coarse anchors: what they lose is in the differences, so nothing adds up.
  const double together = Error(
      values, RoundTrip("anchor(every=10)|affine(bits=3)|rest|affine(bits=8)", shape, values));
  const double anchors_alone = Error(values, RoundTrip("affine(bits=3)", shape, values));
  EXPECT_LT(together, 0.2 * anchors_alone);
  EXPECT_LT(Error(values,
                  RoundTrip("anchor(every=10)|affine(bits=8)|rest|affine(bits=4)", shape, values)),
            0.1 * Error(values, RoundTrip("affine(bits=4)", shape, values)));
}

TEST(ResidualTest, FurtherStagesAreLevelsThatMayBeLeftOut) {
  const auto quantizer =
      Make("affine(bits=2)|residual|hadamard|levels(2,2)|residual|affine(bits=4)");
  const SlabShape shape{Part::kV, 9, 2, 20};
  const std::vector<float> values = Normals(shape.values());
  Bodies bodies = Encoded(*quantizer, shape, values);
  ASSERT_EQ(bodies.size(), 4u);
  double last = 0;
  while (!bodies.empty()) {
    std::vector<float> back;
    ASSERT_TRUE(Decode(*quantizer, shape, bodies, back));
    EXPECT_GT(Error(values, back), last) << bodies.size() << " levels";
    last = Error(values, back);
    if (bodies.size() == 1) {
      EXPECT_EQ(back, RoundTrip("affine(bits=2)", shape, values));
    }
    bodies.pop_back();
  }
}

TEST(PartsTest, KAndVHaveTheirOwnQuantizerAndLevels) {
  const auto quantizer = Make("k|levels(2,2)|v|affine(bits=8)");
  const SlabShape k{Part::kK, 4, 1, 8}, v{Part::kV, 4, 1, 8};
  const std::vector<float> values = Normals(k.values());
  EXPECT_EQ(quantizer->levels(), 2u);
  EXPECT_EQ(quantizer->LevelBytes(v, 1), 0u);
  EXPECT_EQ(Encoded(*quantizer, k, values), Encoded(*Make("levels(2,2)"), k, values));
  EXPECT_EQ(Encoded(*quantizer, v, values)[0], Encoded(*Make("affine(bits=8)"), v, values)[0]);
}

}  // namespace
}  // namespace kvstow
