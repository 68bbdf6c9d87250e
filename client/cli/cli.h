// The parts that the verbs of `kvstow` share: flags, output.
//
// A verb is one file with one function that adds a verb (verb.h) to the application. It prints text
// for people on standard output, or one JSON object on one line with `--format json`. Errors and
// progress go to standard error.
#ifndef KVSTOW_CLIENT_CLI_CLI_H_
#define KVSTOW_CLIENT_CLI_CLI_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "client/cli/verb.h"
#include "client/client.h"

namespace kvstow::cli {

using Json = nlohmann::ordered_json;

// --format
struct OutputFlags {
  std::string format = "text";
  bool json() const { return format == "json"; }
};
void AddOutputFlags(const Verb& verb, OutputFlags& flags);

// --server, --tls-ca and its like, --token-file, and --timeout
struct ServerFlags {
  std::string server = "127.0.0.1:7380";
  TlsOptions tls = {};
  std::string token_file = {};
  double timeout_s = 60;
};
void AddServerFlags(const Verb& verb, ServerFlags& flags, double timeout_s = 60);
// Does the same for a verb that changes one server: --server names no list, of which another one
// might answer.
void AddOneServerFlags(const Verb& verb, ServerFlags& flags, double timeout_s = 60);
// Returns options of a client that reports a dead server soon: people wait for it.
ClientOptions OptionsOf(const ServerFlags& flags);
std::unique_ptr<Client> Connect(const ServerFlags& flags);

// Prints `object` or `text`, as the flags say.
void Print(const OutputFlags& flags, const Json& object, const std::string& text);
// Prints an error on standard error (and {"error": ...} on standard output for JSON). Returns the
// exit code.
int Fail(const OutputFlags& flags, const absl::Status& status);

// Verbs.
void AddPing(const Verb& app);
void AddStatus(const Verb& app);
void AddStats(const Verb& app);
void AddTop(const Verb& app);
void AddSpaces(const Verb& app);
void AddPut(const Verb& app);
void AddGet(const Verb& app);
void AddReport(const Verb& app);
void AddExists(const Verb& app);
void AddDel(const Verb& app);
void AddDrop(const Verb& app);
void AddPin(const Verb& app);  // and unpin
void AddEvict(const Verb& app);
void AddBudget(const Verb& app);
void AddQuota(const Verb& app);
void AddTenant(const Verb& app);  // rotate-key and drop
void AddDrain(const Verb& app);
void AddFlush(const Verb& app);
void AddVerify(const Verb& app);
void AddDoctor(const Verb& app);
void AddSummaries(const Verb& app);
void AddCodec(const Verb& app);  // list, roundtrip, calibrate and send
void AddCodecRoundtrip(const Verb& codec);
void AddCodecCalibrate(const Verb& codec);
void AddCodecSend(const Verb& codec);
void AddBench(const Verb& app);  // and compare
void AddBenchCompare(const Verb& bench);
void AddBenchOverload(const Verb& bench);
void AddSimulate(const Verb& app);
void AddReplay(const Verb& app);
void AddPlan(const Verb& app);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_CLI_H_
