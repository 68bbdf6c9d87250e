// The command line: what it shows of stored pages.
#include "tests/integration/cli_server.h"

namespace kvstow {
namespace {

using testing::HasSubstr;

TEST_F(CliServer, StatsTellTheBitsOfTokensByTierAndAge) {
  EXPECT_TRUE(RunJson({"stats"})["ages"]["rows"].empty());
  ASSERT_EQ(
      Run({"put", "--space", "s", "--recipe", "rotated8", "--page-tokens", "64", kCase}).exit_code,
      0);
  const Json ages = RunJson({"stats", "--space", "s"})["ages"];
  EXPECT_EQ(ages["pages"], 4);
  EXPECT_EQ(ages["sampled_pages"], 4);
  ASSERT_EQ(ages["rows"].size(), 1u);
  const Json& row = ages["rows"][0];
  EXPECT_EQ(row["tier"], "host");
  EXPECT_EQ(row["tokens"], 256);
  EXPECT_EQ(row["levels"], 3);
  EXPECT_NEAR(row["bits_per_value"].get<double>(), 8.25, 0.1);
  EXPECT_NEAR(row["bits_per_token"].get<double>(), 8.25 * kRawBytes / 2 / 256, 2000);
  EXPECT_THAT(Run({"stats"}).out, HasSubstr("BITS/TOKEN"));
  EXPECT_EQ(Run({"stats", "--space", "nowhere"}).exit_code, 1);
}

}  // namespace
}  // namespace kvstow
