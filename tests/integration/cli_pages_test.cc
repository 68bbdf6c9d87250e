// The command line: what it shows of stored pages.
#include "kernels/page/convert.h"
#include "tests/client/fake_server.h"
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

TEST_F(CliServer, ADroppedSpaceIsGoneForAllAndItsNameIsFree) {
  const std::vector<std::string> put = {"put", "--space",       "s",  "--recipe",
                                        "raw", "--page-tokens", "64", kCase};
  ASSERT_EQ(Run(put).exit_code, 0);
  ASSERT_EQ(Run({"pin", "--space", "s", kCase}).exit_code, 0);
  const Json dropped = RunJson({"drop", "--space", "s"});
  EXPECT_TRUE(dropped["dropped"].get<bool>());
  EXPECT_EQ(dropped["pages"], 4) << "pinned pages go too";
  EXPECT_EQ(Run({"get", "--space", "s", kCase, out_}).exit_code, 3);
  const Finished again = Run({"drop", "--space", "s"});
  EXPECT_EQ(again.exit_code, 3);
  EXPECT_THAT(again.out, HasSubstr("`kvstow spaces` lists them"));
  std::vector<std::string> other = put;
  other[4] = "int8";
  EXPECT_EQ(Run(other).exit_code, 0) << "another recipe may have the name";
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

// A server that was sent the queries of the case makes the same as codec roundtrip does with
// them.
TEST_F(CliServer, StatisticsOfQueriesGoWithThePutOrAheadOfIt) {
  const std::string recipe = "expected-attention(keep=0.5)|int8", blob = dir_.path("q.kvcal");
  RunJson(
      {"codec", "roundtrip", "--recipe", recipe, "--page-tokens", "64", kCase, dir_.path("local")});
  const Json made = RunJson({"codec", "calibrate", "--recipe", recipe, "--out", blob, kCase});
  const std::vector<std::string> put = {"put",    "--space",  "s",    "--fidelity",
                                        "sparse", "--recipe", recipe, "--page-tokens",
                                        "64",     kCase};
  std::vector<std::string> with_queries = put;
  with_queries.push_back("--queries");
  const auto expect_local = [&] {
    ASSERT_EQ(Run({"get", "--space", "s", kCase, out_}).exit_code, 0);
    const auto want = SafetensorsReader::Open(dir_.path("local"));
    const auto have = SafetensorsReader::Open(out_);
    ASSERT_TRUE(want.ok() && have.ok());
    ASSERT_EQ(have->tensors().size(), 90u) << "K, V and what was kept of 30 layers";
    for (const auto& [name, tensor] : have->tensors()) {
      const auto local = want->Find(name);
      ASSERT_TRUE(local.ok()) << name;
      EXPECT_TRUE(std::ranges::equal(want->Data(*local), have->Data(tensor))) << name;
    }
  };
  const Finished without = Run(put);
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("kvstow codec send"));
  ASSERT_EQ(Run(with_queries).exit_code, 0);
  expect_local();
  const Json sent = RunJson({"codec", "send", blob});
  EXPECT_EQ(sent["calibration"], made["calibration"]);
  EXPECT_EQ(Run({"codec", "send", kCase}).exit_code, 1) << "no calibration";
  const Finished statistics = Run({"codec", "send", "--space", "nowhere", blob});
  EXPECT_EQ(statistics.exit_code, 1);
  EXPECT_THAT(statistics.err, HasSubstr("there is no space 'nowhere'"));
  daemon_.Kill();
  daemon_.Start();
  EXPECT_EQ(Run(with_queries).exit_code, 0) << "the same statistics";
  EXPECT_EQ(Run(put).exit_code, 0) << "the space's own";
  expect_local();
}

TEST_F(CliServer, SummariesSpanTheKeysOfEachPage) {
  ASSERT_EQ(
      Run({"put", "--space", "s", "--recipe", "raw", "--page-tokens", "100", kCase}).exit_code, 0);
  const Json got = RunJson({"summaries", "--space", "s", kCase, out_});
  EXPECT_EQ(got["hit_tokens"], 256);
  EXPECT_EQ(got["hit_pages"], 3);
  EXPECT_EQ(got["bytes"], 3 * 2 * 30 * 3 * 64 * 4);
  const auto whole = SafetensorsReader::Open(kCase), spans = SafetensorsReader::Open(out_);
  ASSERT_TRUE(whole.ok() && spans.ok());
  EXPECT_EQ(spans->tensors().size(), 60u);
  const auto floats = [&](const std::string& name) {
    const Tensor tensor = *spans->Find(name);
    EXPECT_EQ(tensor.shape, (std::vector<uint64_t>{3, 3, 64}));
    std::vector<float> out(tensor.bytes / sizeof(float));
    std::memcpy(out.data(), spans->Data(tensor).data(), tensor.bytes);
    return out;
  };
  const std::vector<float> least = floats("k_min.7"), largest = floats("k_max.7");
  const Tensor k = *whole->Find("k.7");
  ASSERT_EQ(k.dtype, "F16");
  std::vector<float> keys(256 * 3 * 64);
  ASSERT_TRUE(LoadFloats(DType::kF16, whole->Data(k).data(), keys.size(), keys.data()));
  for (size_t i = 0; i < least.size(); ++i) {
    const size_t page = i / 192, end = std::min<size_t>(256, 100 * (page + 1));
    float low = keys[100 * page * 192 + i % 192], high = low;
    for (size_t t = 100 * page; t < end; ++t) {
      low = std::min(low, keys[t * 192 + i % 192]);
      high = std::max(high, keys[t * 192 + i % 192]);
    }
    ASSERT_EQ(least[i], low);
    ASSERT_EQ(largest[i], high);
  }
  EXPECT_EQ(Run({"summaries", "--space", "nowhere", kCase, out_}).exit_code, 3);
  ASSERT_EQ(Run({"del", "--space", "s", kCase}).exit_code, 0);
  EXPECT_EQ(Run({"summaries", "--space", "s", kCase, out_}).exit_code, 3);
}

TEST(CliGet, APageThatFailsIsNoMiss) {
  const TempDir dir;
  const std::string out = dir.path("out.safetensors");
  const auto server = StartFakeServer("127.0.0.1:0");
  const auto run = [&](const std::vector<std::string>& arguments) {
    return RunKvstow(arguments, {"KVSTOW_SERVER=" + server->address()});
  };
  const std::vector<std::string> get = {"get", "--space", "s", kCase, out};
  ASSERT_EQ(run({"put", "--space", "s", "--page-tokens", "64", kCase}).exit_code, 0);
  server->faults().flip_a_bit = true;
  const Finished corrupt = run(get);
  EXPECT_EQ(corrupt.exit_code, 1);
  EXPECT_THAT(corrupt.out, testing::AllOf(HasSubstr("failed: this prompt is stored in 's'"),
                                          HasSubstr("stopped at CORRUPT")));
  server->faults().flip_a_bit = false;
  server->faults().shift_chunks = true;
  const Finished unavailable = run(get);
  EXPECT_EQ(unavailable.exit_code, 1);
  EXPECT_THAT(unavailable.out, HasSubstr("stopped at UNAVAILABLE"));
  server->faults().shift_chunks = false;
  EXPECT_EQ(run({"summaries", "--space", "s", kCase, out}).exit_code, 1) << "it sends whole pages";
  EXPECT_EQ(run(get).exit_code, 0);
  EXPECT_EQ(run({"del", "--space", "s", kCase}).exit_code, 0);
  EXPECT_EQ(run(get).exit_code, 3);
}

TEST(CliDrain, TheCallLastsAsLongAsTheGrace) {
  const auto server = StartFakeServer("127.0.0.1:0");
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--grace", "3600"}, {"--grace", "30", "--timeout", "20"}, {"--timeout", "1000"}}) {
    std::vector<std::string> drain = {"drain", "--server", server->address()};
    drain.insert(drain.end(), flags.begin(), flags.end());
    const Finished run = RunKvstow(drain);
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

TEST_F(CliServer, TopTellsWhatIsHeldAndWhatFailed) {
  RunJson({"put", "--space", "s", "--recipe", "raw", kCase});
  RunJson({"get", "--space", "s", kCase, out_});
  RunJson({"stats", "--space", "\033[2Jgone"}, 1);
  const Json top = RunJson({"top", "--once"});
  EXPECT_TRUE(top["ready"]);
  EXPECT_EQ(top["raw_bytes"], kRawBytes);
  ASSERT_EQ(top["spaces"].size(), 1u);
  EXPECT_EQ(top["spaces"][0]["space"], "s");
  EXPECT_GE(top["spaces"][0]["lookup_hit_keys"], 1);
  EXPECT_EQ(top["tiers"].size(), 3u);
  ASSERT_EQ(top["failing"].size(), 1u);
  EXPECT_EQ(top["failing"][0]["method"], "Usage");
  EXPECT_EQ(top["failing"][0]["code"], "NOT_FOUND");
  EXPECT_TRUE(top["intervals"].is_array());
  EXPECT_TRUE(top["load"].is_object());
  const Finished text = Run({"top", "--once"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, testing::HasSubstr("FAILING CALLS"));
  EXPECT_THAT(text.out, testing::Not(testing::HasSubstr("gone"))) << "no space can be called that";
  EXPECT_EQ(text.out.find('\033'), std::string::npos) << "a name moves the cursor";
}

TEST(CliTop, AWayOfPagesThatTheServerLacksIsNoFailure) {
  const Daemon daemon("127.0.0.1:0", {"--direct-listen", "off", "--host-bytes", "64MiB"});
  const std::vector<std::string> server = {"KVSTOW_SERVER=" + daemon.address()};
  ASSERT_EQ(RunKvstow({"put", "--space", "s", "--recipe", "raw", kCase}, server).exit_code, 0);
  const Json top = ParseLine(RunKvstow({"top", "--once", "--format", "json"}, server));
  EXPECT_EQ(top["failing"].size(), 0u) << top["failing"];
}

}  // namespace
}  // namespace kvstow
