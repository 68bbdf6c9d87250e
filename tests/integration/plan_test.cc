// kvstow plan, as users run it: what the library's tests cannot see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/integration/process.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

const std::string kTrace = TestsPath("data/mooncake_conversation_1000.jsonl.gz");
const std::string kCase = TestsPath("data/smollm2-wiki-256.safetensors");
const std::string kConfig = TestsPath("data/models/llama-3.1-70b.json");

Finished RunPlan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  return RunKvstow(arguments);
}

Json PlanJson(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--format", "json"});
  const Finished run = RunPlan(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
  return Json::parse(run.out, nullptr, false);
}

TEST(Plan, BytesOfATokenAndCurve) {
  const Json plan = PlanJson({"--model", kConfig, "--tp", "8", "--recipe", "4x=4", "--recipe",
                              "int8", "--trace", kTrace, "--size", "96GiB"});
  EXPECT_EQ(plan["bytes_per_token"]["raw"], 40960);
  EXPECT_EQ(plan["bytes_per_token"]["stored"], 10240);
  EXPECT_EQ(plan["bytes_per_token"]["all_ranks"], 327680);
  EXPECT_EQ(plan["recipes"][0]["origin"], "given");
  EXPECT_EQ(plan["recipes"][1]["origin"], "measured");
  EXPECT_EQ(plan["load"]["requests"], 1000);
  EXPECT_EQ(plan["curve"], plan["recipes"][0]["curve"]);
  double last = 0;
  bool asked = false;
  for (const Json& point : plan["curve"]) {
    EXPECT_GE(point["hit_rate"], last);
    last = point["hit_rate"];
    asked |= point["gib"] == 96;
  }
  EXPECT_TRUE(asked);
  EXPECT_EQ(plan["infinite_hit_rate"], last);
}

TEST(Plan, FirstTokenOfAPromptThatIsAllThere) {
  const std::vector<std::string> asked = {"--model",  kConfig,          "--recipe", "4x=4@1TB/s",
                                          "--recipe", "slow=4@100MB/s", "--link",   "10Gbit/s",
                                          "--prompt", "32000"};
  const Json plan = PlanJson(asked);
  const double raw = 327680.0 * 32000;
  const Json& prompt = plan["recipes"][0]["prompt"];
  EXPECT_EQ(prompt["tokens"], 32000);
  EXPECT_EQ(prompt["limit"], "link");
  EXPECT_NEAR(prompt["first_token_s"].get<double>(), raw / 4 / 1.25e9, 1e-6);
  EXPECT_EQ(plan["recipes"][1]["prompt"]["limit"], "decoder");
  EXPECT_NEAR(plan["recipes"][1]["prompt"]["first_token_s"].get<double>(), raw / 1e8, 1e-3);
  EXPECT_THAT(RunPlan(asked).out, HasSubstr("FIRST TOKEN OF 32000"));
  // A tier counts by its bandwidth, with or without a size.
  for (const std::vector<std::string>& disk : std::vector<std::vector<std::string>>{
           {"--disk-bandwidth", "500MB/s"}, {"--disk-bandwidth", "500MB/s", "--disk", "1TiB"}}) {
    std::vector<std::string> flags = asked;
    flags.insert(flags.end(), disk.begin(), disk.end());
    const Json from_disk = PlanJson(flags)["recipes"][0]["prompt"];
    EXPECT_EQ(from_disk["limit"], "tier");
    EXPECT_NEAR(from_disk["tier_s"].get<double>(), raw / 4 / 5e8, 1e-6);
  }
  EXPECT_FALSE(PlanJson({"--model", kConfig})["recipes"][0].contains("prompt"));
}

TEST(Plan, WhatRoundtripMeasuredIsRead) {
  const TempDir folder;
  const Finished run = RunKvstow({"codec", "roundtrip", "--recipe", "kvstow", "--format", "json",
                                  kCase, folder.path("decoded.safetensors")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string runs = folder.path("runs.json");
  std::ofstream(runs) << run.out;
  const Json measured = Json::parse(run.out);
  const Json plan = PlanJson({"--model", "smollm2-135m", "--roundtrip", runs, "--recipe", "raw",
                              "--recipe", "int8@3GB/s"});
  ASSERT_EQ(plan["recipes"].size(), 3u);
  EXPECT_EQ(plan["recipes"][0]["decode"], nullptr);
  EXPECT_EQ(plan["recipes"][1]["decode"]["bytes_per_second"], 3e9);
  EXPECT_EQ(plan["recipes"][1]["decode"]["origin"], "given");
  const Json& kvstow = plan["recipes"][2];
  EXPECT_EQ(kvstow["recipe"], "kvstow");
  EXPECT_EQ(kvstow["ratio"], measured["ratio"]);
  EXPECT_EQ(kvstow["origin"], "measured");
  EXPECT_NEAR(kvstow["decode"]["bytes_per_second"].get<double>() / 1e9,
              measured["decode_gbps"].get<double>(), 0.01);
  EXPECT_EQ(kvstow["decode"]["origin"], "measured");
  // Alone it stands beside raw, and a file that is something else is named.
  EXPECT_EQ(PlanJson({"--model", "smollm2-135m", "--roundtrip", runs})["recipes"].size(), 2u);
  EXPECT_THAT(RunPlan({"--model", "smollm2-135m", "--roundtrip", kConfig}).err,
              HasSubstr("llama-3.1-70b.json:1"));
}

TEST(Plan, HardwareGivesTimesWearAndAdvice) {
  std::vector<std::string> flags = {"--model",       "llama-3.1-8b", "--recipe",     "4x=4",
                                    "--trace",       kTrace,         "--ram",        "64GiB",
                                    "--disk",        "1T",           "--link",       "25Gbit/s",
                                    "--prefill-tps", "8000",         "--target-hit", "10"};
  flags.insert(flags.end(), {"--disk-bandwidth", "3GB/s", "--disk-life", "7000TB", "--ram-price",
                             "3", "--disk-price", "0.1"});
  const Json plan = PlanJson(flags);
  const Json& outcome = plan["recipes"][0]["outcome"];
  EXPECT_EQ(outcome["origin"], "modelled");
  EXPECT_GT(outcome["first_token_mean_s"], 0);
  EXPECT_LT(outcome["first_token_mean_s"], outcome["first_token_cold_s"]);
  EXPECT_GT(outcome["disk_life_years"], 0);
  EXPECT_EQ(plan["recipes"][0]["break_even_link_bytes_per_second"], 8000 * 32768);
  EXPECT_GE(plan["advice"]["cheapest"]["outcome"]["hit_rate"], 0.1);
  EXPECT_FALSE(plan["advice"]["steps"].empty());
  EXPECT_EQ(plan["hardware"]["origin"], "given");
}

TEST(Plan, NodesShareARemoteStore) {
  std::vector<std::string> flags = {"--model",        "llama-3.1-8b",
                                    "--recipe",       "4x=4",
                                    "--trace",        kTrace,
                                    "--ram",          "64GiB",
                                    "--link",         "25Gbit/s",
                                    "--prefill-tps",  "8000",
                                    "--ram-price",    "3",
                                    "--remote-price", "4",
                                    "--remote",       "endless",
                                    "--values",       "2",
                                    "--redis-memory", "64GiB",
                                    "--redis-fill",   "50"};
  flags.insert(flags.end(), {"--nodes", "4", "--remote-bandwidth", "10Gbit/s"});
  const Json plan = PlanJson(flags);
  const Json& fleet = plan["recipes"][0]["fleet"];
  EXPECT_EQ(fleet["origin"], "modelled");
  const Json& rate = fleet["hit_rate"];
  EXPECT_NEAR(rate["local"].get<double>() + rate["remote"].get<double>(),
              plan["infinite_hit_rate"].get<double>(), 1e-12);
  EXPECT_EQ(rate["local"], rate["local_by_affinity"]);
  EXPECT_EQ(fleet["remote_pages"], plan["load"]["distinct_blocks"]);
  EXPECT_EQ(fleet["redis_nodes"]["for_memory"], std::ceil(fleet["remote_gib"].get<double>() / 32));
  EXPECT_EQ(fleet["redis_nodes"]["for_bytes"], 1);
  EXPECT_EQ(fleet["redis_nodes"]["for_commands"], 1);
  EXPECT_GT(fleet["node_remote_bytes_per_second"], 0);
  EXPECT_GT(fleet["first_token_remote_s"], fleet["first_token_local_s"]) << "10 of 25 Gbit/s";
  EXPECT_GT(fleet["cost_per_hit_per_second"], 0);
  EXPECT_EQ(plan["fleet"]["nodes"], 4);
  EXPECT_EQ(plan["fleet"]["redis"]["fill"], 0.5);
  flags.insert(flags.end(), {"--routing", "random"});
  EXPECT_EQ(PlanJson(flags)["recipes"][0]["fleet"]["hit_rate"]["local"], rate["local_at_random"]);
  const Finished text = RunPlan(flags);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("4 NODES OF THIS HARDWARE"), HasSubstr("routing: random"),
                              HasSubstr("Redis nodes needed"), HasSubstr("only remote")));
}

TEST(Plan, AServerTellsWhatItWasAskedFor) {
  Daemon server("127.0.0.1:0", {"--host-bytes", "64MiB"});
  const std::string address = server.address();
  const std::vector<std::string> silent = {"--server", address};
  Finished run = RunPlan(silent);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("no page"));
  run = RunKvstow({"put", "--server", address, "--space", "s", "--page-tokens", "16", "--recipe",
                   "int8", kCase});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(RunKvstow({"exists", "--server", address, "--space", "s", kCase}).exit_code, 0);
  }
  const Json plan = PlanJson({"--server", address, "--recipe", "tiny=1000", "--size", "1MiB"});
  const uint64_t asked = plan["load"]["references"];
  EXPECT_GE(asked, 3 * 16u) << "16 pages, three times";
  EXPECT_EQ(asked % 16, 0u);
  const double again = 1 - 16 / static_cast<double>(asked);
  EXPECT_NEAR(plan["infinite_hit_rate"], again, 0.01);
  EXPECT_EQ(plan["present_gib"], 1.0 / 16);
  EXPECT_NEAR(plan["recipes"][0]["ratio"], 1.87, 0.05);
  EXPECT_GT(plan["codec"]["encode_bytes_per_second"], 0);
  EXPECT_EQ(plan["codec"]["decode_bytes_per_second"], 0) << "nothing was fetched";
  EXPECT_EQ(plan["curve"][0]["gib"], 1.0 / 1024);
  EXPECT_NEAR(plan["curve"][0]["hit_rate"], 0, 0.01) << "5.6 MiB raw do not fit";
  EXPECT_NEAR(plan["curve"][1]["hit_rate"], again, 0.01);
  EXPECT_NEAR(plan["recipes"][1]["curve"][0]["hit_rate"], again, 0.01);
  run = RunPlan(silent);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("(budget)"), HasSubstr("measured"), HasSubstr("modelled")));
}

TEST(Plan, TextSaysWhereFiguresComeFromAndAPlotIsDrawn) {
  const TempDir folder;
  const Finished run =
      RunPlan({"--model", "smollm2-135m", "--profile",
               "sessions=50,turns=4,shared=600,prompt=300,rate=1,output=100", "--ram", "1GiB",
               "--prefill-tps", "5000", "--plot", folder.path("curve.svg")});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("published"), HasSubstr("measured"), HasSubstr("given"),
                             HasSubstr("modelled"), HasSubstr("█"), HasSubstr("BREAK-EVEN LINK")));
  std::ifstream plot(folder.path("curve.svg"));
  std::stringstream svg;
  svg << plot.rdbuf();
  EXPECT_THAT(svg.str(), AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), HasSubstr("int8")));
}

TEST(Plan, WrongFlagsAreWrongUse) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"--model", "llama-3.1-8b", "--tp", "0"},
      {"--model", "llama-3.1-8b", "--link", "0GB/s"},
      {"--model", "llama-3.1-8b", "--ram", "lots"},
      {"--model", "llama-3.1-8b", "--trace", kTrace, "--size", "12parsecs"},
      {"--model", "llama-3.1-8b", "--trace", kTrace, "--size", "0"},
      {"--model", "llama-3.1-8b", "--prefill-tps", "0"},
      {"--model", "llama-3.1-8b", "--target-hit", "101"},
      {"--model", "llama-3.1-8b", "--trace", kTrace, "--profile", "sessions=1"},
      {"--model", "llama-3.1-8b", "--nodes", "0"},
      {"--model", "llama-3.1-8b", "--remote", "1TiB"},
      {"--model", "llama-3.1-8b", "--routing", "random"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--routing", "near"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--remote", "much"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--remote-bandwidth", "fast"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--remote-price", "0"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--values", "0"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--loads", "0"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--redis-memory", "0"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--redis-fill", "101"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--redis-bandwidth", "0"},
      {"--model", "llama-3.1-8b", "--nodes", "2", "--redis-commands", "0"},
      {"--server", "127.0.0.1:1", "--nodes", "2"},
      {"--server", "127.0.0.1:1", "--model", "llama-3.1-8b"},
      {"--server", "127.0.0.1:1", "--trace", kTrace},
      {"--server", "127.0.0.1:1", "--profile", "sessions=1"},
      {"--server", "127.0.0.1:1", "--tp", "2"},
      {"--server", "127.0.0.1:1", "--plot", "curve.svg"},
      {"--server", "127.0.0.1:1", "--ram", "1GiB"},
      {"--server", "127.0.0.1:1", "--disk-price", "1"},
      {"--server", "127.0.0.1:1", "--prompt", "100"},
      {"--server", "127.0.0.1:1", "--target-hit", "10"}};
  for (const auto& arguments : wrong) {
    const Finished run = RunPlan(arguments);
    EXPECT_EQ(run.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_FALSE(run.err.empty()) << testing::PrintToString(arguments);
  }
}

TEST(Plan, BadInputNamesFileLineAndField) {
  const TempDir folder;
  std::ofstream(folder.path("config.json"))
      << R"({"model_type": "llama", "torch_dtype": "float16"})";
  std::ofstream(folder.path("trace.jsonl"))
      << R"({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]})"
      << "\n"
      << R"({"timestamp": 1, "input_length": 5, "hash_ids": [0]})"
      << "\n";
  std::ofstream(folder.path("empty.jsonl"));
  const std::string model = "llama-3.1-8b";
  const std::pair<std::vector<std::string>, std::vector<std::string>> bad[] = {
      {{"--model", folder.path()}, {folder.path("config.json"), "num_hidden_layers"}},
      {{"--model", "gpt-6"}, {"gpt-6", "llama-3.1-8b"}},
      {{"--model", model, "--trace", folder.path("trace.jsonl")}, {"line 2", "output_length"}},
      {{"--model", model, "--trace", folder.path("empty.jsonl")}, {"empty.jsonl", "no requests"}},
      {{"--model", model, "--trace", "/nowhere.jsonl"}, {"/nowhere.jsonl"}},
      {{"--model", model, "--profile", "sessions=1"}, {"turns is missing"}},
      {{"--model", model, "--recipe", "kvstow"}, {"kvstow=RATIO"}},
      {{"--model", model, "--tp", "3"}, {"3", "8 KV heads"}},
      {{"--model", model, "--ram", "1GiB"}, {"--trace"}},
      {{"--model", model, "--size", "1GiB"}, {"--size", "--trace"}},
      {{"--model", model, "--plot", folder.path("curve.svg")}, {"--plot", "--trace"}},
      {{"--model", model, "--trace", kTrace, "--target-hit", "5", "--disk-price", "1"},
       {"--ram-price"}},
      {{"--model", model, "--nodes", "2"}, {"--nodes", "--trace"}},
      {{"--model", model, "--nodes", "2", "--trace", kTrace}, {"--nodes", "--ram"}},
      {{"--model", model, "--nodes", "5", "--loads", "2", "--ram", "1GiB", "--trace", kTrace},
       {"--loads 2", "--nodes 5"}},
      {{"--server", "127.0.0.1:1"}, {"127.0.0.1:1"}},
      {{"--model", model, "--trace", kTrace, "--plot", "/nowhere/x.svg"}, {"/nowhere/x.svg"}}};
  for (const auto& [arguments, words] : bad) {
    const Finished run = RunPlan(arguments);
    EXPECT_EQ(run.exit_code, 1) << testing::PrintToString(arguments);
    for (const std::string& word : words) EXPECT_THAT(run.err, HasSubstr(word));
  }
}

}  // namespace
}  // namespace kvstow
