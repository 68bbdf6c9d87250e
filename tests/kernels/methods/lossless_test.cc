// The codec `lossless`: what it saves on real KV, and every pattern of bits.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/digest.h"
#include "hwy/highway.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/fixture.h"

namespace kvstow {
namespace {

EncodedPage Encode(const KvSpec& spec, const std::vector<uint8_t>& raw, uint32_t tokens) {
  const auto codec = MakeCodec(*ParseRecipe("lossless"), spec);
  EXPECT_TRUE(codec.ok()) << codec.status();
  EXPECT_TRUE((*codec)->exact());
  auto page = (*codec)->Encode({.raw = raw, .tokens = tokens});
  EXPECT_TRUE(page.ok()) << page.status();
  return *std::move(page);
}

std::vector<uint8_t> Decode(const EncodedPage& page, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  const absl::Status status = DecodePage(page.header, page.segments, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// The fixture in another dtype, `tokens` of it.
std::vector<uint8_t> Fixture(DType dtype, uint32_t tokens) {
  const std::vector<float> all = testing::ValuesOf(DType::kF16, testing::FixturePage());
  const size_t slab = size_t{testing::kFixtureTokens} * 192, kept = tokens * 192;
  std::vector<float> values;
  for (size_t at = 0; at < all.size(); at += slab)
    values.insert(values.end(), &all[at] + slab - kept, &all[at] + slab);
  std::vector<uint8_t> raw(values.size() * DTypeBytes(dtype));
  StoreFloats(dtype, values.data(), values.size(), raw.data());
  return raw;
}

KvSpec SpecFor(DType dtype, uint32_t tokens) {
  KvSpec spec = testing::FixtureSpec();
  spec.dtype = dtype;
  spec.page_tokens = tokens;
  return spec;
}

TEST(Lossless, SavesASixthOfF16AndAThirdOfBf16) {
  const struct {
    DType dtype;
    uint32_t tokens;
    double ratio;
  } cases[] = {{DType::kF16, 256, 1.19}, {DType::kBF16, 256, 1.515}, {DType::kF32, 256, 2.37},
               {DType::kF16, 16, 1.17},  {DType::kBF16, 16, 1.49},   {DType::kF16, 1, 1.05},
               {DType::kBF16, 1, 1.30}};
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::Message() << DTypeName(c.dtype) << ", " << c.tokens << " tokens");
    const std::vector<uint8_t> raw = Fixture(c.dtype, c.tokens);
    const EncodedPage page = Encode(SpecFor(c.dtype, c.tokens), raw, c.tokens);
    EXPECT_EQ(Decode(page, raw.size()), raw);
    EXPECT_GT(static_cast<double>(raw.size()) / static_cast<double>(page.StoredBytes()), c.ratio);
  }
}

// Pins what the golden page is too small for: several classes and several streams.
TEST(Lossless, TheFixtureHasTheseBytesOnEveryTarget) {
  const std::vector<uint8_t> raw = Fixture(DType::kF16, 256);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    const EncodedPage page = Encode(SpecFor(DType::kF16, 256), raw, 256);
    uint64_t all = 0;
    for (const SegmentInfo& s : page.header.segments) all = all * 31 + s.digest;
    EXPECT_EQ(all, 1860472864348531075u);
    EXPECT_EQ(Decode(page, raw.size()), raw);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(Lossless, LayersThatShareAStreamDecodeAlone) {
  const KvSpec spec = SpecFor(DType::kBF16, 4);
  const std::vector<uint8_t> raw = Fixture(DType::kBF16, 4);
  const EncodedPage page = Encode(spec, raw, 4);
  ASSERT_EQ(page.segments.size(), 1u);
  const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(), page.segments.end());
  const size_t layer = LayerBytes(spec, 4);
  for (uint32_t first = 0; first < spec.layers; first += 7) {
    std::vector<uint8_t> part(2 * layer);
    ASSERT_TRUE(DecodePage(page.header, bodies, {first, 2}, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), raw.begin() + first * layer)) << first;
  }
}

TEST(Lossless, EveryPatternOfBitsComesBack) {
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kF8E5M2}) {
    SCOPED_TRACE(DTypeName(dtype));
    const KvSpec spec = testing::SpecOf(dtype, 2, 2, 64, 64, 128);
    std::vector<uint8_t> raw(PageBytes(spec, 128));  // 65,536 values
    const size_t bytes = DTypeBytes(dtype);
    for (uint32_t i = 0; i < raw.size() / bytes; ++i) {
      // Upper halves of F32 take every pattern, lower halves zeros, ones and a few others.
      const uint32_t low = i % 4 == 0 ? 0 : i % 4 == 1 ? 0xffff : i * 40503u & 0xffff;
      const uint32_t bits = dtype == DType::kF32 ? i << 16 | low : i;
      std::memcpy(&raw[i * bytes], &bits, bytes);
    }
    const EncodedPage page = Encode(spec, raw, 128);
    EXPECT_FALSE(page.header.fell_back);
    EXPECT_EQ(Decode(page, raw.size()), raw);
  }
}

TEST(Lossless, NoiseCostsNoMoreThanAByteAPlaneAndAConstantNothing) {
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kF8E4M3}) {
    const KvSpec spec = testing::SpecOf(dtype, 2, 3, 64, 64, 40);
    std::vector<uint8_t> raw(PageBytes(spec, 40));
    std::mt19937 random(3);
    for (uint8_t& byte : raw) byte = static_cast<uint8_t>(random());
    EncodedPage page = Encode(spec, raw, 40);
    EXPECT_EQ(page.segments[0].size(), raw.size() + DTypeBytes(dtype));
    EXPECT_EQ(Decode(page, raw.size()), raw);
    raw.assign(raw.size(), 0x80);
    page = Encode(spec, raw, 40);
    EXPECT_EQ(page.segments[0].size(), 2 * DTypeBytes(dtype));
    EXPECT_EQ(Decode(page, raw.size()), raw);
  }
}

TEST(Lossless, TakesNoArgument) {
  const auto codec = MakeCodec(*ParseRecipe("lossless(bits=3)"), testing::FixtureSpec());
  EXPECT_TRUE(absl::IsInvalidArgument(codec.status())) << codec.status();
}

}  // namespace
}  // namespace kvstow
