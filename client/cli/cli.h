// What the verbs of `kvstow` share: exit codes, flags, output.
//
// A verb is one file with one function that adds a subcommand to the application; its callback sets
// the exit code. Text goes to standard output for people, or one JSON object on one line with
// `--format json`; errors and progress go to standard error.
#ifndef KVSTOW_CLIENT_CLI_CLI_H_
#define KVSTOW_CLIENT_CLI_CLI_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "client/client.h"

namespace kvstow::cli {

using Json = nlohmann::ordered_json;

// A contract: scripts build on these.
inline constexpr int kDone = 0, kFailed = 1, kWrongUse = 2, kMiss = 3;

// --format
struct OutputFlags {
  std::string format = "text";
  bool json() const { return format == "json"; }
};
void AddOutputFlags(CLI::App& verb, OutputFlags& flags);

// --server and --timeout
struct ServerFlags {
  std::string server = "127.0.0.1:7380";
  double timeout_s = 60;
};
void AddServerFlags(CLI::App& verb, ServerFlags& flags, double timeout_s = 60);
// Of a client that reports a dead server soon: people wait for it.
ClientOptions OptionsOf(const ServerFlags& flags);
std::unique_ptr<Client> Connect(const ServerFlags& flags);

// Prints `object` or `text`, as the flags say.
void Print(const OutputFlags& flags, const Json& object, const std::string& text);
// Prints an error on standard error (and {"error": ...} on standard output for JSON); the exit
// code.
int Fail(const OutputFlags& flags, const absl::Status& status);

// Verbs. Each sets `exit_code` when it was called.
void AddPing(CLI::App& app, int& exit_code);
void AddStatus(CLI::App& app, int& exit_code);
void AddStats(CLI::App& app, int& exit_code);
void AddSpaces(CLI::App& app, int& exit_code);
void AddPut(CLI::App& app, int& exit_code);
void AddGet(CLI::App& app, int& exit_code);
void AddReport(CLI::App& app, int& exit_code);
void AddExists(CLI::App& app, int& exit_code);
void AddDel(CLI::App& app, int& exit_code);
void AddDrop(CLI::App& app, int& exit_code);
void AddPin(CLI::App& app, int& exit_code);  // and unpin
void AddEvict(CLI::App& app, int& exit_code);
void AddBudget(CLI::App& app, int& exit_code);
void AddFlush(CLI::App& app, int& exit_code);
void AddVerify(CLI::App& app, int& exit_code);
void AddSummaries(CLI::App& app, int& exit_code);
void AddCodec(CLI::App& app, int& exit_code);  // list, roundtrip, calibrate and send
void AddCodecRoundtrip(CLI::App& codec, int& exit_code);
void AddCodecCalibrate(CLI::App& codec, int& exit_code);
void AddCodecSend(CLI::App& codec, int& exit_code);
void AddBench(CLI::App& app, int& exit_code);  // and compare
void AddBenchCompare(CLI::App& bench, int& exit_code);
void AddBenchOverload(CLI::App& bench, int& exit_code);
void AddSimulate(CLI::App& app, int& exit_code);
void AddReplay(CLI::App& app, int& exit_code);
void AddPlan(CLI::App& app, int& exit_code);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_CLI_H_
