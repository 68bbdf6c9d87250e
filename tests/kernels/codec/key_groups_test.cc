// Pages of 8-bit codes whose K has large channel means, and pages whose K has none.
#include "kernels/codec/key_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/fixture.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kByToken[] = "affine(bits=8,group=64)";
constexpr char kByChannel[] = "affine(bits=8,group=64,k=channel)";

// The page of a real model, of which `tokens` are taken; a tenth of K's channels get a mean of so
// many standard deviations before RoPE.
struct KeyGroupsTest : ::testing::Test {
  void SetUp() override {
    spec = testing::FixtureSpec();
    page = testing::FixturePage();
    ASSERT_FALSE(page.empty());
  }
  std::vector<uint8_t> Raw(uint32_t tokens, float sigmas) const {
    std::vector<uint8_t> raw(PageBytes(spec, tokens));
    CopyTokens(spec, spec.layers, testing::kFixtureTokens, page, {0, tokens}, raw);
    if (sigmas > 0) AddMeans(tokens, sigmas, raw);
    return raw;
  }
  void AddMeans(uint32_t tokens, float sigmas, std::vector<uint8_t>& raw) const {
    const RopeRotation rotation(spec.rope, spec.head_dim_k, 0, tokens);
    const size_t width = size_t{spec.kv_heads} * spec.head_dim_k;
    std::vector<float> k(tokens * width);
    for (uint32_t layer = 0; layer < spec.layers; ++layer) {
      uint8_t* const slab = raw.data() + SlabOffset(spec, layer, Part::kK, tokens);
      ASSERT_TRUE(LoadFloats(spec.dtype, slab, k.size(), k.data()));
      rotation.Undo(spec.kv_heads, k.data());
      for (size_t c = layer % 10; c < width; c += 10) {
        const float mean = sigmas * (c % 20 < 10 ? 1.0f : -1.0f) * Deviation(k, c, width);
        for (size_t t = 0; t < tokens; ++t) k[t * width + c] += mean;
      }
      rotation.Redo(spec.kv_heads, k.data());
      StoreFloats(spec.dtype, k.data(), k.size(), slab);
    }
  }
  static float Deviation(const std::vector<float>& k, size_t channel, size_t width) {
    return static_cast<float>(std::sqrt(Variance(k, channel, width)));
  }
  static double Variance(const std::vector<float>& k, size_t channel, size_t width) {
    const double count = static_cast<double>(k.size() / width);
    double sum = 0, squares = 0;
    for (size_t i = channel; i < k.size(); i += width) sum += k[i], squares += double{k[i]} * k[i];
    return std::max(squares / count - sum / count * sum / count, 0.0);
  }
  // Squared error of K over the energy of what varies in the real page, the mean of layers.
  double KeyError(uint32_t tokens, std::span<const uint8_t> raw, std::span<const uint8_t> back) {
    const std::vector<uint8_t> plain = Raw(tokens, 0);
    const RopeRotation rotation(spec.rope, spec.head_dim_k, 0, tokens);
    const size_t width = size_t{spec.kv_heads} * spec.head_dim_k;
    double total = 0;
    for (uint32_t layer = 0; layer < spec.layers; ++layer) {
      const size_t at = SlabOffset(spec, layer, Part::kK, tokens), bytes = tokens * width * 2;
      const auto of = [&](std::span<const uint8_t> p) {
        return testing::ValuesOf(spec.dtype, p.subspan(at, bytes));
      };
      std::vector<float> k = of(plain);
      const std::vector<float> x = of(raw), y = of(back);
      rotation.Undo(spec.kv_heads, k.data());
      double energy = 0, error = 0;
      for (size_t c = 0; c < width; ++c) energy += Variance(k, c, width) * tokens;
      for (size_t i = 0; i < x.size(); ++i) error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
      total += error / energy / spec.layers;
    }
    return total;
  }
  EncodedPage Encode(const std::string& recipe, std::span<const uint8_t> raw, uint32_t tokens,
                     uint64_t first_position = 0) const {
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec);
    EXPECT_TRUE(codec.ok()) << codec.status();
    auto encoded =
        (*codec)->Encode({.raw = raw, .tokens = tokens, .first_position = first_position});
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    return *std::move(encoded);
  }

  KvSpec spec;
  std::vector<uint8_t> page;
};

TEST_F(KeyGroupsTest, PagesWithLargeMeansGetGroupsByChannelAndKeepTheirKeys) {
  for (const uint32_t tokens : {256u, 64u, 16u, 8u}) {
    for (const float sigmas : {10.0f, 30.0f}) {
      SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << sigmas);
      const std::vector<uint8_t> raw = Raw(tokens, sigmas);
      const EncodedPage coded = Encode("int8", raw, tokens);
      EXPECT_EQ(coded.header.pipeline, kByChannel);
      const EncodedPage same = Encode(kByChannel, raw, tokens);
      EXPECT_EQ(same.header, coded.header);
      std::vector<uint8_t> back(raw.size());
      ASSERT_TRUE(DecodePage(coded.header, coded.segments, back).ok());
      EXPECT_LT(KeyError(tokens, raw, back), 4e-4);
    }
  }
}

TEST_F(KeyGroupsTest, TheyCostNoMoreThanOtherPagesWhereAGroupHasItsTokens) {
  const EncodedPage plain = Encode("int8", Raw(256, 0), 256);
  const EncodedPage with_means = Encode("int8", Raw(256, 30), 256);
  EXPECT_NEAR(static_cast<double>(with_means.StoredBytes()),
              static_cast<double>(plain.StoredBytes()), 64);
}

TEST_F(KeyGroupsTest, OtherPagesHaveTheBytesOfTheRecipe) {
  for (const uint32_t tokens : {256u, 64u, 16u, 7u, 1u}) {
    SCOPED_TRACE(tokens);
    const std::vector<uint8_t> raw = Raw(tokens, 0);
    const EncodedPage coded = Encode("int8", raw, tokens);
    EXPECT_EQ(coded.header.pipeline, kByToken);
    EXPECT_EQ(coded.header.segments,
              Encode("affine(bits=8,group=64,k=token)", raw, tokens).header.segments);
  }
}

TEST_F(KeyGroupsTest, PositionsDoNotChangeTheChoice) {
  for (const float sigmas : {0.0f, 30.0f}) {
    const std::vector<uint8_t> raw = Raw(64, sigmas);
    EXPECT_EQ(Encode("int8", raw, 64, 100'000).header.pipeline, sigmas > 0 ? kByChannel : kByToken);
  }
}

TEST_F(KeyGroupsTest, TooFewTokensForAScaleAChannelStayByToken) {
  EXPECT_EQ(Encode("int8", Raw(7, 30), 7).header.pipeline, kByToken);
}

TEST_F(KeyGroupsTest, OnlyAffineOfEightBitsAloneLeavesTheAxisOpen) {
  const std::vector<uint8_t> raw = Raw(64, 30);
  for (const char* const recipe :
       {"affine(bits=8,group=64,k=token)", "int8-token", "int4", "sageattention",
        "hadamard|affine(bits=8,group=64)", "position|budget(keep=0.5)|int8", "q8_0"}) {
    EXPECT_EQ(WithKeyChannels(ParseRecipe(recipe).value()).value(), std::nullopt) << recipe;
    EXPECT_THAT(Encode(recipe, raw, 64).header.pipeline, Not(HasSubstr("channel"))) << recipe;
  }
  EXPECT_EQ(Encode("run(2)|int8(group=32)", raw, 64).header.pipeline,
            "run(layers=2)|affine(bits=8,group=32,k=channel)");
  EXPECT_EQ(Encode("affine(v=channel)", raw, 64).header.pipeline, "affine(v=channel,k=channel)");
}

TEST_F(KeyGroupsTest, PresetsKeepTheFirstTokenOfPagesWithLargeMeans) {
  const std::vector<uint8_t> with_means = Raw(64, 30);
  // The first token as it is, and as 5 bits would have it.
  const auto first_error = [&](const EncodedPage& of) {
    std::vector<uint8_t> back(PageBytes(spec, 1)), raw(back.size());
    const std::vector<std::optional<SharedBytes>> all(of.segments.begin(), of.segments.end());
    EXPECT_TRUE(DecodePage(of.header, all, {{}, {0, 1}}, back).ok());
    CopyTokens(spec, spec.layers, 64, with_means, {0, 1}, raw);
    return testing::RelativeError(spec.dtype, raw, back);
  };
  const double in_five_bits = first_error(Encode("kvstow(firstbits=5)", with_means, 64));
  EXPECT_LT(first_error(Encode("kvstow", with_means, 64)) * 40, in_five_bits);
  EXPECT_THAT(ParseRecipe("kvstow-cal").value().pipeline(), HasSubstr("firstbits=8"));
}

TEST_F(KeyGroupsTest, APageWithNaNIsKeptWhereverItIs) {
  for (const size_t at : {size_t{0}, PageBytes(spec, 64) - 2}) {
    std::vector<uint8_t> raw = Raw(64, 30);
    raw[at] = 1, raw[at + 1] = 0x7f;
    const EncodedPage coded = Encode("int8", raw, 64);
    EXPECT_TRUE(coded.header.fell_back);
    EXPECT_EQ(coded.header.pipeline, "raw");
  }
}

TEST_F(KeyGroupsTest, KeysThatDoNotVaryComeBackExactly) {
  spec.rope = {};
  spec.layers = 2;
  std::vector<float> token(size_t{spec.kv_heads} * spec.head_dim_k);
  for (size_t c = 0; c < token.size(); ++c) token[c] = static_cast<float>(c);
  size_t i = 0;
  const std::vector<uint8_t> raw =
      testing::MakePage(spec, 16, [&] { return token[i++ % token.size()]; });
  const EncodedPage coded = Encode("int8", raw, 16);
  EXPECT_EQ(coded.header.pipeline, kByChannel);
  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(coded.header, coded.segments, back).ok());
  const size_t k_bytes = 16 * token.size() * 2;
  EXPECT_TRUE(std::equal(raw.begin(), raw.begin() + static_cast<int64_t>(k_bytes), back.begin()));
  const std::vector<uint8_t> zeros(raw.size());
  EXPECT_EQ(Encode("int8", zeros, 16).header.pipeline, kByToken);
}

TEST_F(KeyGroupsTest, EveryDTypeAndShapeIsChosenFor) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const uint32_t dim : {5u, 80u, 128u}) {
      spec = testing::SpecOf(dtype, 3, 2, dim, 0, 64);
      testing::Gaussian next;
      size_t i = 0;
      const float means[] = {0, 40};
      for (const float mean : means) {
        const std::vector<uint8_t> raw =
            testing::MakePage(spec, 64, [&] { return next() + (i++ % dim == 2 ? mean : 0.0f); });
        EXPECT_EQ(Encode("int8", raw, 64).header.pipeline, mean > 0 ? kByChannel : kByToken)
            << DTypeName(dtype) << " " << dim;
      }
    }
  }
}

}  // namespace
}  // namespace kvstow
