// Every device that codes calibrated pages foretells them by their tokens as the CPU does, where
// the calibration has a vocabulary (kernels/calibration/vocabulary.h): it finds the same tokens,
// and each of the two decodes the other's pages.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_VOCABULARY_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_VOCABULARY_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/conformance/joint_on_every_device.h"
#include "tests/kernels/vocabulary_pages.h"

namespace kvstow::testing {

class DeviceVocabularyConformance : public JointOnEveryDevice {
 protected:
  static void SetUpTestSuite() {
    models_ = new std::vector<std::unique_ptr<RunsOfModel>>;
    const auto fit = [](const KvSpec& spec, uint32_t run, bool felt) {
      return FitVocabulary(spec, run, true, felt);
    };
    models_->push_back(FitRuns("usual", CorrelatedSpec(3, 16, 8), fit));
    models_->push_back(FitRuns("bf16", Bf16Spec(), fit));
    models_->push_back(FitRuns("f32", F32Spec(), fit));
  }
  static void TearDownTestSuite() { delete models_; }

  // Lengths that do and do not fill the blocks of the search, with first tokens of a text and
  // without.
  static std::vector<PageIn> Pages(const KvSpec& spec) {
    std::vector<PageIn> pages;
    for (const auto& [tokens, first] :
         {std::pair{128u, uint64_t{0}}, {128, 128}, {40, 0}, {65, 2}, {1, 0}, {1, 9}, {9, 1}}) {
      const uint64_t seed = 300 + pages.size();
      pages.push_back({tokens, first, VocabularyPage(spec, tokens, seed, first)});
    }
    return pages;
  }
  static size_t Bytes(std::span<const SharedBytes> bodies) {
    size_t bytes = 0;
    for (const SharedBytes& body : bodies) bytes += body.size();
    return bytes;
  }

  static inline std::vector<std::unique_ptr<RunsOfModel>>* models_ = nullptr;
};

TEST_P(DeviceVocabularyConformance, PagesAreTheCpusButForRounding) {
  for (const auto& model : *models_) {
    for (const char* recipe : {"kvstow-cal(run=1,step=0.25)", "kvstow-cal(run=2,step=0.5)",
                               "kvstow-cal(run=2,step=1,stream=32,first=4,focus=0)"}) {
      const auto codec = Make(model->spec, model->store, recipe);
      ASSERT_NE(codec, nullptr);
      const std::vector<PageIn> pages = Pages(model->spec);
      const std::vector<JointPage> coded = Encode(*codec, pages);
      for (size_t i = 0; i < pages.size(); ++i) {
        SCOPED_TRACE(absl::StrCat(model->name, ", ", recipe, ", page ", i));
        const PageIn& page = pages[i];
        ASSERT_TRUE(coded[i].coded);
        const EncodedPage cpu = OfTheCpu(model->spec, model->store, codec->recipe(), page);
        EXPECT_EQ(coded[i].token_ids, VocabularyText(page.tokens, 300 + i));
        EXPECT_EQ(coded[i].token_ids, cpu.header.token_ids);
        const auto bytes = static_cast<double>(Bytes(coded[i].bodies));
        const auto cpu_bytes = static_cast<double>(Bytes(cpu.segments));
        EXPECT_NEAR(bytes, cpu_bytes, 0.03 * cpu_bytes + 16.0 * cpu.segments.size());
        // All four ways: who encoded, who decodes.
        const DType dtype = model->spec.dtype;
        PageHeader header = cpu.header;
        const auto theirs = DecodeOnTheCpu(model->store, header, cpu.segments, page);
        header.segments = coded[i].segments;
        const auto ours = DecodeOnTheCpu(model->store, header, coded[i].bodies, page);
        const double lost = RelativeError(dtype, page.raw, theirs);
        EXPECT_LT(RelativeError(dtype, page.raw, ours), 1.02 * lost + kJointDeviceError);
        EXPECT_LT(
            RelativeError(dtype, ours, Decode(*codec, page, coded[i].bodies, coded[i].token_ids)),
            kJointDeviceError);
        EXPECT_LT(
            RelativeError(dtype, theirs, Decode(*codec, page, cpu.segments, cpu.header.token_ids)),
            kJointDeviceError);
      }
    }
  }
}

TEST_P(DeviceVocabularyConformance, TokensThatAreNotKnownAreOrdinary) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=2,step=0.5)");
  const auto known = [](TokenId id) { return id != kUnknownToken; };
  // Tokens of another model, of which a few may look like ones of this.
  PageIn page{128, 128, CorrelatedPage(model.spec, 128, 7, 128)};
  const JointPage coded = Encode(*codec, {page})[0];
  ASSERT_TRUE(coded.coded);
  const EncodedPage cpu = OfTheCpu(model.spec, model.store, codec->recipe(), page);
  EXPECT_EQ(coded.token_ids, cpu.header.token_ids);
  EXPECT_LT(std::ranges::count_if(coded.token_ids, known), 30);
  const auto error = [&](const std::vector<uint8_t>& back) {
    return RelativeError(model.spec.dtype, page.raw, back);
  };
  EXPECT_NEAR(error(Decode(*codec, page, coded.bodies, coded.token_ids)),
              error(DecodeOnTheCpu(model.store, cpu.header, cpu.segments, page)), 1e-3);
}

TEST_P(DeviceVocabularyConformance, ATokenBeyondTheVocabularyIsLikeOneThatIsNotKnown) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=1,step=0.5)");
  const PageIn page = Pages(model.spec)[1];
  const JointPage coded = Encode(*codec, {page})[0];
  const auto none = Decode(*codec, page, coded.bodies, {});
  for (const TokenId id : {kUnknownToken, TokenId{kVocabularyTokens}, kMaxVocabulary - 1}) {
    EXPECT_EQ(Decode(*codec, page, coded.bodies, std::vector<TokenId>(page.tokens, id)), none);
  }
}

TEST_P(DeviceVocabularyConformance, IdsOfOtherTokensAreRefused) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=1,step=0.5)");
  const PageIn page = Pages(model.spec)[1];
  const JointPage coded = Encode(*codec, {page})[0];
  const auto room = Room(page.raw.size());
  const std::vector<TokenId> ids(page.tokens - 1);
  const JointDecodeJob job{page.tokens, page.first_position, coded.bodies, room.get(), ids};
  EXPECT_TRUE(absl::IsInvalidArgument(codec->Decode({&job, 1})));
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_VOCABULARY_CONFORMANCE_H_
