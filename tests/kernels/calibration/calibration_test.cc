// Calibration blobs and the fit that makes them.
#include "kernels/calibration/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/digest.h"
#include "kernels/calibration/calibration_moments.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/methods/joint_fit.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {
namespace {

using ::testing::Contains;
using ::testing::Gt;
using ::testing::HasSubstr;

// Puts the digest right again, so that what it guards is reached.
std::string Resealed(std::string blob) {
  const Digest128 digest = Xxh3_128(AsBytes(blob).first(blob.size() - 16));
  std::memcpy(blob.data() + blob.size() - 16, digest.bytes.data(), 16);
  return blob;
}

const std::string& Blob() {
  static const std::string blob = FitCorrelated(CorrelatedSpec(), 2).value();
  return blob;
}

TEST(CalibrationTest, ABlobReadsBackAsWhatWasFitted) {
  const auto calibration = ParseCalibration(AsBytes(Blob()));
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ((*calibration)->shape(), ShapeFor(CorrelatedSpec(), 2));
  EXPECT_EQ(HexOf((*calibration)->id()), HexOf(Sha256(AsBytes(Blob()))).substr(0, 32));
  ASSERT_EQ((*calibration)->runs().size(), 2);
  const CalibratedRun &first = (*calibration)->runs()[0], &last = (*calibration)->runs()[1];
  EXPECT_EQ(first.width(), 2 * 2 * (16 + 8));
  EXPECT_EQ(last.width(), 2 * (16 + 8));
  EXPECT_EQ(last.first_layer, 2);
  EXPECT_EQ(last.layer_count, 1);
  // Six latents, and noise that is small against the step.
  EXPECT_GE(first.rank(), 5);
  EXPECT_LE(first.rank(), 16);
  EXPECT_TRUE(std::is_sorted(first.sigma.rbegin(), first.sigma.rend()));
}

TEST(CalibrationTest, ABlobIsForTheRopesOfAllLayers) {
  KvSpec spec = CorrelatedSpec();
  spec.other_rope = {.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 50}, .layers = {0, 2}};
  const std::string blob = FitCorrelated(spec, 2).value();
  const auto calibration = ParseCalibration(AsBytes(blob));
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ((*calibration)->shape(), ShapeFor(spec, 2));
  EXPECT_NE((*calibration)->shape(), ShapeFor(CorrelatedSpec(), 2));
  for (size_t n = 0; n < 140; ++n) {
    EXPECT_FALSE(ParseCalibration(AsBytes(Resealed(blob.substr(0, n) + std::string(16, 0)))).ok());
  }
}

TEST(CalibrationTest, FittingIsDeterministic) {
  EXPECT_EQ(FitCorrelated(CorrelatedSpec(), 2).value(), Blob());
}

TEST(CalibrationTest, DecodeUndoesEncode) {
  const auto calibration = ParseCalibration(AsBytes(Blob())).value();
  const CalibratedRun& run = calibration->runs()[0];
  std::vector<float> c(run.rank()), x(run.width()), back(run.rank());
  Gaussian gaussian;
  for (float& value : c) value = gaussian();
  MultiplyRows(c.data(), 1, run.decode, {0, run.width()}, x.data(), run.width());
  MultiplyRows(x.data(), 1, run.encode, {0, run.rank()}, back.data(), run.rank());
  for (size_t i = 0; i < c.size(); ++i) EXPECT_NEAR(back[i], c[i], 0.01) << i;
}

TEST(CalibrationTest, DamageIsFound) {
  const std::string& blob = Blob();
  for (size_t i = 0; i < blob.size(); i += 97) {
    std::string damaged = blob;
    damaged[i] ^= 0x10;
    const auto status = ParseCalibration(AsBytes(damaged)).status();
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) << i << status;
  }
  for (size_t size = 0; size < blob.size(); size += 131) {
    EXPECT_TRUE(absl::IsDataLoss(ParseCalibration(AsBytes(blob.substr(0, size))).status()));
  }
}

// A digest does not stop who writes it: lengths and values are checked behind it.
TEST(CalibrationTest, AWrongBlobWithARightDigestIsFound) {
  const std::string& blob = Blob();
  for (size_t i = 10; i < blob.size() - 16; i += i < 2000 ? 1 : 53) {
    std::string wrong = blob;
    wrong[i] ^= 0xff;
    const auto parsed = ParseCalibration(AsBytes(Resealed(wrong)));
    EXPECT_TRUE(parsed.ok() || absl::IsDataLoss(parsed.status())) << i << parsed.status();
  }
  for (const size_t cut : {1, 100, 3000}) {
    const auto parsed = ParseCalibration(AsBytes(Resealed(blob.substr(0, blob.size() - cut))));
    EXPECT_TRUE(absl::IsDataLoss(parsed.status())) << parsed.status();
  }
  std::string huge = blob;
  const uint32_t layers = 1024, heads = 1024;
  std::memcpy(huge.data() + 10, &layers, 4);
  std::memcpy(huge.data() + 14, &heads, 4);
  EXPECT_TRUE(absl::IsDataLoss(ParseCalibration(AsBytes(Resealed(huge))).status()));
}

TEST(CalibrationTest, ANewerVersionIsRefused) {
  std::string newer = Blob();
  newer[8] = 9;
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseCalibration(AsBytes(Resealed(newer))).status()));
}

TEST(CalibrationStoreTest, FindsByIdAndChoosesByShape) {
  CalibrationStore store;
  const auto one = store.Add(AsBytes(Blob())).value();
  EXPECT_EQ(store.Add(AsBytes(Blob())).value(), one);
  EXPECT_EQ(store.Find(one->id()), one);
  EXPECT_EQ(store.Find(CalibrationId{}), nullptr);
  const KvSpec spec = CorrelatedSpec();
  const auto need = [](std::string blob) {
    return CalibrationNeed{.section = "joint", .layers_per_run = 2, .blob = std::move(blob)};
  };
  EXPECT_EQ(store.Choose(spec, need("")).value(), one);
  EXPECT_EQ(store.Choose(spec, need(HexOf(one->id()).substr(0, 5))).value(), one);
  const auto other_run = store.Choose(spec, {.section = "joint", .layers_per_run = 3}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other_run));
  EXPECT_THAT(other_run.message(), HasSubstr("runs of 3"));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store.Choose(spec, {.section = "other", .layers_per_run = 2}).status()));
  const std::string other = FitCorrelated(CorrelatedSpec(), 2,
                                          {.metric_k = std::vector<float>(6 * 16 * 16, 1),
                                           .metric_v = std::vector<float>(6 * 8 * 8, 1),
                                           .gain_k = std::vector<float>(6, 0.1f),
                                           .gain_v = std::vector<float>(6, 0.1f)})
                                .value();
  ASSERT_TRUE(store.Add(AsBytes(other)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(store.Choose(spec, need("")).status()));
  EXPECT_EQ(store.Choose(spec, need(HexOf(one->id()))).value(), one);
}

// What a server fitted to one space has the same tables, and is found only by its whole id.
TEST(CalibrationStoreTest, AFittedBlobIsForThoseWhoNameIt) {
  const FitNote note{.space = {1, 2, 3}, .number = 7, .recipe = "kvstow-cal(run=2,step=1.5)"};
  const auto blob = WithFitNote(AsBytes(Blob()), note);
  ASSERT_TRUE(blob.ok()) << blob.status();
  CalibrationStore store;
  const auto fitted = store.Add(AsBytes(*blob));
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_EQ((*fitted)->fit_note(), note);
  const size_t section = blob->find("fitted") - sizeof(uint16_t);
  EXPECT_EQ(HexOf(AsBytes(blob->substr(section, blob->size() - section - sizeof(Digest128)))),
            absl::StrCat("0600666974746564", "3400000000000000", "01020300000000000000000000000000",
                         "0700000000000000", "1a00", HexOf(AsBytes(note.recipe))))
      << "docs/FORMAT.md";
  EXPECT_EQ((*fitted)->shape(), ShapeFor(CorrelatedSpec(), 2));
  EXPECT_EQ((*fitted)->runs()[0].sigma, (*ParseCalibration(AsBytes(Blob())))->runs()[0].sigma);

  const std::string id = HexOf((*fitted)->id());
  const auto choose = [&](const std::string& digits) {
    return store.Choose(CorrelatedSpec(),
                        {.section = "joint", .layers_per_run = 2, .blob = digits});
  };
  EXPECT_EQ(choose("").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(choose(id.substr(0, 31)).ok());
  EXPECT_EQ(*choose(id), *fitted);
  const auto made = store.Add(AsBytes(Blob()));
  EXPECT_EQ(*choose(""), *made) << "the only one that people made";
  store.Remove((*fitted)->id());
  EXPECT_EQ(store.Find((*fitted)->id()), nullptr);

  EXPECT_FALSE(WithFitNote(AsBytes(*blob), note).ok()) << "it has one";
  EXPECT_FALSE(WithFitNote(AsBytes(Blob()).first(20), note).ok());
  EXPECT_FALSE(WithFitNote({}, note).ok());
  std::string twice = *blob;
  twice.replace(twice.find("fitted"), 6, "joint\0", 6);
  EXPECT_FALSE(ParseCalibration(AsBytes(Resealed(twice))).ok());
  for (size_t cut = blob->size() - 60; cut < blob->size() - 16; ++cut) {
    EXPECT_FALSE(
        ParseCalibration(AsBytes(Resealed(blob->substr(0, cut) + std::string(16, 0)))).ok());
  }
}

TEST(CalibrationTest, ASectionTakesThePlaceOfItsNamesake) {
  const FitNote note{.space = {1}, .number = 7, .recipe = "kvstow-cal"};
  const std::string fitted = WithFitNote(AsBytes(Blob()), note).value();
  const std::string both = WithSection(AsBytes(fitted), {"last", "some bytes"}).value();
  const auto changed = WithOtherSection(AsBytes(both), {"fitted", "others"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  const std::string plain = WithSection(AsBytes(Blob()), {"fitted", "others"}).value();
  EXPECT_EQ(*changed, WithSection(AsBytes(plain), {"last", "some bytes"}).value());
  EXPECT_EQ(WithOtherSection(AsBytes(both), {"last", "some bytes"}).value(), both);

  const auto refused = [](std::span<const uint8_t> blob, const std::string& name) {
    return absl::IsInvalidArgument(WithOtherSection(blob, {name, "x"}).status());
  };
  EXPECT_TRUE(refused(AsBytes(both), "none"));
  EXPECT_TRUE(refused(AsBytes(Blob()), "joint")) << "of version 1";
  EXPECT_TRUE(refused(AsBytes(both).first(20), "last"));
  EXPECT_TRUE(refused({}, "last"));
}

TEST(CalibrationFitTest, RefusesWhatDoesNotFit) {
  const KvSpec spec = CorrelatedSpec();
  EXPECT_TRUE(absl::IsInvalidArgument(StartJointFit(spec, {.layers_per_run = 0}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      StartJointFit(spec, {}, {.gain_k = std::vector<float>(5, 1)}).status()));
  auto fit = StartJointFit(spec, {}, {}).value();
  EXPECT_TRUE(absl::IsFailedPrecondition(fit->Finish().status()));
  EXPECT_TRUE(absl::IsInvalidArgument(fit->Add({.raw = {}, .tokens = 3})));
  auto raw = CorrelatedPage(spec, 40, 1);
  ASSERT_TRUE(fit->Add({.raw = raw, .tokens = 40}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(fit->EndPass())) << "36 tokens are too few";
  raw[1000] = 0xff, raw[1001] = 0x7f;  // beyond the first tokens, which are left out
  EXPECT_TRUE(absl::IsInvalidArgument(fit->Add({.raw = raw, .tokens = 40})));
}

TEST(CalibrationFitTest, SensitivitiesMakeAModelOfImportance) {
  const KvSpec spec = CorrelatedSpec();
  const std::string blob = FitCorrelated(spec, 2, {}, /*with_sensitivity=*/true).value();
  const auto calibration = ParseCalibration(AsBytes(blob)).value();
  for (const CalibratedRun& run : calibration->runs()) {
    EXPECT_EQ(run.importance.weights.size(), ImportanceWeights(run.rank()));
  }
  EXPECT_TRUE(absl::IsDataLoss(
      ParseCalibration(AsBytes(Resealed(blob.substr(0, blob.size() - 4)))).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(StartJointFit(spec, {}, {.sensitivity = {1, 2, -1}}).status()));
  auto fit = StartJointFit(spec, {}, {.sensitivity = {1, 2, 1}}).value();
  const auto raw = CorrelatedPage(spec, 128, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(fit->Add({.raw = raw, .tokens = 128}))) << "of 1 token";
}

// Nobody told how the model feels tokens: their keys do.
TEST(CalibrationFitTest, KeysMakeAModelOfImportance) {
  const KvSpec spec = CorrelatedSpec();
  const std::string blob = FitCorrelated(spec, 2, {}, /*with_sensitivity=*/false).value();
  const auto calibration = ParseCalibration(AsBytes(blob)).value();
  for (const CalibratedRun& run : calibration->runs()) {
    ASSERT_EQ(run.importance.weights.size(), ImportanceWeights(run.rank()));
    EXPECT_THAT(run.importance.weights, Contains(Gt(0)));
  }
}

// CorrelatedSensitivity is a slope of 2 by the first value of K of the first layer.
TEST(CalibrationFitTest, SlopesStandInForSensitivities) {
  const KvSpec spec = CorrelatedSpec();
  const auto fitted = [&](const ModelStats& stats, bool with_sensitivity) {
    return ParseCalibration(AsBytes(FitCorrelated(spec, 1, stats, with_sensitivity).value()))
        .value();
  };
  ModelStats stats;
  stats.slope_k.resize(spec.layers * spec.kv_heads * spec.head_dim_k);
  stats.slope_v.resize(spec.layers * spec.kv_heads * spec.head_dim_v);
  stats.slope_k[0] = 2;
  const auto by_slopes = fitted(stats, false), by_tokens = fitted({}, true);
  const std::vector<float>&found = by_slopes->runs()[0].importance.weights,
        &expected = by_tokens->runs()[0].importance.weights;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i + 1 < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-2) << i;
  for (const float weight : by_slopes->runs()[1].importance.weights) EXPECT_NEAR(weight, 0, 1e-4);
  // Where both are known, the tokens' own sensitivities count.
  stats.slope_k[0] = -2;
  EXPECT_EQ(fitted(stats, true)->runs()[0].importance.weights, expected);
  stats.slope_v.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(StartJointFit(spec, {}, stats).status()));
}

TEST(CalibrationFitTest, AllPassesMustSeeTheSame) {
  const KvSpec spec = CorrelatedSpec();
  auto fit = StartJointFit(spec, {}, {}).value();
  const auto raw = CorrelatedPage(spec, 128, 1);
  ASSERT_TRUE(fit->Add({.raw = raw, .tokens = 128}).ok());
  ASSERT_TRUE(fit->EndPass().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(fit->EndPass()));
}

TEST(CalibrationMomentsTest, ChunksAddUpToTheWhole) {
  constexpr size_t kWidth = 130, kCount = 90;
  Gaussian gaussian;
  std::vector<float> x(kWidth * kCount);
  for (float& value : x) value = gaussian() + 1;
  SecondMoments whole(kWidth), parts(kWidth);
  FirstMoments first_whole(kWidth), first_parts(kWidth);
  whole.Add(x.data(), kCount);
  first_whole.Add(x.data(), kCount);
  for (size_t t = 0; t < kCount; t += 30) {
    parts.Add(x.data() + t * kWidth, 30);
    first_parts.Add(x.data() + t * kWidth, 30);
  }
  EXPECT_EQ(first_parts.Mean(), first_whole.Mean());
  EXPECT_NEAR(first_whole.Spread(0, kWidth), 1, 0.02);
  const std::vector<double> a = std::move(whole).Take(), b = std::move(parts).Take();
  for (size_t i = 0; i < kWidth; ++i) {
    for (size_t j = 0; j < kWidth; ++j) {
      double expected = 0;
      for (size_t t = 0; t < kCount; ++t) expected += double{x[t * kWidth + i]} * x[t * kWidth + j];
      ASSERT_NEAR(a[i * kWidth + j], expected / kCount, 1e-5);
      ASSERT_NEAR(b[i * kWidth + j], expected / kCount, 1e-5);
    }
  }
}

}  // namespace
}  // namespace kvstow::testing
