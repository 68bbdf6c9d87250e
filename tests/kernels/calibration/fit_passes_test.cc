#include "kernels/calibration/fit_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvstow {
namespace {

using testing::HasSubstr;

TEST(FitPasses, GoOneAfterTheOtherOverTheSameTokens) {
  FitPasses passes(2);
  EXPECT_EQ(passes.count(), 2);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(passes.now(), pass);
    EXPECT_THAT(std::string(passes.Finish().message()), HasSubstr("of 2 passes are done"));
    EXPECT_TRUE(passes.CheckOpen().ok());
    passes.Add(40);
    EXPECT_TRUE(absl::IsFailedPrecondition(passes.CheckWhole())) << "too few tokens";
    passes.Add(60);
    EXPECT_TRUE(passes.CheckWhole().ok());
    passes.EndPass();
  }
  EXPECT_EQ(passes.tokens(), 100u);
  EXPECT_TRUE(absl::IsFailedPrecondition(passes.CheckOpen()));
  EXPECT_TRUE(absl::IsFailedPrecondition(passes.CheckWhole()));
  EXPECT_TRUE(passes.Finish().ok());
  EXPECT_THAT(std::string(passes.Finish().message()), HasSubstr("is finished"));
}

TEST(FitPasses, RefuseAPassThatSawOtherTokensThanTheFirst) {
  for (const uint64_t second : {99, 101}) {
    FitPasses passes(2);
    passes.Add(100);
    passes.EndPass();
    passes.Add(second);
    EXPECT_THAT(std::string(passes.CheckWhole().message()), HasSubstr("saw")) << second;
  }
}

}  // namespace
}  // namespace kvstow
