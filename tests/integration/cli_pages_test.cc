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

TEST_F(CliServer, ChosenTokensComeBackOneRangeBehindTheOther) {
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "raw", "--page-tokens", "64", kCase}).exit_code,
            0);
  // A part of page 0, its end, all of page 1 and the begin of page 2; nothing of page 3.
  const Json got = RunJson({"get", "--space", "s", "--tokens", "3-10,60-130", kCase, out_});
  EXPECT_EQ(got["tokens"], 77);
  EXPECT_EQ(got["hit_tokens"], 77);
  EXPECT_EQ(got["hit_pages"], 3);
  EXPECT_EQ(got["tiers"]["host"], 3) << "a page counts once";
  const auto whole = SafetensorsReader::Open(kCase), some = SafetensorsReader::Open(out_);
  ASSERT_TRUE(whole.ok() && some.ok());
  const size_t row = 3 * 64 * 2;
  for (const std::string name : {"k.0", "v.29"}) {
    const auto want = whole->Data(*whole->Find(name)), have = some->Data(*some->Find(name));
    ASSERT_EQ(have.size(), 77 * row);
    EXPECT_TRUE(std::ranges::equal(have.first(7 * row), want.subspan(3 * row, 7 * row)));
    EXPECT_TRUE(std::ranges::equal(have.subspan(7 * row), want.subspan(60 * row, 70 * row)));
  }
  for (const char* wrong : {"5", "5-5", "9-4", "0-4,2-8", "a-b", "0-4,", ""}) {
    EXPECT_EQ(Run({"get", "--space", "s", "--tokens", wrong, kCase, out_}).exit_code, 2) << wrong;
  }
  const Finished beyond = Run({"get", "--space", "s", "--tokens", "0-257", kCase, out_});
  EXPECT_EQ(beyond.exit_code, 1);
  EXPECT_THAT(beyond.err, HasSubstr("the case has 256 tokens"));
}

}  // namespace
}  // namespace kvstow
