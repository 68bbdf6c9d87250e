// The codec `planes` on real KV: what its levels cost and bring.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/codec.h"
#include "kernels/quantize/dead_zone.h"
#include "tests/kernels/fixture.h"

namespace kvstow {
namespace {

TEST(DeadZone, QuantizesAndDropsBits) {
  const float values[] = {0, 0.54f, -0.54f, 0.56f, -1.54f, 1.56f, 1e30f};
  int32_t q[7];
  DeadZoneQuantize(values, 7, 1, 0.55f, 1000, q);
  EXPECT_EQ(std::vector<int32_t>(q, q + 7), (std::vector<int32_t>{0, 0, 0, 1, -1, 2, 1000}));
  const float inverse_steps[] = {1, 1, 2, 0.25f, 1, 1, 0};
  DeadZoneQuantizeEach(values, 7, inverse_steps, 0.55f, 1000, q);
  EXPECT_EQ(std::vector<int32_t>(q, q + 7), (std::vector<int32_t>{0, 0, -1, 0, -1, 2, 0}));
}

TEST(DeadZone, RoundLog2AgreesWithTheLibrary) {
  for (int n = -300; n < 300; ++n) {
    for (const int per_octave : {4, 8}) {
      const double x = std::exp2(n / 16.0 + 0.003);
      EXPECT_EQ(RoundLog2(x, per_octave), std::lround(std::log2(x) * per_octave)) << n;
    }
    EXPECT_NEAR(Exp2Fraction(n, 16) / std::exp2(n / 16.0), 1, 1e-15) << n;
  }
}

// Stored bytes and squared error relative to energy, all levels.
struct Cost {
  double bytes, error;
};

class Planes : public ::testing::Test {
 protected:
  Cost Of(const std::string& recipe) {
    const auto codec = MakeCodec(*Recipe::Parse(recipe), spec_);
    EXPECT_TRUE(codec.ok()) << codec.status();
    const auto encoded = (*codec)->Encode({.raw = raw_, .tokens = testing::kFixtureTokens});
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    std::vector<uint8_t> back(raw_.size());
    const absl::Status status = DecodePage(encoded->header, encoded->segments, back);
    EXPECT_TRUE(status.ok()) << status;
    return {static_cast<double>(encoded->StoredBytes()),
            testing::RelativeError(spec_.dtype, raw_, back)};
  }

  const KvSpec spec_ = testing::FixtureSpec();
  const std::vector<uint8_t> raw_ = testing::FixturePage();
};

TEST_F(Planes, BeingEmbeddedCostsLessThanAPercent) {
  for (const char* step : {"0.3", "0.6", "1.2"}) {
    const Cost direct = Of(absl::StrCat("planes(step=", step, ",levels=1)"));
    const Cost embedded = Of(absl::StrCat("planes(step=", step, ",levels=4)"));
    EXPECT_DOUBLE_EQ(direct.error, embedded.error);
    EXPECT_LT(embedded.bytes, 1.01 * direct.bytes) << step;
  }
}

TEST_F(Planes, StoresASixthAtTwoPercentOfTheEnergy) {
  const Cost cost = Of("kvstow");
  EXPECT_LT(cost.bytes * 5.8, static_cast<double>(raw_.size()));
  EXPECT_LT(cost.error, 0.02);
}

}  // namespace
}  // namespace kvstow
