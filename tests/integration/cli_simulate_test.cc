// kvstow simulate beside the verb that it takes its numbers from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/integration/process.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using Json = nlohmann::json;

const std::string kCase = TestsPath("data/smollm2-wiki-256.safetensors");

const std::string kTrace = TestsPath("data/mooncake_conversation_1000.jsonl.gz");

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
                            "300", "--capacity-bits", capacity_bits, kTrace}));
  };
  const Json eight = simulate("8"), four = simulate("4");
  EXPECT_EQ(eight["policies"], four["policies"]) << "blocks are blocks";
  EXPECT_GT(eight["segments"]["hit_rate"], four["segments"]["hit_rate"]);
  EXPECT_GT(four["segments"]["hit_rate"], four["policies"]["kvstow"]);
  EXPECT_LE(eight["segments"]["mean_bits"], bits);
}

TEST(Cli, SimulateSpreadsATraceOverNodes) {
  const auto simulate = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"simulate", "--format", "json", "--capacity-blocks",
                                          "3000"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Parse(RunKvstow(arguments));
  };
  const Json alone = simulate({kTrace});
  const Json one = simulate({"--nodes", "1", kTrace});
  EXPECT_EQ(one["by_nodes"][0]["hit_rate"]["local"], alone["policies"]["kvstow"]);
  EXPECT_EQ(one["by_nodes"][0]["hit_rate"]["pooled"], alone["policies"]["kvstow"]);
  EXPECT_EQ(one["infinite"], alone["infinite"]);
  EXPECT_EQ(one["by_nodes"][0]["remote"]["commands"]["all"], 0);
  EXPECT_EQ(
      simulate({"--nodes", "1", "--policy", "lru", kTrace})["by_nodes"][0]["hit_rate"]["local"],
      alone["policies"]["lru"]);

  const std::vector<std::string> shared = {"--nodes",  "2,5", "--remote", "endless",
                                           "--values", "3",   kTrace};
  const Json many = simulate(shared);
  ASSERT_EQ(many["by_nodes"].size(), 2u);
  EXPECT_EQ(many, simulate(shared)) << "the same every time";
  for (const Json& row : many["by_nodes"]) {
    const Json& rate = row["hit_rate"];
    EXPECT_NEAR(rate["local"].get<double>() + rate["remote"].get<double>(),
                alone["infinite"].get<double>(), 1e-12);
    EXPECT_EQ(
        row["local_hits"].get<int>() + row["remote_hits"].get<int>() + row["misses"].get<int>(),
        row["blocks"].get<int>());
    EXPECT_GT(row["local_by_routing"]["affinity_gains"], 0);
    EXPECT_EQ(row["remote"]["blocks_sent"], many["distinct_blocks"]);
    EXPECT_GT(row["remote"]["commands"]["per_second"], 0);
  }
  std::vector<std::string> by_chance = shared;
  by_chance.insert(by_chance.begin(), {"--routing", "random"});
  const Json random = simulate(by_chance);
  EXPECT_EQ(random["by_nodes"][1]["hit_rate"]["local"],
            many["by_nodes"][1]["local_by_routing"]["random"]);
  EXPECT_GT(random["by_nodes"][1]["remote"]["bytes_from"]["per_request"],
            many["by_nodes"][1]["remote"]["bytes_from"]["per_request"]);
  by_chance.insert(by_chance.begin(), {"--seed", "2"});
  EXPECT_NE(simulate(by_chance)["by_nodes"], random["by_nodes"]);
}

TEST(Cli, SimulateOfNodesSaysWhatItIs) {
  const Finished text =
      RunKvstow({"simulate", "--nodes", "4", "--capacity", "64GiB", "--remote", "1TiB", kTrace});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* words : {"routes: affinity", "1.00 TiB", "busiest node", "MB from/request"}) {
    EXPECT_THAT(text.out, ::testing::HasSubstr(words));
  }
  const Finished small =
      RunKvstow({"simulate", "--nodes", "4", "--capacity", "64GiB", "--remote", "1MiB", kTrace});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.err, ::testing::HasSubstr("--remote 1.00 MiB does not hold one block"));
  const std::vector<std::vector<std::string>> wrong = {{"--nodes", "0"},
                                                       {"--nodes", "1,two"},
                                                       {"--routing", "random"},
                                                       {"--remote", "1TiB"},
                                                       {"--nodes", "2", "--remote", "0"},
                                                       {"--nodes", "2", "--remote", "all"},
                                                       {"--nodes", "2", "--routing", "near"},
                                                       {"--nodes", "2", "--policy", "best"},
                                                       {"--nodes", "2", "--values", "0"},
                                                       {"--nodes", "2", "--levels", "2:1"}};
  for (std::vector<std::string> arguments : wrong) {
    arguments.insert(arguments.begin(), "simulate");
    arguments.emplace_back(kTrace);
    const Finished run = RunKvstow(arguments);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_FALSE(run.err.empty());
  }
}

}  // namespace
}  // namespace kvstow
