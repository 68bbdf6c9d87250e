#include "kernels/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;

const KvSpec kSpec = testing::SpecOf(DType::kF16, 30, 3, 64, 32, 256);

TEST(PageTest, SizesAndOffsets) {
  EXPECT_EQ(SlabValues(kSpec, Part::kK, 10), 10u * 3 * 64);
  EXPECT_EQ(SlabValues(kSpec, Part::kV, 10), 10u * 3 * 32);
  EXPECT_EQ(LayerBytes(kSpec, 10), 10u * 3 * 96 * 2);
  EXPECT_EQ(PageBytes(kSpec, 10), 30 * LayerBytes(kSpec, 10));
  EXPECT_EQ(BytesPerToken(kSpec), 30u * 3 * 96 * 2);
  EXPECT_EQ(SlabOffset(kSpec, 2, Part::kV, 10), 2 * LayerBytes(kSpec, 10) + 10 * 3 * 64 * 2);
}

TEST(PageTest, DTypesHaveNamesAndBack) {
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kF8E5M2}) {
    const auto parsed = ParseDType(DTypeName(dtype));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, dtype);
    EXPECT_GT(DTypeBytes(dtype), 0u);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseDType("f16").status()));
  EXPECT_EQ(DTypeBytes(static_cast<DType>(77)), 0u);
}

TEST(PageTest, ValidateNamesTheField) {
  EXPECT_TRUE(Validate(kSpec).ok());
  const struct {
    std::function<void(KvSpec&)> change;
    const char* field;
  } cases[] = {
      {[](KvSpec& s) { s.layers = 0; }, "layers"},
      {[](KvSpec& s) { s.layers = 1025; }, "layers"},
      {[](KvSpec& s) { s.kv_heads = 0; }, "kv_heads"},
      {[](KvSpec& s) { s.head_dim_k = 0; }, "head_dim_k"},
      {[](KvSpec& s) { s.head_dim_v = 1025; }, "head_dim_v"},
      {[](KvSpec& s) { s.page_tokens = 4097; }, "page_tokens"},
      {[](KvSpec& s) { s.dtype = static_cast<DType>(0); }, "dtype"},
      {[](KvSpec& s) { s.world_size = 0; }, "world_size"},
      {[](KvSpec& s) { s.rank = 1; }, "rank"},
      {[](KvSpec& s) { s.rope.rotary_dims = 65; }, "rope.rotary_dims"},
      {[](KvSpec& s) { s.rope.theta = 0; }, "rope.theta"},
      {[](KvSpec& s) { s.rope.factor = std::numeric_limits<double>::infinity(); }, "rope.scaling"},
      {[](KvSpec& s) { s.rope.layout = static_cast<RopeSpec::Layout>(3); }, "rope.layout"},
      {[](KvSpec& s) { s.rope.scaling = static_cast<RopeSpec::Scaling>(6); }, "rope.scaling"},
      {[](KvSpec& s) { s.rope_details.mscale = std::numeric_limits<double>::quiet_NaN(); }, "rope"},
      {[](KvSpec& s) { s.rope_details.long_factors.resize(1025); }, "rope"},
      {[](KvSpec& s) { s.other_rope.rope.theta = 5e5; }, "other_rope: no layer"},
      {[](KvSpec& s) { s.other_rope.layers = {1}; }, "other_rope: it is the RoPE"},
      {[](KvSpec& s) {
         s.other_rope = {{.rotary_dims = 65}, {1}};
       },
       "other_rope: rope.rotary_dims"},
      {[](KvSpec& s) {
         s.other_rope = {{.k_after_rope = false}, {1}};
       },
       "other_rope: K of all"},
      {[](KvSpec& s) {
         s.other_rope = {{.theta = 5e5}, {1, 30}};
       },
       "other_rope: its last layer"},
      {[](KvSpec& s) {
         s.other_rope = {{.theta = 5e5}, {2, 1}};
       },
       "other_rope: its layers"},
      {[](KvSpec& s) {
         s.other_rope = {{.theta = 5e5}, {1, 1}};
       },
       "other_rope: its layers"},
      {[](KvSpec& s) {
         s = {.layers = 1, .kv_heads = 1, .head_dim_k = 8, .page_tokens = 1};
         s.other_rope = {{.theta = 5e5}, {0}};
       },
       "other_rope: all layers"},
      {[](KvSpec& s) { s.layers = s.kv_heads = s.page_tokens = 1024; }, "page_tokens"},
  };
  for (const auto& c : cases) {
    KvSpec spec = kSpec;
    c.change(spec);
    const absl::Status status = Validate(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
}

TEST(PageTest, ALayerHasItsOwnRope) {
  KvSpec spec = kSpec;
  EXPECT_EQ(&RopeOfLayer(spec, 29), &spec.rope);
  spec.other_rope = {.rope = {.theta = 5e5}, .layers = {2, 29}};
  ASSERT_TRUE(Validate(spec).ok());
  for (uint32_t layer = 0; layer < 30; ++layer) {
    const bool other = layer == 2 || layer == 29;
    EXPECT_EQ(&RopeOfLayer(spec, layer), other ? &spec.other_rope.rope : &spec.rope) << layer;
  }
}

TEST(PageTest, FirstDifferenceNamesFieldAndBothValues) {
  EXPECT_EQ(FirstDifference(kSpec, kSpec), "");
  KvSpec asked = kSpec;
  asked.layers = 32;
  asked.engine = "other";
  EXPECT_EQ(FirstDifference(kSpec, asked), "layers: 30 here, 32 asked");
  asked.layers = 30;
  EXPECT_THAT(FirstDifference(kSpec, asked), HasSubstr("engine"));
  asked = kSpec;
  asked.rope.theta = 500000;
  EXPECT_THAT(FirstDifference(kSpec, asked), HasSubstr("rope.theta: 10000 here"));
  asked = kSpec;
  asked.other_rope = {.rope = kSpec.rope, .layers = {2, 5}};
  EXPECT_EQ(FirstDifference(kSpec, asked), "other_rope.layers: none here, 2,5 asked");
  asked.other_rope.rope.theta = 5e5;
  EXPECT_EQ(FirstDifference(kSpec, asked), "other_rope.theta: 10000 here, 500000 asked");
  asked = kSpec;
  asked.dtype = DType::kBF16;
  EXPECT_EQ(FirstDifference(kSpec, asked), "dtype: F16 here, BF16 asked");
}

}  // namespace
}  // namespace kvstow
