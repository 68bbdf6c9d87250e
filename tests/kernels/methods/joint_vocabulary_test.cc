// kvstow-cal with a calibration that has a vocabulary (calibration/vocabulary.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/vocabulary_pages.h"
#include "tests/paths.h"

namespace kvstow::testing {
namespace {

class JointVocabularyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    with_ = new CalibrationStore;
    without_ = new CalibrationStore;
    for (const uint32_t run : {1, 2}) {
      ASSERT_TRUE(with_->Add(AsBytes(FitVocabulary(spec_, run, true, run == 2).value())).ok());
      ASSERT_TRUE(without_->Add(AsBytes(FitVocabulary(spec_, run, false, run == 2).value())).ok());
    }
  }
  static void TearDownTestSuite() {
    delete with_;
    delete without_;
  }

  static EncodedPage Encode(absl::string_view recipe, const std::vector<uint8_t>& raw,
                            const CalibrationStore& store = *with_) {
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec_, store).value();
    return codec->Encode({.raw = raw, .tokens = kTokens, .first_position = 4}).value();
  }
  static std::vector<uint8_t> Decode(const EncodedPage& page,
                                     const CalibrationStore& store = *with_) {
    std::vector<uint8_t> out(PageBytes(spec_, kTokens));
    const absl::Status status = DecodePage(page.header, page.segments, out, store);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  static double Error(const std::vector<uint8_t>& raw, const std::vector<uint8_t>& back) {
    return RelativeError(spec_.dtype, raw, back);
  }

  static constexpr uint32_t kTokens = 100;
  static inline CalibrationStore *with_ = nullptr, *without_ = nullptr;
  static inline const KvSpec spec_ = CorrelatedSpec(3, 16, 8);
};

TEST_F(JointVocabularyTest, TokensThatAreKnownTakeFewerBytes) {
  const auto raw = VocabularyPage(spec_, kTokens, 90);
  for (const char* recipe :
       {"kvstow-cal(run=1,step=2,focus=0)", "kvstow-cal(run=2,step=2,focus=0)"}) {
    const EncodedPage known = Encode(recipe, raw), plain = Encode(recipe, raw, *without_);
    EXPECT_EQ(known.header.token_ids, VocabularyText(kTokens, 90));
    EXPECT_TRUE(plain.header.token_ids.empty());
    EXPECT_LT(known.StoredBytes() * 10, plain.StoredBytes() * 8) << recipe;
    EXPECT_LT(Error(raw, Decode(known)), 1.05 * Error(raw, Decode(plain, *without_))) << recipe;
    EXPECT_EQ(ParsePageHeader(known.header_bytes.span()).value(), known.header);
  }
}

TEST_F(JointVocabularyTest, TokensThatTheModelFeelsAreFiner) {
  const auto raw = VocabularyPage(spec_, kTokens, 91);
  const auto back = Decode(Encode("kvstow-cal(run=2,step=0.1)", raw));
  const std::vector<TokenId> ids = VocabularyText(kTokens, 91);
  double felt = 0, others = 0;
  size_t count = 0;
  for (uint32_t t = 0; t < kTokens; ++t) {
    std::vector<uint8_t> a(PageBytes(spec_, 1)), b(a.size());
    CopyTokens(spec_, spec_.layers, kTokens, raw, {t, 1}, a);
    CopyTokens(spec_, spec_.layers, kTokens, back, {t, 1}, b);
    const bool is_felt = VocabularySensitivity(ids[t]) > 5;
    (is_felt ? felt : others) += Error(a, b);
    count += is_felt ? 1 : 0;
  }
  ASSERT_GT(count, 5u);
  EXPECT_LT(3 * felt / static_cast<double>(count), others / static_cast<double>(kTokens - count));
}

TEST_F(JointVocabularyTest, LayersAndTokensAreThoseOfTheWhole) {
  const auto raw = VocabularyPage(spec_, kTokens, 92);
  const EncodedPage page = Encode("kvstow-cal(run=2,step=0.5,stream=16)", raw);
  const auto whole = Decode(page);
  const std::vector<std::optional<SharedBytes>> all(page.segments.begin(), page.segments.end());
  for (const PageRange& wanted :
       {PageRange{{0, 1}, {0, kTokens}}, {{1, 2}, {33, 40}}, {{2, 1}, {0, 1}}, {{0, 3}, {99, 1}}}) {
    const auto& [layers, tokens] = wanted;
    const size_t layer = LayerBytes(spec_, kTokens);
    std::vector<uint8_t> part(layers.count * LayerBytes(spec_, tokens.count)), same(part.size());
    ASSERT_TRUE(DecodePage(page.header, all, wanted, part, *with_).ok());
    CopyTokens(spec_, layers.count, kTokens,
               std::span(whole).subspan(layers.first * layer, layers.count * layer), tokens, same);
    EXPECT_EQ(part, same) << layers.first << ", " << tokens.first;
  }
}

TEST_F(JointVocabularyTest, TokensThatAreNotKnownAreOrdinary) {
  std::vector<float> x = VocabularyVectors(spec_, VocabularyText(kTokens, 93), 93);
  const std::vector<float> more = VocabularyVectors(spec_, VocabularyText(kTokens, 94), 94);
  for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];  // two tokens are none
  std::vector<uint8_t> raw(PageBytes(spec_, kTokens));
  JointVectors(spec_, {{0, spec_.layers}, kTokens, 4}).Scatter(x.data(), {0, kTokens}, raw);
  for (const char* recipe : {"kvstow-cal(run=1,step=0.5,focus=0)", "kvstow-cal(run=2,step=0.5)"}) {
    const EncodedPage page = Encode(recipe, raw);
    const auto known = [](TokenId id) { return id != kUnknownToken; };
    EXPECT_LE(std::ranges::count_if(page.header.token_ids, known), 30);
    EXPECT_LT(Error(raw, Decode(page)), 0.01) << recipe;
  }
}

TEST_F(JointVocabularyTest, ATokenBeyondTheVocabularyIsLikeOneThatIsNotKnown) {
  EncodedPage page = Encode("kvstow-cal(run=1,step=0.5)", VocabularyPage(spec_, kTokens, 94));
  page.header.token_ids.assign(kTokens, kVocabularyTokens);
  const auto beyond = Decode(page);
  page.header.token_ids.assign(kTokens, kUnknownToken);
  EXPECT_EQ(beyond, Decode(page));
}

std::string Golden(absl::string_view name) {
  std::ifstream in(TestsPath(absl::StrCat("golden/", name)), std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

// As in joint_run_codec_test.cc: encoding them anew may round otherwise on another SIMD target.
TEST(JointVocabularyGolden, ABlobAndItsPageAreReadForEver) {
  const KvSpec spec = CorrelatedSpec(3, 4, 2);
  CalibrationStore store;
  const std::string blob = Golden("calibration_v2_vocabulary.kvcal");
  const auto calibration = store.Add(AsBytes(blob));
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ(HexOf((*calibration)->id()), "ea90323c37982d1136063a71f4c5f7a3");

  const std::string page = Golden("page_v1_kvstow_cal_vocabulary.bin");
  ByteReader reader(AsBytes(page));
  const auto header = ParsePageHeader(reader.GetBytes(reader.Get<uint32_t>()));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->token_ids, VocabularyText(9, 700));
  std::vector<SharedBytes> bodies;
  for (const SegmentInfo& s : header->segments) {
    bodies.push_back(SharedBytes::CopyOf(reader.GetBytes(s.bytes)));
  }
  EXPECT_EQ(reader.remaining(), 0);
  const auto raw = VocabularyPage(spec, 9, 700);
  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(*header, bodies, back, store).ok());
  EXPECT_LT(RelativeError(spec.dtype, raw, back), 5e-3);
}

}  // namespace
}  // namespace kvstow::testing
