// The device codec conformance suite on the CPU, on the GPU's code run by the CPU, and on a GPU.
#include "kernels/cuda/slab/strip.cuh"
#include "kernels/device/slab_plan.h"
#include "tests/conformance/device_codec_conformance.h"
#include "tests/kernels/device/emulated_codec.h"

namespace kvstow::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceCodecConformance,
                         ::testing::Values(DeviceFactory{"cpu", OpenHost}));
INSTANTIATE_TEST_SUITE_P(Emulated, DeviceCodecConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceCodecConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenFirstGpu}));

bool InStrips(const char* recipe, const KvSpec& spec, uint32_t tokens) {
  const auto plan = gpu::SlabPlan::Make(*ParseRecipe(recipe), spec);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() && gpu::InStrips(plan->LayoutOf(tokens), plan->ops());
}

// The suite compares bytes whichever way a page goes; this says that models' pages go the fast way.
TEST(SlabStrips, CodeTheUsualPages) {
  for (const char* recipe :
       {"int8", "int4", "int8-token", "int4-token", "int8-channel", "int4-channel", "kivi2",
        "kivi4", "quarot", "turboquant2", "turboquant3", "turboquant4", "rotated8", "fp8"}) {
    for (const uint32_t dim : {64, 128}) {
      const KvSpec spec = SpecOf(DType::kF16, 2, 4, dim, dim, 16);
      EXPECT_TRUE(InStrips(recipe, spec, 16)) << recipe << ", head_dim " << dim;
      EXPECT_TRUE(InStrips(recipe, spec, 3)) << recipe << ", head_dim " << dim;
    }
  }
}

TEST(SlabStrips, CodeLargeHeads) {
  for (const char* recipe : {"int8", "quarot", "turboquant4", "rotated8", "fp8"}) {
    EXPECT_TRUE(InStrips(recipe, SpecOf(DType::kF16, 2, 4, 256, 256, 16), 16)) << recipe;
    EXPECT_TRUE(InStrips(recipe, SpecOf(DType::kF16, 2, 4, 256, 0, 16), 16)) << recipe;
  }
}

TEST(SlabStrips, LeaveOtherShapesToTiles) {
  EXPECT_FALSE(InStrips("int8", SpecOf(DType::kF16, 2, 4, 96, 96, 16), 16));
  EXPECT_FALSE(InStrips("int8", SpecOf(DType::kF16, 2, 4, 128, 80, 16), 16));
  EXPECT_FALSE(InStrips("int8", SpecOf(DType::kF16, 2, 4, 512, 0, 16), 16));
  EXPECT_FALSE(InStrips("affine(bits=8,group=24)", SpecOf(DType::kF16, 2, 4, 64, 64, 16), 16));
  EXPECT_FALSE(InStrips("affine(bits=8,group=8)", SpecOf(DType::kF16, 2, 4, 64, 64, 16), 16));
  EXPECT_FALSE(InStrips("turboquant4", SpecOf(DType::kF16, 2, 1, 64, 64, 16), 1));  // 2 bytes
}

}  // namespace
}  // namespace kvstow::testing
