// The server's configuration: flags, then environment, then a configuration file, then defaults.
//
// Every flag --some-name is also the environment variable KVSTOW_SOME_NAME and the key `some-name`
// of the file that --config (or KVSTOW_CONFIG) names. The first of these that gives a value wins.
// An empty environment variable counts as not set. Unknown flags and unknown keys are errors.
//
// Free functions and a value; thread-safe. Errors are INVALID_ARGUMENT with the name, the value and
// the expected form.
#ifndef KVSTOW_SERVICE_OPS_CONFIG_H_
#define KVSTOW_SERVICE_OPS_CONFIG_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace kvstow {

struct Config {
  std::string listen = "127.0.0.1:7380";       // HOST:PORT or unix:PATH; port 0 picks one
  std::string http_listen = "127.0.0.1:7381";  // HOST:PORT; "off" = no HTTP
  std::string tls_cert, tls_key;               // PEM files; "" = no TLS
  std::string tls_client_ca;                   // "" = clients need no certificate
  bool insecure = false;                       // others may reach listeners without TLS
  std::string access;                          // the access file; "" = everybody may do all
  std::string admin_listen = "auto";           // HOST:PORT, unix:PATH, auto or off
  std::string device = "auto";                 // auto, cpu, cuda:N
  uint64_t gpu_bytes = 0;                      // budgets count encoded bytes; 0 = tier not used
  uint64_t host_bytes = 0;                     // default: a quarter of the RAM
  std::string disk_path;                       // "" = no disk tier
  uint64_t disk_bytes = 0;                     // default with a path: half of its file system
  std::string master_key;                      // file:PATH, env:NAME, command:PROGRAM; "" = none
  double host_bits = 0;                // bits kept of a value when a page cools there; 0 = all
  double disk_bits = 0;                // the same for the disk
  std::string direct_listen = "auto";  // HOST:PORT, auto or off: pages beside gRPC
  std::string local_socket;            // "" = no local sessions
  uint64_t local_bytes = uint64_t{1} << 30;     // of memory shared with workers, beside the budgets
  uint64_t local_gpu_bytes = 0;                 // and of the GPU's; 0 = none
  std::string kv_events_listen = "off";         // HOST:PORT or off
  std::string kv_events_connect;                // HOST:PORT of a router; "" = none
  std::string kv_events_replay_listen = "off";  // HOST:PORT or off
  std::string kv_events_name;                   // default: the host's name
  std::string remote;                           // HOST:PORT, several with commas; "" = none
  std::string remote_prefix = "kvstow";         // of names in the remote store
  std::string remote_user, remote_password_file;
  std::string remote_tls_ca;                             // "" = no TLS
  Duration remote_wait = std::chrono::milliseconds(20);  // of a look-up
  Duration remote_ttl = std::chrono::hours(24);
  uint64_t remote_bytes_per_second = 0;  // out; 0 = as fast as it goes
  std::string recipe = "int8";           // of spaces that name none
  std::string calibrations;              // folder of blobs; "" = below disk_path
  std::string eviction_policy = "kvstow";
  Duration lease_ttl = std::chrono::seconds(10);
  uint64_t max_spaces = 1024;
  Duration private_space_idle = std::chrono::minutes(10);  // then an empty private space goes
  Duration idle_timeout = std::chrono::minutes(5);         // of direct connections
  uint64_t index_bytes = 0;                                // default: a 16th of the RAM
  uint64_t max_leases = 65'536;
  uint64_t max_leased_pages = 4'194'304;     // of all leases; a page counts once for each lease
  uint64_t get_bytes = uint64_t{512} << 20;  // these four are AdmissionLimits
  uint64_t put_bytes = uint64_t{512} << 20;
  uint64_t max_streams = 256;
  Duration stream_idle = std::chrono::seconds(60);
  double high_watermark = 0.95;
  double low_watermark = 0.90;
  uint64_t scrub_bytes_per_second = uint64_t{4} << 20;  // 0 = no background verification
  uint64_t fit_bytes = uint64_t{4} << 30;               // of memory of a fit; 0 = no fits
  Duration slow_call = std::chrono::seconds(1);         // gets a line in the log
  std::string log_level = "info";
  std::string log_format = "text";
  std::string config;  // the file that was read

  bool tls() const { return !tls_cert.empty(); }
  bool publishes_kv_events() const {
    return kv_events_listen != "off" || !kv_events_connect.empty();
  }
};

struct CommandLine {
  Config config;
  std::string print;  // --help or --version: print this and leave with 0
};

using GetEnv = std::function<const char*(const char*)>;

// `args` excludes the program's name. `version` is the text of --version.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> args, const GetEnv& env,
                                             absl::string_view version);

// Returns name and value of every setting in effect, in the order of --help.
std::vector<std::pair<std::string, std::string>> Describe(const Config& config);

// Returns the memory that this process may use: the machine's, or its control group's limit when
// that is less.
uint64_t UsableMemory();

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_CONFIG_H_
