// kvstow bench compare --link: servers and clients in networks of their own. Skipped where this
// user may not make networks, or iproute2 is not installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/integration/process.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

bool Runs(const std::string& command) {
  return RunProgram("/bin/sh", {"-c", command}).exit_code == 0;
}
bool LinksCanBeMade() { return Runs("unshare --net ip link show && tc -V"); }

const std::vector<std::string> kTiny = {"bench",         "compare",     "--link",    "10Gbit",
                                        "--peers",       "kvstow,loop", "--batch",   "2",
                                        "--page-tokens", "2",           "--encoded", "int8,kivi4"};

std::vector<std::string> Tiny(std::vector<std::string> more) {
  more.insert(more.begin(), kTiny.begin(), kTiny.end());
  return more;
}

TEST(CliCompareLink, MeasuresRatesAndAPrefixBesideThePlan) {
  if (!LinksCanBeMade()) GTEST_SKIP() << "no networks of its own, or no iproute2";
  const Finished run = RunKvstow(Tiny({"--clients", "1,2", "--values", "3", "--rounds", "1",
                                       "--prefix-tokens", "7", "--format", "json"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json compared = Json::parse(run.out);
  EXPECT_EQ(compared["link_bytes_per_s"], 1.25e9);
  EXPECT_EQ(compared["value_bytes"], 2 * 131072);
  EXPECT_EQ(compared["rows"].size(), 4u * 2 * 2) << "four stores, two numbers of clients, two ways";
  for (const Json& row : compared["rows"]) {
    EXPECT_GT(row["gbps"], 0) << row;
    EXPECT_GT(row["of_link"], 0) << row;
    EXPECT_LT(row["of_link"], row["gbps"].get<double>() / 1.25 * 1.001) << row;
    EXPECT_TRUE(row["of_best_rival"].is_null()) << row;
  }
  const Json& prefix = compared["prefix"];
  EXPECT_EQ(prefix["raw_bytes"], 7 * 131072);
  std::vector<std::string> stores;
  for (const Json& row : prefix["rows"]) {
    stores.push_back(row["peer"]);
    EXPECT_GT(row["first_token_s"], 0) << row;
    EXPECT_EQ(row["plan_first_token_s"],
              std::max(row["plan_link_s"].get<double>(), row["plan_decode_s"].get<double>()));
  }
  EXPECT_THAT(stores, UnorderedElementsAre("kvstow raw", "kvstow int8 encoded",
                                           "kvstow kivi4 encoded", "bare socket"));
  // The planner itself says the same when it is asked as the comparison says.
  const Finished plan = RunProgram(
      "/bin/sh", {"-c", ProgramPath(prefix["plan"].get<std::string>()) + " --format json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const Json planned = Json::parse(plan.out);
  for (const Json& recipe : planned["recipes"]) {
    if (recipe["recipe"] != "raw") continue;
    EXPECT_EQ(recipe["prompt"]["limit"], "link");
    EXPECT_NEAR(recipe["prompt"]["link_s"], prefix["rows"][0]["plan_link_s"].get<double>(), 1e-9);
  }
}

// What passes in a time is at most the bucket, of 1 MB, and what the rate brings. So 8 MiB go at
// most at 1.15 times the rate, however fast the machine is.
TEST(CliCompareLink, TheTokenBucketIsTheLimitBothWays) {
  if (!LinksCanBeMade()) GTEST_SKIP() << "no networks of its own, or no iproute2";
  const Finished run = RunKvstow({"bench", "compare", "--link", "400Mbit", "--peers", "loop",
                                  "--clients", "1", "--values", "8", "--page-tokens", "8",
                                  "--rounds", "1", "--prefix-tokens", "0", "--format", "json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json compared = Json::parse(run.out);
  ASSERT_EQ(compared["rows"].size(), 2u);
  for (const Json& row : compared["rows"]) EXPECT_LT(row["of_link"], 1.3) << row;
  EXPECT_FALSE(compared.contains("prefix"));
}

TEST(CliCompareLink, SaysWhatToDoWithoutTheRights) {
  // Root without the right to make networks; anybody else has none anyway.
  const std::string drop =
      geteuid() == 0 ? "exec setpriv --bounding-set -sys_admin,-net_admin " : "exec ";
  const Finished run =
      RunProgram("/bin/sh", {"-c", drop + ProgramPath("kvstow") + " bench compare --link 10Gbit"});
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, HasSubstr("CAP_NET_ADMIN"));
  EXPECT_THAT(run.err, HasSubstr("unshare --map-root-user"));
}

TEST(CliCompareLink, SaysWhatToInstall) {
  if (!LinksCanBeMade()) GTEST_SKIP() << "no networks of its own";
  const TempDir empty;
  const Finished run =
      RunKvstow({"bench", "compare", "--link", "10Gbit"}, {"PATH=" + empty.path()});
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, HasSubstr("ip is not installed"));
  EXPECT_THAT(run.err, HasSubstr("scripts/setup --peers"));
}

TEST(CliCompareLink, RefusesWhatIsNoSpeed) {
  for (const char* speed : {"fast", "0", "10parsec"}) {
    const Finished run = RunKvstow({"bench", "compare", "--link", speed});
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_THAT(run.err, HasSubstr("is not a bandwidth")) << speed;
  }
  EXPECT_EQ(RunKvstow({"bench", "compare", "--link", "10Gbit", "--local"}).exit_code, 2);
}

// The processes that have `mark` in their environment.
std::vector<pid_t> Marked(const std::string& mark) {
  std::vector<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ");
    const std::string environment{std::istreambuf_iterator<char>(file), {}};
    if (environment.find(mark) != std::string::npos) out.push_back(std::stoi(name));
  }
  return out;
}

TEST(CliCompareLink, NothingIsLeftWhenItIsKilled) {
  if (!LinksCanBeMade()) GTEST_SKIP() << "no networks of its own, or no iproute2";
  const TempDir dir;
  const std::string mark = "TMPDIR=" + dir.path("x");
  std::filesystem::create_directory(dir.path("x"));
  const std::string program = ProgramPath("kvstow");
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    std::vector<std::string> words = Tiny({"--clients", "1", "--rounds", "1000"});
    std::vector<char*> argv = {const_cast<char*>("kvstow")};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    setenv("TMPDIR", dir.path("x").c_str(), 1);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  // Itself and three servers.
  while (Marked(mark).size() < 4 && waitpid(pid, nullptr, WNOHANG) == 0) pause();
  ASSERT_EQ(kill(pid, SIGKILL), 0) << "it ended before its servers ran";
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  // A namespace has no name: it goes with its last process. The test's time limit ends this loop.
  while (!Marked(mark).empty()) pause();
}

}  // namespace
}  // namespace kvstow
