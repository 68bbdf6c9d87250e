// The command line: exit codes, JSON, help, and a case's way to the server and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/integration/cli_server.h"
#include "tests/paths.h"
#include "tests/proto/certificates.h"

namespace kvstow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNobody[] = "127.0.0.1:1";

// Verbs that ask a server, and what they need beside its address.
const std::map<std::string, std::vector<std::string>> kAsking = {
    {"bench", {}},
    {"budget", {"--tier", "host", "1GiB"}},
    {"del", {"--space", "s", kCase}},
    {"drain", {}},
    {"drop", {"--space", "s"}},
    {"evict", {"--tier", "host"}},
    {"exists", {"--space", "s", kCase}},
    {"flush", {}},
    {"get", {"--space", "s", kCase, "never-written"}},
    {"pin", {"--space", "s", kCase}},
    {"ping", {}},
    {"put", {"--space", "s", kCase}},
    {"replay", {TestsPath("data/mooncake_conversation_1000.jsonl.gz")}},
    {"quota", {}},
    {"report", {"--space", "s", kCase}},
    {"spaces", {}},
    {"stats", {}},
    {"status", {}},
    {"summaries", {"--space", "s", kCase, "never-written"}},
    {"top", {}},
    {"unpin", {"--space", "s", kCase}},
    {"verify", {}}};
const std::vector<std::string> kOffline = {"codec", "doctor", "plan", "simulate", "tenant"};

// The verbs that --help lists below `arguments`.
std::vector<std::string> VerbsBelow(std::vector<std::string> arguments) {
  arguments.push_back("--help");
  std::istringstream help(RunKvstow(arguments).out);
  std::vector<std::string> verbs;
  std::string line;
  while (std::getline(help, line) && line != "Subcommands:") continue;
  while (std::getline(help, line) && line.starts_with("  ")) {
    verbs.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return verbs;
}

TEST(Cli, TheseTestsKnowEveryVerb) {
  std::vector<std::string> known = kOffline;
  for (const auto& [verb, arguments] : kAsking) known.push_back(verb);
  EXPECT_THAT(VerbsBelow({}), ::testing::UnorderedElementsAreArray(known));
}

TEST(Cli, EveryVerbHasHelpWithExamples) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const std::string& verb : VerbsBelow({})) {
    all.push_back({verb});
    for (const std::string& below : VerbsBelow({verb})) all.push_back({verb, below});
  }
  EXPECT_GT(all.size(), 1 + kAsking.size() + kOffline.size());
  for (auto arguments : all) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    arguments.push_back("--help");
    const Finished run = RunKvstow(arguments);
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_THAT(run.out, HasSubstr("Examples:"));
  }
  EXPECT_EQ(RunKvstow({"--version"}).exit_code, 0);
}

TEST(Cli, WrongUseIsTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"nosuch"},
      {"codec"},
      {"put", kCase},
      {"put", "--space", "s"},
      {"get", "--space", "s", kCase},
      {"ping", "--format", "xml"},
      {"ping", "--nosuch"},
      {"put", "--space", "s", "--page-tokens", "0", kCase},
      {"put", "--space", "s", "--fidelity", "perfect", kCase},
      {"put", "--space", "s", "--attention", "much", kCase},
      {"evict"},
      {"evict", "--tier", "tape"},
      {"evict", "--tier", "host", "--to", "lots"},
      {"budget", "--tier", "host"},
      {"budget", "--tier", "host", "lots"},
      {"bench", "--head-dim", "4096"},
      {"plan", "--model", "llama-3.1-8b", "--nodes", "many"},
      {"simulate"},
      {"simulate", "--nodes", "2", "--routing", "near", kCase},
      {"simulate", "--capacity-bits", "8", kCase},
      {"codec", "roundtrip", "--recipe", "nosuch", kCase, "out"}};
  for (const auto& arguments : wrong) {
    const Finished run = RunKvstow(arguments);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_FALSE(run.err.empty()) << ::testing::PrintToString(arguments);
  }
}

TEST(Cli, AFlagThatIsNotThereIsNamed) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } kCases[] = {
      {{"get", "--space", "s", kCase, "out", "--page-tokens", "16"},
       "there is no flag --page-tokens: `kvstow get --help` lists them"},
      {{"put", "--spce=s", kCase}, "there is no flag --spce: `kvstow put --help` lists them"},
      {{"codec", "list", "-x"}, "there is no flag -x: `kvstow codec list --help` lists them"},
      {{"--server", kNobody, "ping"}, "there is no flag --server before a verb"},
      {{"put", kCase}, "--space is required"},
  };
  for (const auto& c : kCases) {
    const Finished run = RunKvstow(c.arguments);
    EXPECT_EQ(run.exit_code, 2) << c.says;
    EXPECT_THAT(run.err, HasSubstr(c.says));
  }
}

TEST(Cli, NoServerIsOneAndSaysWhatToDo) {
  for (const auto& [verb, more] : kAsking) {
    std::vector<std::string> arguments = {verb, "--server", kNobody, "--format", "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = RunKvstow(arguments);
    EXPECT_EQ(run.exit_code, 1) << verb;
    EXPECT_THAT(run.err, HasSubstr("cannot reach 127.0.0.1:1: is kvstowd running?")) << verb;
    EXPECT_THAT(ParseLine(run)["error"].get<std::string>(), HasSubstr("cannot reach")) << verb;
  }
}

TEST_F(CliServer, TheDoctorLooksAtServerMachineAndDisk) {
  const Json seen = RunJson({"doctor"});
  EXPECT_EQ(seen["wrong"], 0) << seen;
  std::set<std::string> subjects;
  for (const Json& finding : seen["findings"]) subjects.insert(finding["subject"]);
  EXPECT_THAT(subjects, ::testing::IsSupersetOf({"server", "memory", "listeners", "disk speed"}));
  EXPECT_THAT(Run({"doctor", "--no-disk"}).out, HasSubstr("it was not measured"));
  // A server that does not answer: its file tells what it would do.
  const std::string config = dir_.path("kvstowd.conf");
  std::ofstream(config) << "host-bytes = \"100TiB\"\ndisk-path = \"" << dir_.path("none") << "\"\n";
  const Finished dead = RunKvstow({"doctor", "--server", kNobody, "--config", config});
  EXPECT_EQ(dead.exit_code, 1);
  EXPECT_THAT(dead.out, AllOf(HasSubstr("is kvstowd running?"), HasSubstr("lower host-bytes")));
}

TEST(Cli, FilesThatAreNoCasesAreNamed) {
  const TempDir dir;
  const Finished missing =
      RunKvstow({"codec", "roundtrip", "--recipe", "raw", dir.path("no-such"), dir.path("out")});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("no-such"));
  const Finished program =
      RunKvstow({"codec", "roundtrip", "--recipe", "raw", ProgramPath("kvstow"), dir.path("out")});
  EXPECT_EQ(program.exit_code, 1);
  EXPECT_THAT(program.err, HasSubstr("no whole safetensors file"));
}

TEST_F(CliServer, ACaseGoesInComesBackAndGoes) {
  const Json put =
      RunJson({"put", "--space", "s", "--recipe", "raw", "--page-tokens", "100", kCase});
  EXPECT_EQ(put["pages"], 3);
  EXPECT_EQ(put["stored"], 3);
  EXPECT_EQ(put["already_there"], 0);
  EXPECT_EQ(put["raw_bytes"], kRawBytes);
  EXPECT_GE(put["stored_bytes"], kRawBytes);
  const Json again = RunJson({"put", "--space", "s", kCase});
  EXPECT_EQ(again["already_there"], 3) << "the space's own page size and recipe";

  const Json exists = RunJson({"exists", "--space", "s", kCase});
  EXPECT_EQ(exists["hit_tokens"], 256);
  EXPECT_EQ(exists["hit_pages"], 3);
  const Json get = RunJson({"get", "--space", "s", kCase, out_});
  EXPECT_EQ(get["hit_tokens"], 256);
  EXPECT_EQ(get["stored_bytes"], put["stored_bytes"]);
  uint64_t pages = 0;
  for (const auto& [tier, n] : get["tiers"].items()) pages += n.get<uint64_t>();
  EXPECT_EQ(pages, 3u);
  ExpectSameCase(out_, kCase, 256);

  EXPECT_EQ(RunJson({"pin", "--space", "s", kCase})["pinned"], 3);
  EXPECT_EQ(RunJson({"unpin", "--space", "s", kCase})["unpinned"], 3);
  EXPECT_EQ(RunJson({"del", "--space", "s", kCase})["deleted"], 3);
  EXPECT_EQ(RunJson({"exists", "--space", "s", kCase}, 3)["hit_pages"], 0);
  EXPECT_EQ(RunJson({"get", "--space", "s", kCase, dir_.path("none")}, 3)["hit_pages"], 0);
  EXPECT_FALSE(std::filesystem::exists(dir_.path("none")));
  EXPECT_EQ(RunJson({"del", "--space", "s", kCase}, 3)["deleted"], 0);
}

TEST_F(CliServer, AcknowledgedPagesSurviveSigkill) {
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "raw", kCase}).exit_code, 0);
  daemon_.Kill();
  daemon_.Start();
  EXPECT_EQ(RunJson({"status"})["recovered_pages"], 1);
  EXPECT_EQ(RunJson({"get", "--space", "s", kCase, out_})["hit_tokens"], 256);
  ExpectSameCase(out_, kCase, 256);
  EXPECT_EQ(daemon_.Terminate(), 0) << "SIGTERM ends it cleanly";
}

TEST_F(CliServer, WhatLeavesTheHostComesBackFromDisk) {
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "int8", kCase}).exit_code, 0);
  EXPECT_TRUE(RunJson({"flush"})["flushed"]);
  const Json evicted = RunJson({"evict", "--tier", "host", "--to", "0"});
  EXPECT_EQ(evicted["tier"], "host");
  EXPECT_EQ(evicted["encoded_bytes"], 0);
  EXPECT_EQ(RunJson({"exists", "--space", "s", kCase})["tiers"]["disk"], 1);
  EXPECT_EQ(RunJson({"budget", "--tier", "host", "123MiB"})["budget_bytes"], 123 << 20);
  const Json verify = RunJson({"verify"});
  EXPECT_EQ(verify["pages"], 1);
  EXPECT_EQ(verify["corrupt_pages"], 0);
  EXPECT_GT(verify["bytes"], 0);
  EXPECT_EQ(RunJson({"get", "--space", "s", kCase, out_})["hit_tokens"], 256);
}

TEST_F(CliServer, WhatItIsAndWhatItHolds) {
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "int8", kCase}).exit_code, 0);
  const Json ping = RunJson({"ping"});
  EXPECT_TRUE(ping["ready"]);
  EXPECT_EQ(ping["server"], daemon_.address());
  const Json status = RunJson({"status"});
  EXPECT_FALSE(status["version"].get<std::string>().empty());
  EXPECT_EQ(status["config"]["disk-path"], dir_.path("disk"));
  const Json stats = RunJson({"stats"});
  EXPECT_EQ(stats["pages"], 1);
  EXPECT_EQ(stats["raw_bytes"], kRawBytes);
  EXPECT_LT(stats["encoded_bytes"], kRawBytes);
  const Json spaces = RunJson({"spaces"});
  ASSERT_EQ(spaces["spaces"].size(), 1u);
  EXPECT_EQ(spaces["spaces"][0]["space"], "s");
  EXPECT_EQ(spaces["spaces"][0]["page_tokens"], 256);
  for (const char* verb : {"ping", "status", "stats", "spaces"}) {
    const Finished text = Run({verb});
    EXPECT_EQ(text.exit_code, 0) << verb;
    EXPECT_FALSE(text.out.empty()) << verb;
  }
}

TEST_F(CliServer, BudgetsAndCountersAreTheServersNotASpaces) {
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "int8", kCase}).exit_code, 0);
  EXPECT_EQ(RunJson({"stats"})["tiers"][1]["budget_bytes"], 64 << 20);
  EXPECT_THAT(Run({"stats"}).out, HasSubstr("64.0 MiB"));
  EXPECT_FALSE(RunJson({"stats", "--space", "s"})["tiers"][1].contains("budget_bytes"));
  EXPECT_THAT(
      Run({"stats", "--space", "s"}).out,
      AllOf(HasSubstr("  -     -  5.62 MiB"), HasSubstr("\nthe whole server since its start")));
}

TEST_F(CliServer, ADrainedServerSaysSo) {
  EXPECT_THAT(Run({"drain"}).out, HasSubstr("everything is on disk\n"));
  const Finished ping = Run({"ping"});
  EXPECT_EQ(ping.exit_code, 1);
  EXPECT_THAT(ping.out, AllOf(HasSubstr("not ready"), HasSubstr("`kvstow drain --resume`")));
  EXPECT_THAT(Run({"doctor", "--no-disk"}).out, HasSubstr("`kvstow drain --resume`"));
  EXPECT_EQ(Run({"drain", "--resume"}).exit_code, 0);
  EXPECT_EQ(Run({"ping"}).exit_code, 0);
}

// The first server of the list is dead.
TEST_F(CliServer, AListOfServersIsTheFirstThatServes) {
  const std::string list = "unix:" + dir_.path("nobody") + "," + daemon_.address();
  const Json ping = RunJson({"ping", "--server", list});
  EXPECT_TRUE(ping["ready"]);
  EXPECT_EQ(ping["server"], daemon_.address());
  ASSERT_EQ(Run({"put", "--server", list, "--space", "s", "--recipe", "raw", kCase}).exit_code, 0);
  EXPECT_EQ(RunJson({"get", "--server", list, "--space", "s", kCase, out_})["hit_tokens"], 256);
  EXPECT_EQ(RunJson({"status", "--server", list})["server"], daemon_.address());
  // What changes a server changes none that nobody meant.
  for (const std::string& several : {list, std::string("dns:///localhost:1")}) {
    for (const char* verb : {"drain", "flush"}) {
      const Finished refused = Run({verb, "--server", several});
      EXPECT_EQ(refused.exit_code, 2) << verb;
      EXPECT_THAT(refused.err, HasSubstr("names several servers"));
    }
  }
  const Finished from_environment = RunKvstow({"drain"}, {"KVSTOW_SERVER=" + list});
  EXPECT_EQ(from_environment.exit_code, 2) << from_environment.out;
}

TEST_F(CliServer, ACaseOfAnotherModelIsRefusedByTheFieldThatDiffers) {
  ASSERT_EQ(Run({"put", "--space", "s", "--page-tokens", "128", kCase}).exit_code, 0);
  const Finished other = Run({"put", "--space", "s", "--page-tokens", "64", kCase});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("page_tokens"));
  const Finished recipe = Run({"put", "--space", "t", "--recipe", "nosuch", kCase});
  EXPECT_EQ(recipe.exit_code, 1);
  EXPECT_THAT(recipe.err, HasSubstr("'nosuch': `kvstow codec list` shows what there is"));
}

TEST_F(CliServer, WhereThereIsNoSpaceNothingIsStored) {
  for (const std::string verb : {"del", "exists", "get", "pin", "report", "summaries", "unpin"}) {
    std::vector<std::string> arguments = {verb, "--space", "nowhere", kCase};
    if (verb == "get" || verb == "summaries") arguments.push_back(out_);
    const Finished run = Run(arguments);
    EXPECT_EQ(run.exit_code, 3) << verb;
    EXPECT_THAT(run.err, HasSubstr("there is no space 'nowhere'")) << verb;
    arguments[3] = "/no/such/case";
    EXPECT_EQ(Run(arguments).exit_code, 1) << verb << ": a file that is not there is no miss";
  }
}

TEST_F(CliServer, WhatAnOperatorMistypesIsNamed) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } kCases[] = {
      {{"budget", "--tier", "gpu", "1GiB"}, "start kvstowd with gpu-bytes"},
      {{"quota", "", "--limit", "hosts=1GiB"}, "tier 'hosts': use gpu, host or disk"},
      {{"quota", "", "--guarantee", "gpu=1GiB"}, "start kvstowd with gpu-bytes"},
      {{"quota", "typo", "--weight", "2"}, "there is no tenant 'typo': `kvstow quota` lists them"},
      {{"tenant", "drop", "typo"}, "there is no tenant 'typo' here: `kvstow quota` lists them"},
  };
  for (const auto& c : kCases) {
    const Finished run = Run(c.arguments);
    EXPECT_EQ(run.exit_code, 1) << c.says;
    EXPECT_THAT(run.err, HasSubstr(c.says));
  }
}

TEST_F(CliServer, ASparseSpaceGivesWhatTheLocalCodecGives) {
  const std::string recipe = "snapkv(keep=0.25)|int8", local = dir_.path("local");
  const std::vector<std::string> put = {"put",  "--space",     "s",      "--recipe",
                                        recipe, "--fidelity",  "sparse", "--page-tokens",
                                        "128",  "--attention", "window", kCase};
  const Finished shared = Run(put);
  EXPECT_EQ(shared.exit_code, 1);
  EXPECT_THAT(shared.err, HasSubstr("--private"));
  std::vector<std::string> mine = put;
  mine.push_back("--private");
  EXPECT_EQ(RunJson(mine)["stored"], 2);
  RunJson({"codec", "roundtrip", "--recipe", recipe, "--page-tokens", "128", kCase, local});
  for (const char* payload : {"raw", "encoded"}) {
    const Json get = RunJson({"get", "--space", "s", "--payload", payload, kCase, out_});
    EXPECT_EQ(get["hit_tokens"], 256);
    EXPECT_NEAR(get["kept_share"], 0.28, 0.04) << "protected tokens count";
    EXPECT_GT(get["estimated_error"], 0.3);
    EXPECT_LT(get["estimated_error"], 1);
    // The server scores by fp16, so a token at the edge may differ.
    const auto a = SafetensorsReader::Open(local), b = SafetensorsReader::Open(out_);
    ASSERT_TRUE(a.ok() && b.ok()) << b.status();
    uint64_t kept = 0, differ = 0;
    for (int layer = 0; layer < 30; ++layer) {
      const std::string name = "keep." + std::to_string(layer);
      const auto x = a->Find(name), y = b->Find(name);
      ASSERT_TRUE(x.ok() && y.ok()) << name;
      ASSERT_EQ(y->shape, (std::vector<uint64_t>{256, 3}));
      const auto here = a->Data(*x), there = b->Data(*y);
      for (size_t i = 0; i < here.size(); ++i) {
        kept += there[i];
        differ += here[i] != there[i];
      }
    }
    EXPECT_NEAR(kept / (256.0 * 3 * 30), get["kept_share"].get<double>(), 1e-9);
    EXPECT_LT(differ, kept / 50) << payload;
  }
  const Json none = RunJson({"get", "--space", "s", "--max-error", "0.1", kCase, out_}, 3);
  EXPECT_THAT(none["stopped"].get<std::string>(), HasSubstr("at most 0.1 was asked for"));
  RunJson({"get", "--space", "s", "--min-levels", "2", kCase, out_}, 3);
}

TEST_F(CliServer, AttentionIsReportedOnPagesThatAreThere) {
  EXPECT_EQ(
      RunJson({"put", "--space", "s", "--recipe", "int8", "--page-tokens", "64", kCase})["stored"],
      4);
  const Json sum = RunJson({"report", "--space", "s", kCase});
  EXPECT_EQ(sum["reports"], 4);
  EXPECT_EQ(sum["taken"], 4);
  EXPECT_EQ(RunJson({"report", "--space", "s", "--attention", "window", kCase})["taken"], 16);
  EXPECT_EQ(RunJson({"get", "--space", "s", kCase, out_})["hit_tokens"], 256);
  ASSERT_EQ(Run({"del", "--space", "s", kCase}).exit_code, 0);
  const Json gone = RunJson({"report", "--space", "s", kCase}, 3);
  EXPECT_EQ(gone["taken"], 0);
  EXPECT_EQ(gone["gone"], 4);
}

TEST_F(CliServer, BenchMeasuresAndCleansUp) {
  const Json bench = RunJson({"bench", "--clients", "2", "--pages", "4", "--batch", "2", "--layers",
                              "2", "--recipe", "raw"});
  ASSERT_EQ(bench["rows"].size(), 2u);
  for (const Json& row : bench["rows"]) {
    EXPECT_GT(row["gbps"], 0);
    EXPECT_GT(row["memcpy_gbps"], 0);
    EXPECT_LE(row["p50_us"], row["p99_us"]);
    EXPECT_EQ(row["page_bytes"], 256 * 2 * 3 * 64 * 2 * 2);
  }
  EXPECT_EQ(RunJson({"stats"})["pages"], 0);
}

TEST(CliCompare, MeasuresEachStoreInTurns) {
  const Finished run = RunKvstow(
      {"bench",    "compare", "--peers",  "kvstow,loop", "--encoded", "int4", "--clients",     "2",
       "--values", "3",       "--batch",  "2",           "--rounds",  "1",    "--page-tokens", "4",
       "--shared", "int8",    "--format", "json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json compared = ParseLine(run);
  EXPECT_EQ(compared["value_bytes"], 4 * 32 * 1024);
  std::vector<std::string> rows;
  for (const Json& row : compared["rows"]) {
    rows.push_back(row["operation"].get<std::string>() + " " + row["peer"].get<std::string>());
    EXPECT_GT(row["gbps"], 0);
    EXPECT_LE(row["p50_us"], row["p99_us"]);
    EXPECT_TRUE(row["of_best_rival"].is_null());
  }
  EXPECT_THAT(rows, ::testing::UnorderedElementsAre(
                        "put kvstow raw", "get kvstow raw", "put kvstow raw, gRPC streams",
                        "get kvstow raw, gRPC streams", "put kvstow int4 encoded",
                        "get kvstow int4 encoded", "put kvstow int8, shared memory",
                        "get kvstow int8, shared memory", "put shared memory by gRPC calls",
                        "get shared memory by gRPC calls", "put bare socket", "get bare socket"));
}

TEST(CliOverload, MeasuresThePeakAndThenMore) {
  const Finished run = RunKvstow({"bench", "overload", "--seconds", "1", "--clients", "2",
                                  "--page-tokens", "4", "--format", "json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json overload = ParseLine(run);
  EXPECT_EQ(overload["call_bytes"], 4 * 4 * 32 * 1024);
  ASSERT_EQ(overload["rows"].size(), 2u);
  for (const Json& row : overload["rows"]) {
    EXPECT_GT(row["goodput_gbps"], 0);
    EXPECT_LE(row["p50_us"], row["p99_us"]);
  }
  EXPECT_EQ(overload["rows"][0]["refused_share"], 0) << "the peak is what is not refused";
}

TEST(CliCompare, SaysWhichStoreIsNotKnown) {
  const Finished run = RunKvstow({"bench", "compare", "--peers", "nosuch"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("nosuch"));
}

TEST(Cli, AServerWithoutOperatorsCallsSaysSo) {
  const Daemon daemon("127.0.0.1:0", {"--admin-listen", "off"});
  const Finished status = RunKvstow({"status", "--server", daemon.address()});
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_THAT(status.err, HasSubstr("serves no operators' calls: name the server's admin-listen"));
  EXPECT_THAT(RunKvstow({"doctor", "--no-disk", "--server", daemon.address()}).out,
              AllOf(HasSubstr("serves no operators' calls"), Not(HasSubstr("not ready yet"))));
  EXPECT_EQ(RunKvstow({"ping", "--wait", "30", "--server", daemon.address()}).exit_code, 0);
  ASSERT_EQ(RunKvstow({"put", "--server", daemon.address(), "--space", "s", kCase}).exit_code, 0);
  for (const char* verb : {"stats", "spaces"}) {
    const Finished run = RunKvstow({verb, "--server", daemon.address()});
    EXPECT_EQ(run.exit_code, 0) << verb << ": " << run.err;
    EXPECT_THAT(run.out, Not(HasSubstr("BITS/TOKEN")));
  }
}

TEST_F(CliServer, APageThatIsCoarserThanAskedForIsNotCalledAbsent) {
  ASSERT_EQ(Run({"put", "--space", "s", "--recipe", "int8", kCase}).exit_code, 0);
  const Finished run = Run({"get", "--space", "s", "--min-levels", "3", kCase, out_});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.out, AllOf(HasSubstr("this prompt is stored in 's'"), HasSubstr("levels")));
}

TEST(CliUnixSocket, VerbsReachIt) {
  const TempDir dir;
  const Daemon daemon("unix:" + dir.path("s"), {"--host-bytes", "64MiB"});
  EXPECT_EQ(RunKvstow({"ping", "--server", daemon.address()}).exit_code, 0);
  EXPECT_EQ(RunKvstow({"put", "--server", daemon.address(), "--space", "s", kCase}).exit_code, 0);
}

TEST(Cli, TlsIsByFlagsOrByEnvironment) {
  const TempDir dir;
  const testing::Certificates files(dir.path());
  const TlsFiles server = files.mutual_server(), worker = files.worker();
  const Daemon daemon("127.0.0.1:0", {"--tls-cert", server.certificate, "--tls-key", server.key,
                                      "--tls-client-ca", server.ca});
  const std::vector<std::string> ping = {"ping", "--server", daemon.address()};
  const auto with = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> out = ping;
    out.insert(out.end(), flags.begin(), flags.end());
    return out;
  };
  const std::vector<std::string> flags = {"--tls-ca",         worker.ca,   "--tls-cert",
                                          worker.certificate, "--tls-key", worker.key};
  const Finished by_flags = RunKvstow(with(flags));
  EXPECT_EQ(by_flags.exit_code, 0) << by_flags.err;
  const Finished by_environment =
      RunKvstow(ping, {"KVSTOW_TLS_CA=" + worker.ca, "KVSTOW_TLS_CERT=" + worker.certificate,
                       "KVSTOW_TLS_KEY=" + worker.key, "KVSTOW_TLS_NAME=localhost"});
  EXPECT_EQ(by_environment.exit_code, 0) << by_environment.err;
  std::vector<std::string> plan = {"plan", "--server", daemon.address()};
  plan.insert(plan.end(), flags.begin(), flags.end());
  EXPECT_THAT(RunKvstow(plan).err, HasSubstr("was asked for no page in the last hours"));
  auto other_name = flags;
  other_name.insert(other_name.end(), {"--tls-name", "kv.example"});
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } kWrong[] = {
      {with(other_name), "hostname mismatch"},
      {with({"--tls-ca", worker.ca}), "does it want a certificate of its clients?"},
      {with({"--tls-ca", "/no/such/ca.pem"}), "tls: /no/such/ca.pem: cannot be read"},
      {with({"--tls-cert", worker.certificate}), "a certificate and its key go together"},
      {ping, "it may want TLS (tls-ca)"},
  };
  for (const auto& c : kWrong) {
    const Finished run = RunKvstow(c.arguments);
    EXPECT_EQ(run.exit_code, 1) << c.says;
    EXPECT_THAT(run.err, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace kvstow
