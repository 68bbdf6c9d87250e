// The command line: recipes on a case, calibrations, and what they make of it.
#include <filesystem>
#include <fstream>

#include "kernels/calibration/model_stats.h"
#include "tests/integration/cli_server.h"

namespace kvstow {
namespace {

using testing::HasSubstr;

TEST(CliCodec, CodecListHasEveryPreset) {
  const Finished text = RunKvstow({"codec", "list"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("NAME"));
  const Json json = ParseLine(RunKvstow({"codec", "list", "--format", "json"}));
  std::map<std::string, Json> presets;
  for (const Json& p : json["presets"]) presets[p["name"]] = p;
  ASSERT_TRUE(presets.contains("raw") && presets.contains("int8"));
  EXPECT_NEAR(presets["raw"]["bits_per_value"], 16.0, 0.05);
  EXPECT_NEAR(presets["int8"]["bits_per_value"], 8.5, 0.05);
  for (const auto& [name, preset] : presets) {
    // The levels of a recipe with a calibration are not known without the blob.
    EXPECT_EQ(preset["levels"] == 0, preset["needs"] == "calibration") << name;
    EXPECT_FALSE(preset["summary"].get<std::string>().empty()) << name;
  }
}

TEST(CliCodec, ACalibrationIsMadeFromACaseAndUsedOnOne) {
  const TempDir dir;
  const std::string blob = dir.path("model.kvcal");
  const Json made =
      ParseLine(RunKvstow({"codec", "calibrate", "--recipe", "kvstow-cal(run=1,step=2)", "--out",
                           blob, "--format", "json", kCase}));
  EXPECT_EQ(made["tokens"], 256);
  EXPECT_EQ(made["layers_per_run"], 1);
  EXPECT_EQ(made["values_per_token"], 30 * 3 * 128);
  EXPECT_LE(made["components"], made["values_per_token"]);
  EXPECT_EQ(made["calibration"].get<std::string>().size(), 32);
  const Json json =
      ParseLine(RunKvstow({"codec", "roundtrip", "--recipe", "kvstow-cal(run=1,step=2)",
                           "--calibration", blob, "--format", "json", kCase, dir.path("out")}));
  EXPECT_GT(json["ratio"], 8);
  EXPECT_LT(json["k_error"], 0.3);
  const Finished without = RunKvstow(
      {"codec", "roundtrip", "--recipe", "kvstow-cal(run=1,step=2)", kCase, dir.path("out")});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err, HasSubstr("kvstow codec calibrate"));
  EXPECT_EQ(RunKvstow({"codec", "roundtrip", "--recipe", "kvstow-cal(run=2)", "--calibration",
                       kCase, kCase, dir.path("out")})
                .exit_code,
            1);
  EXPECT_EQ(RunKvstow({"codec", "calibrate", "--recipe", "int8", "--out", blob, kCase}).exit_code,
            2);
}

// A model that feels K of the first head alone: all else takes fewer components.
TEST(CliCodec, StatisticsOfAModelShapeACalibration) {
  const TempDir dir;
  KvSpec spec{.layers = 30, .kv_heads = 3, .head_dim_k = 64, .head_dim_v = 64};
  spec.dtype = DType::kF16;
  spec.page_tokens = 64;
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 100000};
  ModelStats stats;
  for (uint32_t head = 0; head < 90; ++head) {
    stats.gain_k.push_back(head % 3 == 0 ? 0.1f : 1e-4f);
    stats.gain_v.push_back(1e-4f);
    for (uint32_t i = 0; i < 64 * 64; ++i) stats.metric_k.push_back(i % 65 == 0 ? 1 : 0);
  }
  stats.metric_v = stats.metric_k;
  const std::string file = dir.path("model.kvstats"), blob = dir.path("model.kvcal");
  std::ofstream(file, std::ios::binary) << StatsCalibration(spec, stats).value();
  const Json made = ParseLine(RunKvstow({"codec", "calibrate", "--recipe", "kvstow-cal", "--out",
                                         blob, "--model-stats", file, "--format", "json", kCase}));
  EXPECT_LT(made["components"], 30 * 70) << "of one head of six in each layer";
  const std::string plain = dir.path("plain.kvcal");
  EXPECT_EQ(
      RunKvstow({"codec", "calibrate", "--recipe", "kvstow-cal", "--out", plain, kCase}).exit_code,
      0);
  const Finished wrong = RunKvstow({"codec", "calibrate", "--recipe", "kvstow-cal", "--out",
                                    dir.path("other"), "--model-stats", plain, kCase});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("these are no statistics of a model"));
}

TEST(CliCodec, ACalibratedSpaceGivesWhatTheLocalCodecGives) {
  const TempDir dir;
  const std::string blob = dir.path("calibrations/model.kvcal"), out = dir.path("out");
  std::filesystem::create_directory(dir.path("calibrations"));
  const std::string recipe = "kvstow-cal(run=1,step=2)";
  ParseLine(RunKvstow(
      {"codec", "calibrate", "--recipe", recipe, "--out", blob, "--format", "json", kCase}));
  ParseLine(RunKvstow({"codec", "roundtrip", "--recipe", recipe, "--calibration", blob, "--format",
                       "json", kCase, dir.path("local")}));
  Daemon daemon("127.0.0.1:0", {"--disk-path", dir.path("disk"), "--host-bytes", "64MiB",
                                "--calibrations", dir.path("calibrations")});
  const auto run = [&](std::vector<std::string> arguments) {
    return RunKvstow(arguments, {"KVSTOW_SERVER=" + daemon.address()});
  };
  ASSERT_EQ(run({"put", "--space", "s", "--recipe", recipe, kCase}).exit_code, 0);
  ASSERT_EQ(run({"get", "--space", "s", kCase, out}).exit_code, 0);
  ExpectSameCase(out, dir.path("local"), 256);
  daemon.Kill();
  daemon.Start();
  const std::vector<std::string> encoded = {"get", "--space", "s", "--payload", "encoded", kCase};
  std::vector<std::string> with = encoded, without = encoded;
  with.insert(with.end(), {dir.path("decoded"), "--calibration", blob});
  const Finished here = run(with);
  ASSERT_EQ(here.exit_code, 0) << here.err;
  ExpectSameCase(dir.path("decoded"), dir.path("local"), 256);
  without.push_back(dir.path("none"));
  const Finished raw = run(without);  // who cannot decode the page gets it raw
  EXPECT_EQ(raw.exit_code, 0) << raw.err;
  ExpectSameCase(dir.path("none"), dir.path("local"), 256);

  std::filesystem::remove(blob);
  daemon.Kill();
  daemon.Start();
  const Finished lost = run({"get", "--space", "s", kCase, out});
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_THAT(lost.err, HasSubstr("put it into the server's folder"));
}

TEST_F(CliServer, ACalibrationIsMadeFromThePagesOfASpace) {
  const std::string blob = dir_.path("model.kvcal"), recipe = "kvstow-cal(run=1,step=2)";
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "raw", "--page-tokens", "64", kCase}).exit_code,
            0);
  const Json made =
      RunJson({"codec", "calibrate", "--recipe", recipe, "--out", blob, "--space", "s"});
  EXPECT_EQ(made["pages"], 4);
  EXPECT_EQ(made["tokens"], 256);
  const Json coded = RunJson(
      {"codec", "roundtrip", "--recipe", recipe, "--calibration", blob, kCase, dir_.path("out")});
  EXPECT_GT(coded["ratio"], 8);
  EXPECT_LT(coded["k_error"], 0.3);
  EXPECT_EQ(RunJson({"codec", "calibrate", "--recipe", recipe, "--out", blob, "--space", "s",
                     "--max-pages", "2"})["tokens"],
            128);
  EXPECT_EQ(
      Run({"codec", "calibrate", "--recipe", recipe, "--out", blob, "--space", "none"}).exit_code,
      1);
  EXPECT_EQ(Run({"codec", "calibrate", "--recipe", recipe, "--out", blob}).exit_code, 2);
}

TEST(CliCodec, RoundtripOfRawIsTheCaseItself) {
  const TempDir dir;
  const std::string out = dir.path("out.safetensors");
  const Json json = ParseLine(RunKvstow({"codec", "roundtrip", "--recipe", "raw", "--page-tokens",
                                         "100", "--format", "json", kCase, out}));
  EXPECT_EQ(json["raw_bytes"], kRawBytes);
  EXPECT_EQ(json["pages"], 3);
  EXPECT_EQ(json["k_error"], 0);
  EXPECT_EQ(json["v_error"], 0);
  EXPECT_GT(json["stored_bytes"], kRawBytes) << "headers count";
  EXPECT_LT(json["stored_bytes"], kRawBytes * 1.01);
  ExpectSameCase(out, kCase, 256);
}

TEST(CliCodec, RoundtripOfFewerLevelsIsSmallerAndWorse) {
  const TempDir dir;
  std::vector<Json> by_levels;
  for (const char* levels : {"1", "2", "0"}) {
    by_levels.push_back(
        ParseLine(RunKvstow({"codec", "roundtrip", "--recipe", "rotated8", "--max-levels", levels,
                             "--format", "json", kCase, dir.path("out")})));
  }
  for (size_t i = 1; i < by_levels.size(); ++i) {
    EXPECT_GT(by_levels[i]["stored_bytes"], by_levels[i - 1]["stored_bytes"]);
    EXPECT_LT(by_levels[i]["k_error"], by_levels[i - 1]["k_error"]);
    EXPECT_LT(by_levels[i]["v_error"], by_levels[i - 1]["v_error"]);
  }
  const auto written = SafetensorsReader::Open(dir.path("out"));
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->metadata().at("stored_bytes"),
            std::to_string(by_levels[2]["stored_bytes"].get<uint64_t>()));
}

TEST(CliCodec, RoundtripFollowsTargets) {
  const TempDir dir;
  const auto run = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"codec", "roundtrip", "--format", "json", "--recipe"});
    flags.insert(flags.end(), {kCase, dir.path("out")});
    return RunKvstow(flags);
  };
  EXPECT_NEAR(ParseLine(run({"kvstow", "--target-ratio", "8"}))["ratio"], 8, 0.1);
  const double close = ParseLine(run({"kvstow", "--max-error", "0.005"}))["v_error"];
  EXPECT_LT(close, 0.15);
  EXPECT_GT(ParseLine(run({"kvstow", "--max-error", "0.05"}))["v_error"], 2 * close);
  const Json quarter = ParseLine(run({"random-tokens|int8", "--keep", "0.25"}));
  EXPECT_NEAR(quarter["ratio"], 4 * 1.88, 0.5);
  EXPECT_THAT(quarter["pipeline"], HasSubstr("keep=0.25"));

  const auto refused = [&](std::vector<std::string> flags) {
    const Finished finished = run(std::move(flags));
    EXPECT_EQ(finished.exit_code, 2) << finished.err;
    return finished.err;
  };
  EXPECT_THAT(refused({"int8", "--target-ratio", "3"}), HasSubstr("has no step"));
  EXPECT_THAT(refused({"int8", "--keep", "0.5"}), HasSubstr("keeps every token"));
  EXPECT_THAT(refused({"int8", "--attention", "sum"}),
              HasSubstr("the flag is for kvstow, kvstow-cal and recipes whose policy reads"));
  EXPECT_THAT(refused({"snapkv|int8", "--attention", "sum"}), HasSubstr("reads attn_window"));
  EXPECT_THAT(refused({"kvstow", "--attention", "all"}), HasSubstr("--attention"));
  refused({"kvstow", "--target-ratio", "8", "--max-error", "0.1"});
}

}  // namespace
}  // namespace kvstow
