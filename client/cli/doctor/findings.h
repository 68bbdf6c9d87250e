// Findings: they say what is misconfigured on a server's machine, from facts about it.
//
// Pure functions over values. A finding says what was looked at, how it is, and, where something
// can be better, what to do.
#ifndef KVSTOW_CLIENT_CLI_DOCTOR_FINDINGS_H_
#define KVSTOW_CLIENT_CLI_DOCTOR_FINDINGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/doctor/host_facts.h"

namespace kvstow::cli {

enum class Verdict {
  kOk,
  kUnknown,  // it could not be looked at
  kWarning,  // the server runs, but slower, smaller or less safely than it could
  kWrong,    // the server does not run, or not as its settings say
};
const char* VerdictName(Verdict verdict);  // "ok", "unknown", "warning", "wrong"

struct Finding {
  std::string subject;  // "huge pages"
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string advice;  // "" = nothing to do
};

// What a server says, or does not.
struct ServerFacts {
  std::string address;
  std::string error;  // why its settings are not known, and what to do; "" = they are
  bool answers = true;
  std::string version;
  bool ready = false;
  bool on_this_host = true;
  std::map<std::string, std::string> settings;  // as `kvstow status` shows them, or a file's
};

std::vector<Finding> FindServer(const ServerFacts& server, absl::string_view own_version);
// Memory, huge pages, limits, clock, GPU and ports. `settings` are the server's, with sizes as
// people write them; a setting that is absent leaves out what rests on it.
std::vector<Finding> FindHost(const HostFacts& host,
                              const std::map<std::string, std::string>& settings);
// The folder of the disk tier. `speed` is absent when it was not measured; `why` then says why.
std::vector<Finding> FindDisk(const FolderFacts& folder, const std::optional<DiskSpeed>& speed,
                              const std::string& why,
                              const std::map<std::string, std::string>& settings);

// Returns whether an address, HOST:PORT or unix:PATH, is reached from this machine alone.
bool StaysHere(absl::string_view address);

// Reads the settings of a configuration file: lines of `name = "value"`, with comments.
std::map<std::string, std::string> ParseSettings(absl::string_view text);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_DOCTOR_FINDINGS_H_
