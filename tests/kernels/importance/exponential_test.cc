// Exponentials are the C library's but for their last places, and the same everywhere.
#include "kernels/importance/exponential.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvstow {
namespace {

TEST(ExponentialTest, IsWithinRoundingOfTheLibrarys) {
  for (double x = -1021.9; x < 1023; x += 0.0371) {
    const double exact = std::exp2(x);
    EXPECT_NEAR(FixedExp2(x) / exact, 1, 1e-14) << x;
  }
  for (float x = -87.0F; x <= 88.0F; x += 0.0137F) {
    const auto exact = static_cast<float>(std::exp(double{x}));
    EXPECT_GE(FixedExp(x), std::nextafter(exact, 0.0F)) << x;
    EXPECT_LE(FixedExp(x), std::nextafter(exact, HUGE_VALF)) << x;
  }
}

TEST(ExponentialTest, WholePowersAreExact) {
  for (int n = -1022; n <= 1023; ++n) EXPECT_EQ(FixedExp2(n), std::ldexp(1.0, n));
  EXPECT_EQ(FixedExp(0), 1.0F);
}

TEST(ExponentialTest, EndsOfTheRange) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(FixedExp2(-inf), 0);
  EXPECT_EQ(FixedExp2(-1e9), 0);
  EXPECT_EQ(FixedExp2(1e9), inf);
  EXPECT_EQ(FixedExp2(inf), inf);
  EXPECT_TRUE(std::isnan(FixedExp2(std::nan(""))));
  EXPECT_EQ(FixedExp(-1e30F), 0.0F);
}

TEST(ExponentialTest, BitsAreFixed) {
  constexpr float kThird = FixedExp(-1.0F / 3);
  const volatile float x = -1.0F / 3;
  EXPECT_EQ(FixedExp(x), kThird) << "the compiler and the machine agree";
}

}  // namespace
}  // namespace kvstow
