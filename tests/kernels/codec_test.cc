// The codec on real and on odd pages: what every recipe must do is in tests/conformance.
#include "kernels/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/half.h"

namespace kvstow {
namespace {

std::vector<uint8_t> RandomPage(const KvSpec& spec, uint32_t tokens) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> raw(PageBytes(spec, tokens));
  for (size_t i = 0; i + 2 <= raw.size(); i += 2) {
    const uint16_t half = FloatToHalf(normal(random));
    std::memcpy(raw.data() + i, &half, 2);
  }
  return raw;
}

TEST(CodecTest, Int8OfAFullPageIsAtLeast1Point88TimesSmaller) {
  KvSpec spec{.layers = 30, .kv_heads = 3, .head_dim_k = 64, .head_dim_v = 64, .page_tokens = 256};
  const auto raw = RandomPage(spec, 256);
  const auto codec = MakeCodec(*Recipe::Parse("int8"), spec);
  ASSERT_TRUE(codec.ok()) << codec.status();
  const auto page = (*codec)->Encode({.raw = raw, .tokens = 256, .key = "k"});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_GE(static_cast<double>(raw.size()) / page->StoredBytes(), 1.88);
  const auto header = ParsePageHeader(page->header_bytes.span());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(*header, page->header);
  EXPECT_TRUE(VerifySegments(*header, page->segments).ok());
  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(*header, page->segments, back).ok());
  double error = 0;
  for (size_t i = 0; i < raw.size(); i += 2) {
    uint16_t a, b;
    std::memcpy(&a, &raw[i], 2);
    std::memcpy(&b, &back[i], 2);
    error += std::pow(HalfToFloat(a) - HalfToFloat(b), 2);
  }
  EXPECT_LT(error / (raw.size() / 2), 3.2e-5);
}

}  // namespace
}  // namespace kvstow
