// Codebooks fitted to data, and values that are stored apart.
#include "kernels/quantize/scalar_lloyd.h"

#include <gtest/gtest.h>

#include <random>

#include "base/digest.h"
#include "kernels/quantize/outlier_values.h"

namespace kvstow::testing {
namespace {

double MeanSquaredError(const std::vector<WeightedValue>& values, const std::vector<float>& book) {
  double error = 0;
  for (const WeightedValue& v : values) {
    double least = 1e30;
    for (const float c : book) least = std::min(least, (double{v.value} - c) * (v.value - c));
    error += least;
  }
  return error / static_cast<double>(values.size());
}

// The published errors of Lloyd-Max codebooks of a Gaussian.
TEST(FitCodebookTest, ReachesTheErrorOfLloydMaxOnAGaussian) {
  std::vector<WeightedValue> values(200'000);
  std::mt19937 bits(3);
  std::normal_distribution<float> gaussian;
  for (WeightedValue& v : values) v.value = gaussian(bits);
  for (const auto& [entries, error] : {std::pair{2, .36338}, {4, .11748}, {8, .03455}}) {
    const std::vector<float> book = FitCodebook(values, entries);
    EXPECT_TRUE(std::is_sorted(book.begin(), book.end()));
    EXPECT_NEAR(MeanSquaredError(values, book), error, 0.02 * error);
  }
}

TEST(FitCodebookTest, WeightsPullEntries) {
  EXPECT_EQ(FitCodebook({{0, 1}, {1, 3}}, 1), std::vector<float>{0.75f});
  EXPECT_EQ(FitCodebook({{5, 1}, {-1, 1}, {5, 1}, {-1, 2}}, 2), (std::vector<float>{-1, 5}));
}

TEST(FitCodebookTest, FewValuesAndNoneAreOrdinary) {
  EXPECT_EQ(FitCodebook({}, 4), std::vector<float>(4));
  EXPECT_EQ(FitCodebook({{2, 1}}, 2), (std::vector<float>{2, 2}));
  EXPECT_EQ(FitCodebook({{2, 0}, {3, 0}}, 1), std::vector<float>{3});
}

TEST(OutlierValuesTest, ComeBackOverOtherValues) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  const uint8_t left_out[] = {0, 1, 1, 0, 0, 0};
  std::string bytes;
  ASSERT_TRUE(AppendOutliers(left_out, values, 3, bytes));
  EXPECT_EQ(bytes.size(), 2 * 2 + 2 * 4);
  std::vector<float> back(6, -1);
  EXPECT_EQ(ReadOutliers(AsBytes(bytes), 2, 3, back.data()).value(), bytes.size());
  EXPECT_EQ(back, (std::vector<float>{-1, 2, 3, -1, -1, -1}));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto read = ReadOutliers(AsBytes(bytes).first(size), 2, 3, back.data());
    EXPECT_TRUE(absl::IsDataLoss(read.status()));
  }
}

TEST(OutlierValuesTest, WrongPlacesAndValuesAreRefused) {
  const float huge[] = {1e6f};
  const uint8_t left_out[] = {1, 1, 1};
  std::string bytes;
  EXPECT_FALSE(AppendOutliers(std::span(left_out).first(1), huge, 1, bytes));
  const float values[] = {1, 2, 3};
  bytes.clear();
  ASSERT_TRUE(AppendOutliers(left_out, values, 3, bytes));
  float back[3];
  for (const auto& [at, byte] : {std::pair{2, 5}, {6, 0}, {5, 0x7c}}) {  // column twice; Inf
    std::string wrong = bytes;
    wrong[at] = static_cast<char>(byte);
    EXPECT_TRUE(absl::IsDataLoss(ReadOutliers(AsBytes(wrong), 1, 3, back).status())) << at;
  }
}

}  // namespace
}  // namespace kvstow::testing
