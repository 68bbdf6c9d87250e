// The recipe kvstow-cal: what the conformance suite of the other recipes does, with a calibration.
#include "kernels/methods/joint_run_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/squared_error.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/every_target.h"
#include "tests/paths.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class JointCodecTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    store_ = new CalibrationStore;
    for (const uint32_t run : {1, 2, 3}) {
      const bool felt = run == 2;  // the others are codes without classes
      const ModelStats stats = felt ? ModelStats{} : AlikeStats(CorrelatedSpec());
      const auto blob = FitCorrelated(CorrelatedSpec(), run, stats, /*with_sensitivity=*/felt);
      ASSERT_TRUE(store_->Add(AsBytes(blob.value())).ok());
    }
  }
  static void TearDownTestSuite() { delete store_; }

  static std::shared_ptr<const Codec> Make(absl::string_view recipe) {
    return MakeCodec(ParseRecipe(recipe).value(), spec_, *store_).value();
  }
  static EncodedPage Encode(absl::string_view recipe, const std::vector<uint8_t>& raw,
                            uint32_t tokens, uint64_t first_position = 0) {
    return Make(recipe)
        ->Encode({.raw = raw, .tokens = tokens, .first_position = first_position, .key = "k"})
        .value();
  }
  static std::vector<uint8_t> Decode(const EncodedPage& page, uint32_t max_levels = 0) {
    std::vector<uint8_t> out(PageBytes(spec_, page.header.tokens));
    const size_t kept = SegmentsForLevels(page.header, max_levels);
    const absl::Status status =
        DecodePage(page.header, std::span(page.segments).first(kept), out, *store_);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  // Squared error over energy, of all but the first tokens' bytes.
  static double Error(const std::vector<uint8_t>& raw, const std::vector<uint8_t>& back) {
    return RelativeError(DType::kF16, raw, back);
  }

  static inline CalibrationStore* store_ = nullptr;
  static inline const KvSpec spec_ = CorrelatedSpec();
};

TEST_F(JointCodecTest, BeatsInt4AtFarFewerBytes) {
  const auto raw = CorrelatedPage(spec_, 128, 500, 128);
  const auto int4 = MakeCodec(ParseRecipe("affine(bits=4,group=32)").value(), spec_).value();
  const EncodedPage simple =
      int4->Encode({.raw = raw, .tokens = 128, .first_position = 128, .key = "k"}).value();
  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(simple.header, simple.segments, back).ok());
  const EncodedPage page = Encode("kvstow-cal(run=3,step=0.5)", raw, 128, 128);
  EXPECT_LT(page.StoredBytes() * 4, simple.StoredBytes());
  EXPECT_LT(Error(raw, Decode(page)), Error(raw, back));
}

TEST_F(JointCodecTest, PagesUnlikeTheCalibrationTakeFewerBytesWithTablesOfTheirOwn) {
  const auto raw = CorrelatedPage(spec_, 128, 500, 1, 5);
  for (const char* rest : {"run=1", "run=3", "run=2,focus=0.4"}) {  // the last with step classes
    const auto page_of = [&](int adapt) {
      return Encode(absl::StrCat("kvstow-cal(step=0.5,", rest, ",adapt=", adapt, ")"), raw, 128, 1);
    };
    const EncodedPage plain = page_of(0), adapted = page_of(1);
    EXPECT_THAT(adapted.header.pipeline, HasSubstr("adapt=1"));
    EXPECT_LT(adapted.StoredBytes() * 100, plain.StoredBytes() * 97) << rest;
    for (const uint32_t levels : {1, 2, 4}) {
      EXPECT_LT(Error(raw, Decode(adapted, levels)), 1.05 * Error(raw, Decode(plain, levels)))
          << rest << ", " << levels << " levels";
    }
  }
}

TEST(EnergyClass, IsOfTheCoefficientsThatAreCoded) {
  const std::vector<float> sigma(16, 2.0F), token = {2, -2, 1e6F, 1e6F};
  EXPECT_EQ(EnergyClass(std::span(token).first(2), sigma), kPlaneEnergies / 2);
  EXPECT_EQ(EnergyClass(token, std::span(sigma).first(2)), kPlaneEnergies / 2);
  EXPECT_EQ(EnergyClass(token, sigma), kPlaneEnergies - 1);
}

TEST(EnergyCoefficients, SpreadAQuarterOfTheStepOrAreAQuarter) {
  std::vector<float> sigma(40, 1.0F);
  std::fill(sigma.begin() + 12, sigma.end(), 0.1F);
  EXPECT_EQ(EnergyCoefficients(sigma, 4), 12u);
  EXPECT_EQ(EnergyCoefficients(sigma, 0.1F), 40u);
  EXPECT_EQ(EnergyCoefficients(sigma, 5), 10u) << "none spreads so far";
  EXPECT_EQ(EnergyCoefficients(std::span(sigma).first(3), 5), 1u);
}

TEST_F(JointCodecTest, FirstTokensOfPagesWithLargeMeansNeedEightBits) {
  CalibrationStore store;
  ASSERT_TRUE(store.Add(AsBytes(FitCorrelated(spec_, 1, {}, false, 60).value())).ok());
  const auto raw = CorrelatedPage(spec_, 128, 503, 0, 60);
  const auto encode = [&](absl::string_view recipe) {
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec_, store).value();
    return codec->Encode({.raw = raw, .tokens = 128, .key = "k"}).value();
  };
  const auto first_error = [&](const EncodedPage& page) {
    std::vector<uint8_t> back(PageBytes(spec_, 1)), token(back.size());
    const std::vector<std::optional<SharedBytes>> all(page.segments.begin(), page.segments.end());
    EXPECT_TRUE(DecodePage(page.header, all, {{}, {0, 1}}, back, store).ok());
    CopyTokens(spec_, spec_.layers, 128, raw, {0, 1}, token);
    return Error(token, back);
  };
  EXPECT_LT(first_error(encode("kvstow-cal(run=1,step=1)")) * 30,
            first_error(encode("kvstow-cal(run=1,step=1,firstbits=5)")));
}

TEST_F(JointCodecTest, LevelsTradeBytesForErrorAndTheHeaderNamesTheBlob) {
  const auto raw = CorrelatedPage(spec_, 128, 501);
  const EncodedPage page = Encode("kvstow-cal(run=2,step=0.25,levels=5)", raw, 128);
  EXPECT_EQ(HexOf(page.header.calibration).size(), 32);
  EXPECT_NE(store_->Find(page.header.calibration), nullptr);
  EXPECT_EQ(ParsePageHeader(page.header_bytes.span()).value(), page.header);
  EXPECT_TRUE(VerifySegments(page.header, page.segments).ok());
  ASSERT_EQ(page.segments.size(), 2 * 5);
  double before = 1;
  for (uint32_t levels = 1; levels <= 5; ++levels) {
    const double error = Error(raw, Decode(page, levels));
    EXPECT_LT(error, before) << levels;
    before = error;
  }
  EXPECT_LT(before, 2e-3);
  double gain = 0;
  for (const SegmentInfo& s : page.header.segments) gain += s.gain;
  EXPECT_GT(gain, 0.9 * 128 * 6);
  EXPECT_LE(gain, 128 * 6 * 1.0001);
}

TEST_F(JointCodecTest, TokensThatTheModelFeelsAreFiner) {
  const uint32_t tokens = 128;
  const auto raw = CorrelatedPage(spec_, tokens, 510, 128);
  const std::vector<float> sensitivity = CorrelatedSensitivity(spec_, tokens, 510, 128);
  std::vector<float> middle;
  for (uint32_t t = 0; t < tokens; ++t) middle.push_back(sensitivity[t * spec_.layers]);
  std::nth_element(middle.begin(), middle.begin() + tokens / 2, middle.end());
  const JointVectors vectors(spec_, {{0, spec_.layers}, tokens, 128});
  const auto values = [&](const std::vector<uint8_t>& page) {
    std::vector<float> x(tokens * vectors.width());
    EXPECT_TRUE(vectors.Gather(page, {0, tokens}, x.data()));
    return x;
  };
  // Error of the half that is felt more, over that of the other.
  const auto ratio = [&](absl::string_view recipe) {
    const std::vector<float> x = values(raw), y = values(Decode(Encode(recipe, raw, tokens, 128)));
    double errors[2] = {};
    for (size_t i = 0; i < x.size(); ++i) {
      const bool felt = sensitivity[i / vectors.width() * spec_.layers] > middle[tokens / 2];
      errors[felt] += (x[i] - y[i]) * (x[i] - y[i]);
    }
    return errors[1] / errors[0];
  };
  EXPECT_LT(ratio("kvstow-cal(run=2,step=4)"), 0.4);
  EXPECT_GT(ratio("kvstow-cal(run=2,step=4,focus=0)"), 0.7);
}

// Without statistics, a head whose keys spread widely is one that the model feels.
TEST(JointCodecHeads, ThoseWithWideKeysAreFiner) {
  const KvSpec spec = SpecOf(DType::kF32, 1, 2, 8, 8, 256);
  const uint32_t tokens = 256;
  const auto page_of = [&](uint64_t seed) {
    Gaussian random(seed);
    std::vector<float> values(size_t{tokens} * 32);
    // K of head 1 is three times as wide.
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = random() * (i < values.size() / 2 && i / 8 % 2 == 1 ? 3 : 1);
    }
    std::vector<uint8_t> raw(PageBytes(spec, tokens));
    std::memcpy(raw.data(), values.data(), raw.size());
    return raw;
  };
  const auto fit = StartJointFit(spec, {}, {}).value();
  for (int pass = 0; pass < fit->passes(); ++pass) {
    for (const uint64_t seed : {1, 2, 3}) {
      ASSERT_TRUE(fit->Add({.raw = page_of(seed), .tokens = tokens, .first_position = 128}).ok());
    }
    ASSERT_TRUE(fit->EndPass().ok());
  }
  CalibrationStore store;
  ASSERT_TRUE(store.Add(AsBytes(fit->Finish().value())).ok());
  const auto raw = page_of(9);
  const auto codec = MakeCodec(*ParseRecipe("kvstow-cal(run=1,step=8)"), spec, store).value();
  const auto page = codec->Encode({.raw = raw, .tokens = tokens, .first_position = 128}).value();
  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(page.header, page.segments, back, store).ok());
  const std::vector<float> x = ValuesOf(spec.dtype, raw), y = ValuesOf(spec.dtype, back);
  double errors[2][2] = {};  // of K and V, by head
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = double{x[i]} - y[i];
    errors[i / (x.size() / 2)][i / 8 % 2] += e * e;
  }
  // u is .2 and 1.8: V's errors are as 9 to 1, and K's as 9 to 1 for all that it is wider.
  EXPECT_GT(errors[0][0], 4 * errors[0][1]);
  EXPECT_GT(errors[1][0], 4 * errors[1][1]);
}

TEST_F(JointCodecTest, OneLevelCostsWhatItsPlanesCost) {
  const auto raw = CorrelatedPage(spec_, 128, 502, 128);
  const auto bytes = [&](absl::string_view levels) {
    uint64_t sum = 0;
    const auto recipe = absl::StrCat("kvstow-cal(run=3,step=0.25,stream=128,levels=", levels, ")");
    for (const SharedBytes& s : Encode(recipe, raw, 128, 128).segments) sum += s.size();
    return static_cast<double>(sum);
  };
  // The states of 16 lanes and the lengths: some 40 bytes for each further level.
  EXPECT_NEAR(bytes("4"), bytes("1"), 0.02 * bytes("1") + 3 * 40);
}

TEST_F(JointCodecTest, AnyLayersDecodeAloneFromTheirRunsSegments) {
  const auto raw = CorrelatedPage(spec_, 50, 503);
  const EncodedPage page = Encode("kvstow-cal(run=2)", raw, 50);
  const auto whole = Decode(page);
  const size_t layer = LayerBytes(spec_, 50);
  for (uint32_t first = 0; first < 3; ++first) {
    for (uint32_t count = 1; count <= 3 - first; ++count) {
      std::vector<std::optional<SharedBytes>> segments;
      for (size_t i = 0; i < page.segments.size(); ++i) {
        const SegmentInfo& s = page.header.segments[i];
        const bool needed = s.first_layer < first + count && first < s.first_layer + s.layer_count;
        segments.push_back(needed ? std::optional(page.segments[i]) : std::nullopt);
      }
      std::vector<uint8_t> part(count * layer);
      const auto status =
          DecodePage(page.header, segments, {.layers = {first, count}}, part, *store_);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * layer))
          << first << " + " << count;
    }
  }
}

// A token's code depends on no other token: it decodes the same in any company.
TEST_F(JointCodecTest, TokensAreCodedByThemselves) {
  const auto raw = CorrelatedPage(spec_, 100, 504);
  const auto whole = Decode(Encode("kvstow-cal(run=3)", raw, 100));
  // The page's tokens from 40 on, as a page of their own.
  std::vector<uint8_t> tail(PageBytes(spec_, 60)), tail_of_whole(tail.size());
  for (uint32_t l = 0; l < spec_.layers; ++l) {
    for (const Part part : {Part::kK, Part::kV}) {
      const size_t row = SlabValues(spec_, part, 1) * 2;
      const size_t from = SlabOffset(spec_, l, part, 100) + 40 * row;
      const size_t to = SlabOffset(spec_, l, part, 60);
      std::memcpy(tail.data() + to, raw.data() + from, 60 * row);
      std::memcpy(tail_of_whole.data() + to, whole.data() + from, 60 * row);
    }
  }
  EXPECT_LT(Error(tail_of_whole, Decode(Encode("kvstow-cal(run=3)", tail, 60, 40))), 1e-6);
}

TEST_F(JointCodecTest, TheFirstTokensAreCodedApart) {
  const auto raw = CorrelatedPage(spec_, 5, 505);
  for (const uint32_t tokens : {1u, 3u, 4u, 5u}) {
    const auto part = CorrelatedPage(spec_, tokens, 505);
    EXPECT_LT(Error(part, Decode(Encode("kvstow-cal(run=2,step=0.5)", part, tokens))), 2e-3)
        << tokens << " tokens";
  }
  EXPECT_LT(Error(raw, Decode(Encode("kvstow-cal(run=3,step=0.5,first=4)", raw, 5, 2))), 0.05);
}

TEST_F(JointCodecTest, OneTokenAndConstantsAreOrdinary) {
  for (const uint32_t tokens : {1u, 128u}) {
    const auto zeros = MakePage(spec_, tokens, [] { return 0.0f; });
    for (const uint64_t first : {0u, 7u}) {
      const auto back = Decode(Encode("kvstow-cal(run=2)", zeros, tokens, first));
      for (const float x : ValuesOf(DType::kF16, back)) ASSERT_LT(std::abs(x), 1e3);
    }
  }
}

TEST_F(JointCodecTest, APageThatCannotBeCodedIsKeptExactly) {
  for (const uint16_t odd : {uint16_t{0x7e00}, uint16_t{0x7c00}}) {  // NaN, Inf
    for (const int at : {0, 1500}) {
      auto raw = CorrelatedPage(spec_, 20, 508);
      std::memcpy(raw.data() + 2 * at, &odd, 2);
      const EncodedPage page = Encode("kvstow-cal(run=2)", raw, 20);
      EXPECT_TRUE(page.header.fell_back);
      EXPECT_EQ(page.header.calibration, CalibrationId{});
      EXPECT_EQ(Decode(page), raw);
    }
  }
}

// Finite values that overflow within the transform, and cancel out as NaN.
TEST_F(JointCodecTest, APageThatOverflowsIsKeptExactlyOnEveryTarget) {
  KvSpec spec = spec_;
  spec.dtype = DType::kBF16;
  CalibrationStore store;
  ASSERT_TRUE(store.Add(AsBytes(FitCorrelated(spec, 3).value())).ok());
  ASSERT_TRUE(store.Add(AsBytes(FitCorrelated(spec, 1, {}, true).value())).ok());
  int at = 0;
  const auto raw = MakePage(spec, 40, [&] { return (++at * 7 / 3) % 2 == 0 ? 3e38f : -3e38f; });
  for (const char* recipe : {"kvstow-cal(run=3)", "kvstow-cal(run=1)"}) {  // one has classes
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec, store).value();
    OnEveryTarget([&] {
      const auto page = codec->Encode({.raw = raw, .tokens = 40, .first_position = 128});
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_TRUE(page->header.fell_back) << recipe;
    });
  }
}

TEST_F(JointCodecTest, WithoutItsBlobAPageIsRefused) {
  const auto raw = CorrelatedPage(spec_, 30, 506);
  const EncodedPage page = Encode("kvstow-cal", raw, 30);
  std::vector<uint8_t> out(raw.size());
  const absl::Status missing = DecodePage(page.header, page.segments, out);
  EXPECT_TRUE(absl::IsFailedPrecondition(missing)) << missing;
  EXPECT_THAT(missing.message(), HasSubstr(HexOf(page.header.calibration)));
  PageHeader nameless = page.header;
  nameless.calibration = {};
  EXPECT_TRUE(absl::IsDataLoss(DecodePage(nameless, page.segments, out, *store_)));
  // The name of another run's blob.
  PageHeader other = page.header;
  other.calibration =
      store_->Choose(spec_, {.section = "joint", .layers_per_run = 3}).value()->id();
  EXPECT_TRUE(absl::IsDataLoss(DecodePage(other, page.segments, out, *store_)));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(MakeCodec(ParseRecipe("kvstow-cal").value(), spec_).status()));
}

TEST_F(JointCodecTest, RefusesRecipesThatMakeNoSense) {
  for (const char* recipe :
       {"joint(run=0)", "joint(step=0)", "joint(step=x)", "joint(levels=9)", "joint(stream=0)",
        "joint(blob=xyz)", "joint(what=1)", "hadamard|joint", "joint|raw"}) {
    const auto parsed = ParseRecipe(recipe);
    ASSERT_TRUE(parsed.ok()) << recipe;
    EXPECT_TRUE(absl::IsInvalidArgument(MakeCodec(*parsed, spec_, *store_).status())) << recipe;
  }
  // A page's header has room for 1,024 bytes of pipeline: with the blob's name and any step.
  const auto of_length = [](absl::string_view begin, size_t length) {
    return absl::StrCat(begin, std::string(length - begin.size() - 1, '0'), ")");
  };
  for (const auto& [begin, most] : {std::pair{"joint(run=3,step=0.5", 1024 - 38},
                                    std::pair{"joint(run=3,ratio=8,focus=0.5", 1024 - 38 - 8}}) {
    const auto make = [&](size_t length) {
      return MakeCodec(ParseRecipe(of_length(begin, length)).value(), spec_, *store_).status();
    };
    EXPECT_TRUE(make(most).ok()) << make(most);
    EXPECT_TRUE(absl::IsInvalidArgument(make(most + 1))) << begin;
  }
  KvSpec fp8 = spec_;
  fp8.dtype = DType::kF8E4M3;
  EXPECT_TRUE(
      absl::IsInvalidArgument(MakeCodec(ParseRecipe("kvstow-cal").value(), fp8, *store_).status()));
}

TEST_F(JointCodecTest, DamagedBodiesNeverCrash) {
  const auto raw = CorrelatedPage(spec_, 64, 507);
  const EncodedPage page = Encode("kvstow-cal(run=2,step=0.5,stream=16)", raw, 64);
  std::vector<uint8_t> out(raw.size());
  for (size_t s = 0; s < page.segments.size(); ++s) {
    const std::span<const uint8_t> body = page.segments[s].span();
    for (size_t i = 0; i < body.size(); ++i) {
      std::vector<uint8_t> damaged(body.begin(), body.end());
      damaged[i] ^= 0x81;
      std::vector<SharedBytes> segments = page.segments;
      segments[s] = SharedBytes::Take(std::move(damaged));
      const absl::Status status = DecodePage(page.header, segments, out, *store_);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status))
          << status;
    }
    for (size_t size = 0; size < body.size(); size += 7) {
      PageHeader header = page.header;
      header.segments[s].bytes = size;
      std::vector<SharedBytes> segments = page.segments;
      segments[s] = SharedBytes::CopyOf(body.first(size));
      EXPECT_TRUE(absl::IsDataLoss(DecodePage(header, segments, out, *store_))) << s << " " << size;
    }
  }
}

TEST(JointCodecShapes, OddShapesWork) {
  struct Shape {
    uint32_t layers, dim_k, dim_v, run;
  };
  for (const Shape& s : {Shape{1, 6, 6, 4}, Shape{4, 24, 0, 3}, Shape{2, 5, 9, 2}}) {
    const KvSpec spec = CorrelatedSpec(s.layers, s.dim_k, s.dim_v);
    CalibrationStore store;
    const auto blob = FitCorrelated(spec, s.run);
    ASSERT_TRUE(blob.ok()) << blob.status();
    ASSERT_TRUE(store.Add(AsBytes(*blob)).ok());
    const auto recipe = ParseRecipe(absl::StrCat("kvstow-cal(run=", s.run, ",step=0.5)"));
    const auto codec = MakeCodec(*recipe, spec, store);
    ASSERT_TRUE(codec.ok()) << codec.status();
    const auto raw = CorrelatedPage(spec, 90, 600);
    const auto page = (*codec)->Encode({.raw = raw, .tokens = 90, .key = "k"});
    ASSERT_TRUE(page.ok()) << page.status();
    std::vector<uint8_t> back(raw.size());
    ASSERT_TRUE(DecodePage(page->header, page->segments, back, store).ok());
    EXPECT_LT(RelativeError(spec.dtype, raw, back), 5e-3) << s.layers << " layers";
  }
}

// QK-norm leaves K with channels whose means are many times what varies, and RoPE turns them by
// position: neither codec may spend its bits or its error on them.
TEST(ChannelMeans, LargeOnesCostLittle) {
  const KvSpec spec = CorrelatedSpec(3, 32, 32);
  const uint32_t tokens = 128;
  struct Outcome {
    double bytes = 0, error = 0;  // error: over the square of what varies
  };
  const auto outcome = [&](absl::string_view recipe, float mean_size) {
    CalibrationStore store;
    EXPECT_TRUE(store.Add(AsBytes(*FitCorrelated(spec, 3, {}, false, mean_size))).ok());
    const auto raw = CorrelatedPage(spec, tokens, 640, 128, mean_size);
    const auto still = CorrelatedPage(spec, tokens, 640, 128, 0);
    const auto codec = MakeCodec(*ParseRecipe(recipe), spec, store);
    EXPECT_TRUE(codec.ok()) << codec.status();
    const auto page = (*codec)->Encode({.raw = raw, .tokens = tokens, .first_position = 128});
    EXPECT_TRUE(page.ok()) << page.status();
    std::vector<uint8_t> back(raw.size());
    EXPECT_TRUE(DecodePage(page->header, page->segments, back, store).ok());
    const auto energy = [&](const std::vector<uint8_t>& bytes) {
      const std::vector<float> values = ValuesOf(spec.dtype, bytes);
      return SquaredSum(values.data(), values.size());
    };
    return Outcome{static_cast<double>(page->StoredBytes()),
                   RelativeError(spec.dtype, raw, back) * energy(raw) / energy(still)};
  };
  for (const char* recipe : {"kvstow", "kvstow-cal(run=3,step=2)"}) {
    const Outcome plain = outcome(recipe, 0), large = outcome(recipe, 30);
    EXPECT_LT(large.error, 1.5 * plain.error + 1e-3) << recipe;
    EXPECT_LT(large.bytes, 1.2 * plain.bytes) << recipe;
  }
}

std::string GoldenFile(absl::string_view name) {
  std::ifstream in(TestsPath(absl::StrCat("golden/", name)), std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

// Decodes a page at rest, as in golden_test.cc, into `back`.
absl::Status DecodeGolden(absl::string_view name, const CalibrationStore& store,
                          std::vector<uint8_t>& back) {
  const std::string page = GoldenFile(name);
  ByteReader reader(AsBytes(page));
  KVSTOW_ASSIGN_OR_RETURN(const PageHeader header,
                          ParsePageHeader(reader.GetBytes(reader.Get<uint32_t>())));
  std::vector<SharedBytes> bodies;
  for (const SegmentInfo& s : header.segments)
    bodies.push_back(SharedBytes::CopyOf(reader.GetBytes(s.bytes)));
  EXPECT_EQ(reader.remaining(), 0);
  return DecodePage(header, bodies, back, store);
}

// A blob and a page at rest. Encoding them anew may differ in a rounding decision on another SIMD
// target; reading them may not.
void CheckGolden(absl::string_view blob_name, absl::string_view id, absl::string_view page_name,
                 uint32_t tokens = 9, float mean_size = 3, double error = 5e-3) {
  const KvSpec spec = CorrelatedSpec(3, 4, 2);
  CalibrationStore store;
  const std::string blob = GoldenFile(blob_name);
  const auto calibration = store.Add(AsBytes(blob));
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ(HexOf((*calibration)->id()), id);
  EXPECT_EQ((*calibration)->shape(), ShapeFor(spec, 2));

  std::vector<uint8_t> back(PageBytes(spec, tokens));
  const absl::Status status = DecodeGolden(page_name, store, back);
  ASSERT_TRUE(status.ok()) << status;
  const auto raw = CorrelatedPage(spec, tokens, 700, 2, mean_size);
  EXPECT_LT(RelativeError(spec.dtype, raw, back), error);
}

TEST(JointCodecGolden, ABlobAndItsPageAreReadForEver) {
  CheckGolden("calibration_v1.kvcal", "b85994e7f871d91caf228f1be483ca1e", "page_v1_kvstow_cal.bin");
}

// Tokens came as in the page, before they came by class.
TEST(JointCodecGolden, APageOfAnEarlierVersionIsRefused) {
  const KvSpec spec = CorrelatedSpec(3, 4, 2);
  CalibrationStore store;
  ASSERT_TRUE(store.Add(AsBytes(GoldenFile("calibration_v1.kvcal"))).ok());
  std::vector<uint8_t> back(PageBytes(spec, 9));
  const absl::Status status = DecodeGolden("page_v1_kvstow_cal_unordered.bin", store, back);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("an earlier version wrote it"));
}

TEST(JointCodecGolden, APageWithClassesToo) {
  CheckGolden("calibration_v1.kvcal", "b85994e7f871d91caf228f1be483ca1e",
              "page_v1_kvstow_cal_classes.bin");
}

TEST(JointCodecGolden, APageWithTablesOfItsOwnToo) {
  CheckGolden("calibration_v1.kvcal", "b85994e7f871d91caf228f1be483ca1e",
              "page_v1_kvstow_cal_adapt.bin", 128, 4, 5e-2);
}

TEST(JointCodecGolden, ABlobWithImportanceToo) {
  CheckGolden("calibration_v1_importance.kvcal", "dfb6125a35a36f137c033cf9acd06e76",
              "page_v1_kvstow_cal_importance.bin");
}

}  // namespace
}  // namespace kvstow::testing
