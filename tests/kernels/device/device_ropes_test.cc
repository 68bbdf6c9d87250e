// What device code gets of a model's rotations. That it turns by them is device_joint_test's.
#include "kernels/device/device_ropes.h"

#include <gtest/gtest.h>

#include "kernels/transform/rope.h"
#include "tests/kernels/pages.h"

namespace kvstow::gpu {
namespace {

constexpr RopeSpec kPlain{.layout = RopeSpec::Layout::kHalf};
constexpr RopeSpec kYarn{.layout = RopeSpec::Layout::kHalf,
                         .scaling = RopeSpec::Scaling::kYarn,
                         .factor = 4,
                         .original_context = 4096};

KvSpec SpecOf(const RopeSpec& usual, const RopeSpec& other) {
  KvSpec spec = testing::SpecOf(DType::kF16, 3, 1, 16, 16, 8);
  spec.rope = usual;
  if (other != usual) spec.other_rope = {other, {1}};
  return spec;
}

TEST(DeviceRopesTest, EachLayerHasItsFrequencies) {
  RopeSpec other{.layout = RopeSpec::Layout::kInterleaved, .rotary_dims = 8, .theta = 50};
  const DeviceRopes ropes = RopesForDevice(SpecOf(kPlain, other));
  std::vector<double> want = RopeFrequencies(kPlain, 16);
  const std::vector<double> more = RopeFrequencies(other, 16);
  want.insert(want.end(), more.begin(), more.end());
  EXPECT_EQ(ropes.frequencies, want);
  for (const uint32_t layer : {0, 2}) {
    EXPECT_EQ(ropes.Of(layer).first_pair, 0u);
    EXPECT_EQ(ropes.Of(layer).pairs, 8u);
    EXPECT_EQ(ropes.Of(layer).apart, 8u);
  }
  EXPECT_EQ(ropes.Of(1).first_pair, 8u);
  EXPECT_EQ(ropes.Of(1).pairs, 4u);
  EXPECT_EQ(ropes.Of(1).apart, 1u);
}

TEST(DeviceRopesTest, OneScaleServesAllLayers) {
  EXPECT_TRUE(ScalesAlike(SpecOf(kYarn, kYarn)));
  EXPECT_TRUE(ScalesAlike(SpecOf(kYarn, RopeSpec()))) << "layers that do not turn K have no scale";
  EXPECT_FALSE(ScalesAlike(SpecOf(kYarn, kPlain)));
  EXPECT_FALSE(ScalesAlike(SpecOf(kPlain, kYarn)));
  EXPECT_FALSE(ScalesAlike(SpecOf(RopeSpec(), kYarn)));
}

}  // namespace
}  // namespace kvstow::gpu
