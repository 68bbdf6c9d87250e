// Every recipe passes these tests, for every dtype. codec_damage_conformance.h goes on with pages
// that are damaged. A new recipe adds a line to the cases of
// tests/kernels/codec/codec_conformance_test.cc.
#ifndef KVSTOW_TESTS_CONFORMANCE_CODEC_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_CODEC_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

struct CodecCase {
  std::string pipeline;
  // Squared error relative to energy on Gaussian pages: at most this at all levels.
  double bound = 0;
  DType dtype = DType::kF16;

  friend void PrintTo(const CodecCase& c, std::ostream* out) {
    *out << c.pipeline << " of " << DTypeName(c.dtype);
  }
};

struct Geometry {
  uint32_t layers, heads, dim_k, dim_v, tokens;
};

// Usual, one token, one head, odd dims, groups that do not divide, MLA, V of another size.
inline constexpr Geometry kGeometries[] = {
    {5, 3, 64, 64, 40}, {2, 1, 64, 64, 1},   {3, 2, 80, 96, 33},  {2, 1, 7, 1, 5},
    {2, 1, 576, 0, 9},  {1, 2, 192, 128, 3}, {3, 4, 128, 64, 64}, {2, 1, 96, 192, 9},
};

class CodecConformance : public ::testing::TestWithParam<CodecCase> {
 protected:
  KvSpec Spec(const Geometry& g) const {
    return SpecOf(GetParam().dtype, g.layers, g.heads, g.dim_k, g.dim_v, g.tokens);
  }
  KvSpec UsualSpec() const { return Spec(kGeometries[0]); }

  // Two layers a run, so that pages have several.
  std::shared_ptr<const Codec> Make(const KvSpec& spec) const {
    auto codec = MakeCodec(*ParseRecipe(absl::StrCat("run(2)|", GetParam().pipeline)), spec);
    EXPECT_TRUE(codec.ok()) << codec.status();
    return codec.ok() ? *codec : nullptr;
  }

  static EncodedPage Encode(const Codec& codec, const std::vector<uint8_t>& raw, uint32_t tokens) {
    auto page = codec.Encode({.raw = raw, .tokens = tokens, .first_position = 512, .key = "a key"});
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? *std::move(page) : EncodedPage{};
  }

  static std::vector<uint8_t> Decode(const EncodedPage& page, size_t segments = SIZE_MAX) {
    std::vector<uint8_t> out(PageBytes(page.header.Geometry(), page.header.tokens));
    const absl::Status status = DecodePage(
        page.header, std::span(page.segments).first(std::min(segments, page.segments.size())), out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  static bool SameBytes(const SharedBytes& a, const SharedBytes& b) {
    return std::ranges::equal(a.span(), b.span());
  }
  static void ExpectSamePage(const EncodedPage& a, const EncodedPage& b) {
    EXPECT_TRUE(SameBytes(a.header_bytes, b.header_bytes));
    ASSERT_EQ(a.segments.size(), b.segments.size());
    for (size_t i = 0; i < a.segments.size(); ++i) {
      EXPECT_TRUE(SameBytes(a.segments[i], b.segments[i])) << "segment " << i;
    }
  }

  // Every value comes back within `bound`, and finite.
  void ExpectWithin(const std::vector<uint8_t>& raw, const std::vector<uint8_t>& back,
                    double bound) const {
    const auto x = ValuesOf(GetParam().dtype, raw), y = ValuesOf(GetParam().dtype, back);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(std::isfinite(y[i])) << "value " << i;
      ASSERT_LE(std::abs(double{x[i]} - y[i]), bound) << "value " << i << ": " << x[i];
    }
  }
};

TEST_P(CodecConformance, RoundTripIsWithinItsBound) {
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(absl::StrCat(g.layers, " x ", g.heads, " x ", g.dim_k, "/", g.dim_v));
    const KvSpec spec = Spec(g);
    const auto codec = Make(spec);
    ASSERT_NE(codec, nullptr);
    const auto raw = GaussianPage(spec, g.tokens);
    const EncodedPage page = Encode(*codec, raw, g.tokens);
    const auto back = Decode(page);
    if (codec->exact()) {
      EXPECT_EQ(back, raw);
    } else {
      EXPECT_LE(RelativeError(spec.dtype, raw, back), GetParam().bound);
    }
    EXPECT_FALSE(page.header.fell_back);
    EXPECT_EQ(page.header.exact, codec->exact());
    const auto parsed = ParsePageHeader(page.header_bytes.span());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, page.header);
    EXPECT_TRUE(VerifySegments(page.header, page.segments).ok());
    EXPECT_EQ(page.segments.size(), (g.layers + 1) / 2 * codec->levels());
  }
}

TEST_P(CodecConformance, APageMayBeShorterThanThePagesOfItsSpace) {
  const auto codec = Make(UsualSpec());
  const auto raw = GaussianPage(UsualSpec(), 7);
  const auto back = Decode(Encode(*codec, raw, 7));
  if (codec->exact()) {
    EXPECT_EQ(back, raw);
  } else {
    EXPECT_LE(RelativeError(GetParam().dtype, raw, back), GetParam().bound);
  }
}

// The first tokens of a text, which some codecs treat apart, alone and with others.
TEST_P(CodecConformance, PagesAtTheBeginningOfATextAreOrdinary) {
  const KvSpec spec = SpecOf(GetParam().dtype, 3, 2, 16, 8, 12);
  const auto codec = Make(spec);
  for (const uint64_t first_position : {0, 1, 3, 4}) {
    for (const uint32_t tokens : {1, 2, 4, 5, 12}) {
      SCOPED_TRACE(absl::StrCat(tokens, " tokens from ", first_position));
      const auto raw = GaussianPage(spec, tokens);
      const auto page =
          codec->Encode({.raw = raw, .tokens = tokens, .first_position = first_position});
      ASSERT_TRUE(page.ok()) << page.status();
      const auto back = Decode(*page);
      // Short vectors cost the crudest codes more than the bound says: half again as much.
      const double most = std::max(0.5, 1.5 * GetParam().bound);
      EXPECT_LE(codec->exact() ? back != raw : RelativeError(spec.dtype, raw, back), most);
    }
  }
}

TEST_P(CodecConformance, TheSamePageGivesTheSameBytes) {
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  const auto raw = GaussianPage(spec, 40, 1), other = GaussianPage(spec, 40, 2);
  const EncodedPage first = Encode(*codec, raw, 40);
  Encode(*codec, other, 40);
  ExpectSamePage(Encode(*codec, raw, 40), first);
  ExpectSamePage(Encode(*Make(spec), raw, 40), first);
}

TEST_P(CodecConformance, EveryThreadAndSimdTargetGivesTheSameBytes) {
  const KvSpec spec = SpecOf(GetParam().dtype, 3, 2, 80, 64, 21);
  const auto codec = Make(spec);
  const auto raw = GaussianPage(spec, 21);
  const EncodedPage page = Encode(*codec, raw, 21);
  const auto back = Decode(page);
  std::vector<EncodedPage> pages(4);
  std::vector<std::thread> threads;
  for (EncodedPage& p : pages) threads.emplace_back([&] { p = Encode(*codec, raw, 21); });
  for (std::thread& thread : threads) thread.join();
  for (const EncodedPage& p : pages) ExpectSamePage(p, page);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    ExpectSamePage(Encode(*codec, raw, 21), page);
    EXPECT_EQ(Decode(page), back);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(CodecConformance, EachLevelLowersTheErrorByItsGain) {
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  const auto raw = GaussianPage(spec, 40);
  const EncodedPage page = Encode(*codec, raw, 40);
  const double all = 40.0 * 2 * spec.layers;
  double left = all, last = all;
  size_t at = 0;
  for (uint32_t level = 1; level <= codec->levels(); ++level) {
    for (; at < SegmentsForLevels(page.header, level); ++at) left -= page.header.segments[at].gain;
    const auto back = Decode(page, at);
    // All slabs have about the same energy here, so the page's error is about the slabs' mean.
    const double measured =
        codec->exact() ? (back == raw ? 0 : 1) : RelativeError(spec.dtype, raw, back);
    EXPECT_NEAR(left / all, measured, 0.03 * measured + 2e-6) << "level " << level;
    EXPECT_LT(left, last);
    last = left;
  }
  EXPECT_EQ(at, page.segments.size());
}

TEST_P(CodecConformance, EveryCutOfTheSegmentsDecodesAndMoreIsNotWorse) {
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  if (codec->exact()) return;  // kept whole or not at all
  const auto raw = GaussianPage(spec, 40);
  const EncodedPage page = Encode(*codec, raw, 40);
  double last = 2;
  for (size_t n = SegmentsForLevels(page.header, 1); n <= page.segments.size(); ++n) {
    const double error = RelativeError(spec.dtype, raw, Decode(page, n));
    EXPECT_LT(error, last) << n << " segments";
    last = error;
  }
}

TEST_P(CodecConformance, LayersAreThatPartOfTheWhole) {
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  const auto raw = GaussianPage(spec, 40);
  const EncodedPage page = Encode(*codec, raw, 40);
  const auto whole = Decode(page);
  const size_t layer = LayerBytes(spec, 40);
  for (uint32_t first = 0; first < spec.layers; ++first) {
    for (uint32_t count = 0; first + count <= spec.layers; ++count) {
      const uint32_t n = count == 0 ? spec.layers - first : count;
      std::vector<std::optional<SharedBytes>> bodies;
      for (size_t i = 0; i < page.segments.size(); ++i) {
        const SegmentInfo& s = page.header.segments[i];
        const bool needed = s.first_layer < first + n && first < s.first_layer + s.layer_count;
        bodies.push_back(needed ? std::optional(page.segments[i]) : std::nullopt);
      }
      std::vector<uint8_t> part(n * layer);
      const absl::Status status = DecodePage(page.header, bodies, {.layers = {first, count}}, part);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * layer))
          << first << " + " << count;
    }
  }
  std::vector<uint8_t> none(layer);
  const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(), page.segments.end());
  for (const LayerRange wrong : {LayerRange{5, 1}, LayerRange{4, 2}, LayerRange{0, 6}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DecodePage(page.header, bodies, {.layers = wrong}, none)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(DecodePage(page.header, bodies, {.layers = {0, 2}}, none)));
}

TEST_P(CodecConformance, NanAndInfArePagesKeptExactly) {
  if (IsFloat8(GetParam().dtype)) return;  // exact recipes only, where they are bytes
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
    auto raw = GaussianPage(spec, 40);
    const size_t bytes = DTypeBytes(spec.dtype);
    // StoreFloats saturates, so the bits are written by hand: a float's upper half is a bfloat16.
    const uint32_t bits = std::bit_cast<uint32_t>(odd);
    const uint32_t half = std::isnan(odd) ? 0x7e01 : (odd > 0 ? 0x7c00 : 0xfc00);
    const uint32_t stored = spec.dtype == DType::kF16    ? half
                            : spec.dtype == DType::kBF16 ? bits >> 16
                                                         : bits;
    std::memcpy(&raw[raw.size() - 3 * bytes], &stored, bytes);
    const EncodedPage page = Encode(*codec, raw, 40);
    EXPECT_TRUE(page.header.exact);
    EXPECT_EQ(page.header.fell_back, !codec->exact());
    EXPECT_EQ(Decode(page), raw);
    const auto parsed = ParsePageHeader(page.header_bytes.span());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, page.header);
  }
}

TEST_P(CodecConformance, ConstantsZerosDenormalsAndTheLargestValuesStayFinite) {
  if (IsFloat8(GetParam().dtype)) return;
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  Gaussian gaussian;
  int turn = 0;
  const struct {
    std::function<float()> next;
    double largest;
  } pages[] = {
      {[] { return 0.0f; }, 0},
      {[] { return -0.0f; }, 0},
      {[] { return 1.5f; }, 1.5},
      {[] { return -37.25f; }, 37.25},
      {[&] { return gaussian() * 0x1p-20f; }, 6 * 0x1p-20},
      {[&] { return gaussian() * 0x1p-26f; }, 6 * 0x1p-26},
      {[&] { return ++turn % 2 == 0 ? 65504.0f : -65504.0f; }, 65504},
      {[&] { return ++turn % 64 == 0 ? 60000.0f : 0.01f; }, 60000},
  };
  for (size_t i = 0; i < std::size(pages); ++i) {
    SCOPED_TRACE(absl::StrCat("page ", i));
    const auto raw = MakePage(spec, 40, pages[i].next);
    const EncodedPage page = Encode(*codec, raw, 40);
    // fp16 scales are multiples of 2^-24, of which a code counts up to 255.
    // Codes of 2 bits may put a value on the other side of its cell's neighbour, sketches further.
    const double share = GetParam().bound < 0.2 ? 0.55 : GetParam().bound < 0.5 ? 2 : 4;
    const double bound = page.header.exact ? 0 : share * pages[i].largest + 256 * 0x1p-24;
    ExpectWithin(raw, Decode(page), bound);
    float gain = 0;
    for (const SegmentInfo& s : page.header.segments) gain += s.gain;
    EXPECT_TRUE(std::isfinite(gain));
    if (pages[i].largest == 0) {
      EXPECT_FLOAT_EQ(gain, 40.0f * 2 * spec.layers);
    }
  }
}

TEST_P(CodecConformance, ValuesBeyondFp16AreKeptExactly) {
  if (GetParam().dtype != DType::kBF16 && GetParam().dtype != DType::kF32) return;
  Gaussian gaussian;
  const std::function<float()> pages[] = {
      [&] { return gaussian() * 1e30f; },
      // Sums of these overflow, and differences of such sums are NaN.
      [&] { return gaussian() * 1e38f; },
      [&] { return std::copysign(3e38f, gaussian()); },
  };
  // In a page of one token, all that is coded may be NaN.
  for (const Geometry& g : {kGeometries[0], Geometry{1, 1, 128, 64, 1}}) {
    const KvSpec spec = Spec(g);
    const auto codec = Make(spec);
    for (size_t i = 0; i < std::size(pages); ++i) {
      const auto raw = MakePage(spec, g.tokens, pages[i]);
      for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        SCOPED_TRACE(absl::StrCat(g.tokens, " tokens, page ", i, ", ", hwy::TargetName(target)));
        hwy::SetSupportedTargetsForTest(target);
        const EncodedPage page = Encode(*codec, raw, g.tokens);
        EXPECT_TRUE(page.header.exact);
        EXPECT_EQ(page.header.fell_back, !codec->exact());
        EXPECT_EQ(Decode(page), raw);
      }
      hwy::SetSupportedTargetsForTest(0);
    }
  }
}

TEST_P(CodecConformance, PagesThatDoNotFitTheSpaceAreRefused) {
  const KvSpec spec = UsualSpec();
  const auto codec = Make(spec);
  const auto raw = GaussianPage(spec, 40);
  const auto code = [&](const PageToEncode& page) { return codec->Encode(page).status().code(); };
  using absl::StatusCode;
  EXPECT_EQ(code({.raw = raw, .tokens = 39}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.raw = raw, .tokens = 41}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.raw = {}, .tokens = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.raw = raw, .tokens = 40, .first_position = UINT64_MAX}),
            StatusCode::kInvalidArgument);
  const std::string key(65, 'k');
  EXPECT_EQ(code({.raw = raw, .tokens = 40, .key = key}), StatusCode::kInvalidArgument);
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_CODEC_CONFORMANCE_H_
