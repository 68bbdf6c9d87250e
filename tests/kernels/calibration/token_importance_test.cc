// The model of how much a token is felt.
#include "kernels/calibration/token_importance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

constexpr size_t kRank = 60, kTokens = 2000;

TEST(TokenImportanceTest, FindsTheRuleOfSensitivities) {
  Gaussian gaussian;
  std::vector<float> sigma(kRank), c(kTokens * kRank), sensitivity(kTokens);
  for (size_t i = 0; i < kRank; ++i) sigma[i] = std::exp2(-static_cast<float>(i) / 8);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kRank; ++i) c[t * kRank + i] = sigma[i] * gaussian();
    // One token in ten is not known.
    const float u = c[t * kRank + 3] / sigma[3];
    sensitivity[t] = t % 10 == 0 ? 0 : 7 * std::exp(2 * u);
  }
  ImportanceFit fit(kRank);
  fit.Add(c.data(), sigma, sensitivity);
  const ImportanceModel model = fit.Finish();
  ASSERT_EQ(model.weights.size(), ImportanceWeights(kRank));
  EXPECT_NEAR(model.weights[3], 2, 0.2);
  EXPECT_NEAR(model.weights[4], 0, 0.1);
  // u = 1.5: a sensitivity of e^3, with focus 0.5 half as many half octaves of the step.
  std::vector<float> token(kRank);
  token[3] = 1.5f * sigma[3];
  EXPECT_EQ(StepClass(ForetoldLogStep(model, token, sigma, 0)), kPlainStepClass);
  EXPECT_NEAR(StepClass(ForetoldLogStep(model, token, sigma, 0.5f)), kPlainStepClass - 2, 1);
  token[3] = -1.5f * sigma[3];
  EXPECT_GT(StepClass(ForetoldLogStep(model, token, sigma, 0.5f)), kPlainStepClass);
}

TEST(TokenImportanceTest, ClassesStayInRange) {
  const std::vector<float> sigma(1, 1), token(1, 3);
  const size_t n = ImportanceWeights(1);
  constexpr float kHuge = std::numeric_limits<float>::max();
  EXPECT_EQ(StepClass(ForetoldLogStep({std::vector<float>(n, kHuge)}, token, sigma, 1)), 0);
  EXPECT_EQ(StepClass(ForetoldLogStep({std::vector<float>(n, -kHuge)}, token, sigma, 1)),
            kStepClasses - 1);
  std::vector<float> opposed(n, kHuge);
  opposed[1] = -kHuge;  // inf - inf
  EXPECT_LT(StepClass(ForetoldLogStep({opposed}, token, sigma, 1)), kStepClasses);
  EXPECT_EQ(StepFactor(kPlainStepClass), 1);
  EXPECT_EQ(StepFactor(kPlainStepClass + 2), 2);
}

TEST(TokenImportanceTest, TooFewTokensMakeNoModel) {
  const std::vector<float> sigma(4, 1), c(4, 1), sensitivity(1, 1);
  ImportanceFit fit(4);
  fit.Add(c.data(), sigma, sensitivity);
  EXPECT_TRUE(fit.Finish().weights.empty());
}

}  // namespace
}  // namespace kvstow::testing
