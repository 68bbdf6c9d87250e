// kvstow simulate beside the verb that it takes its numbers from.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/integration/process.h"

namespace kvstow {
namespace {

using Json = nlohmann::json;

constexpr char kCase[] = KVSTOW_TESTS_DIR "/data/smollm2-wiki-256.safetensors";

Json Parse(const Finished& run) {
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const Json json = Json::parse(run.out, nullptr, false);
  return json.is_object() ? json : Json::object();
}

// The levels of a recipe's pages, as one verb prints them and the other takes them.
TEST(Cli, SimulateTakesTheLevelsThatRoundtripPrints) {
  const TempDir dir;
  const Json json = Parse(RunKvstow(
      {"codec", "roundtrip", "--recipe", "kvstow", "--format", "json", kCase, dir.path("out")}));
  const std::string levels = json["levels"];
  double bits = 0, gain = 0;
  for (const absl::string_view level : absl::StrSplit(levels, ',')) {
    const std::vector<std::string> pair = absl::StrSplit(level, ':');
    ASSERT_EQ(pair.size(), 2u) << levels;
    bits += std::stod(pair[0]);
    gain += std::stod(pair[1]);
  }
  EXPECT_NEAR(bits, 16 / json["ratio"].get<double>(), 0.001) << "all that is stored";
  EXPECT_GT(gain, 0.9);
  EXPECT_LE(gain, 1);
  const auto simulate = [&](const char* capacity_bits) {
    return Parse(RunKvstow({"simulate", "--format", "json", "--levels", levels, "--capacity-blocks",
                            "300", "--capacity-bits", capacity_bits,
                            KVSTOW_TESTS_DIR "/data/mooncake_conversation_1000.jsonl.gz"}));
  };
  const Json eight = simulate("8"), four = simulate("4");
  EXPECT_EQ(eight["policies"], four["policies"]) << "blocks are blocks";
  EXPECT_GT(eight["segments"]["hit_rate"], four["segments"]["hit_rate"]);
  EXPECT_GT(four["segments"]["hit_rate"], four["policies"]["kvstow"]);
  EXPECT_LE(eight["segments"]["mean_bits"], bits);
}

}  // namespace
}  // namespace kvstow
