#include "service/ops/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/control_group.h"
#include "base/status_macros.h"
#include "service/keys/master_key.h"
#include "service/ops/address.h"
#include "storage/policies/eviction_policy.h"

namespace kvstow {
namespace {

absl::Status Refuse(absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("'", value, "' is not ", expected));
}

template <std::string Config::*field>
absl::Status SetText(Config& c, const std::string& text) {
  c.*field = text;
  return absl::OkStatus();
}
template <std::string Config::*field>
std::string GetText(const Config& c) {
  return c.*field;
}

// A flag may stand alone; its variable and its key have a value.
template <bool Config::*field>
absl::Status SetSwitch(Config& c, const std::string& text) {
  if (text != "true" && text != "false") return Refuse(text, "true or false");
  c.*field = text == "true";
  return absl::OkStatus();
}
template <bool Config::*field>
std::string GetSwitch(const Config& c) {
  return c.*field ? "true" : "false";
}

template <uint64_t Config::*field>
absl::Status SetSize(Config& c, const std::string& text) {
  KVSTOW_ASSIGN_OR_RETURN(c.*field, ParseSize(text));
  return absl::OkStatus();
}
template <uint64_t Config::*field>
std::string GetSize(const Config& c) {
  return FormatSize(c.*field);
}

template <double Config::*field>
absl::Status SetFraction(Config& c, const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value > 0 && value <= 1)) {
    return Refuse(text, "a fraction of a budget: write a number above 0 and up to 1, as 0.95");
  }
  c.*field = value;
  return absl::OkStatus();
}
template <double Config::*field>
std::string GetNumber(const Config& c) {
  return absl::StrCat(c.*field);
}

template <double Config::*field>
absl::Status SetBits(Config& c, const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value >= 0 && value <= 32)) {
    return Refuse(text, "bits of a value: write a number from 0 (all) to 32, as 4.5");
  }
  c.*field = value;
  return absl::OkStatus();
}

template <std::string Config::*field>
absl::Status SetAddress(Config& c, const std::string& text) {
  KVSTOW_RETURN_IF_ERROR(ParseAddress(text).status());
  return SetText<field>(c, text);
}

template <std::string Config::*field>
absl::Status SetPort(Config& c, const std::string& text) {
  if (text == "off") return SetText<field>(c, text);
  if (absl::StartsWith(text, "unix:")) return Refuse(text, "HOST:PORT or off");
  return SetAddress<field>(c, text);
}

absl::Status SetRemote(Config& c, const std::string& text) {
  for (const absl::string_view one : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (absl::StartsWith(one, "unix:")) return Refuse(one, "HOST:PORT");
    KVSTOW_RETURN_IF_ERROR(ParseAddress(one).status());
  }
  return SetText<&Config::remote>(c, text);
}

absl::Status SetRemotePrefix(Config& c, const std::string& text) {
  const bool good = !text.empty() && text.size() <= 64 && text.find_first_of("{} ") == text.npos;
  if (!good) return Refuse(text, "a prefix of 1 to 64 bytes without braces and blanks");
  return SetText<&Config::remote_prefix>(c, text);
}

absl::Status SetRouter(Config& c, const std::string& text) {
  if (absl::StartsWith(text, "unix:")) return Refuse(text, "HOST:PORT");
  return SetAddress<&Config::kv_events_connect>(c, text);
}

absl::Status SetEventsName(Config& c, const std::string& text) {
  if (text.empty() || absl::StrContains(text, '@')) return Refuse(text, "a name without an @");
  return SetText<&Config::kv_events_name>(c, text);
}

absl::Status SetDirect(Config& c, const std::string& text) {
  if (text == "off" || text == "auto") return SetText<&Config::direct_listen>(c, text);
  if (absl::StartsWith(text, "unix:")) return Refuse(text, "HOST:PORT, auto or off");
  return SetAddress<&Config::direct_listen>(c, text);
}

absl::Status SetAdmin(Config& c, const std::string& text) {
  if (text == "off" || text == "auto") return SetText<&Config::admin_listen>(c, text);
  return SetAddress<&Config::admin_listen>(c, text);
}

absl::Status SetDevice(Config& c, const std::string& text) {
  absl::string_view ordinal = text;
  uint32_t n = 0;
  const bool cuda = absl::ConsumePrefix(&ordinal, "cuda:") && absl::SimpleAtoi(ordinal, &n);
  if (text != "auto" && text != "cpu" && !cuda) {
    return Refuse(text, "a device: use auto, cpu or cuda:N");
  }
  c.device = text;
  return absl::OkStatus();
}

absl::Status SetMasterKey(Config& c, const std::string& text) {
  KVSTOW_RETURN_IF_ERROR(CheckMasterKeySource(text));
  return SetText<&Config::master_key>(c, text);
}

absl::Status SetPolicy(Config& c, const std::string& text) {
  KVSTOW_RETURN_IF_ERROR(FindEvictionPolicy(text).status());
  return SetText<&Config::eviction_policy>(c, text);
}

template <Duration Config::*field>
absl::Status SetTime(Config& c, const std::string& text) {
  absl::Duration time;
  if (!absl::ParseDuration(text, &time) || time < absl::Milliseconds(1) || time > absl::Hours(24)) {
    return Refuse(text, "a time from 1ms to 24h: write a number and a unit, as 10s");
  }
  c.*field = absl::ToChronoNanoseconds(time);
  return absl::OkStatus();
}
template <Duration Config::*field>
std::string GetTime(const Config& c) {
  return absl::FormatDuration(absl::FromChrono(c.*field));
}

template <uint64_t Config::*field>
absl::Status SetCount(Config& c, const std::string& text) {
  uint64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count == 0) {
    return Refuse(text, "a number from 1 on");
  }
  c.*field = count;
  return absl::OkStatus();
}
template <uint64_t Config::*field>
std::string GetCount(const Config& c) {
  return absl::StrCat(c.*field);
}

// One row a setting: flag, environment and file key come from its name.
struct Setting {
  const char* name;
  const char* type;
  const char* help;
  absl::Status (*set)(Config&, const std::string&);
  std::string (*get)(const Config&);
};

constexpr char kSwitch[] = "BOOLEAN";  // the type of settings whose flag may stand alone

constexpr Setting kSettings[] = {
    {"listen", "ADDRESS", "gRPC: HOST:PORT or unix:PATH; port 0 picks one [127.0.0.1:7380]",
     SetAddress<&Config::listen>, GetText<&Config::listen>},
    {"http-listen", "ADDRESS", "metrics, health, status page: HOST:PORT or off [127.0.0.1:7381]",
     SetPort<&Config::http_listen>, GetText<&Config::http_listen>},
    {"tls-cert", "FILE",
     "certificate in PEM, with its chain: gRPC, direct connections and HTTP speak TLS 1.3; read "
     "anew when it changes [none: no TLS]",
     SetText<&Config::tls_cert>, GetText<&Config::tls_cert>},
    {"tls-key", "FILE", "its key in PEM, without a passphrase", SetText<&Config::tls_key>,
     GetText<&Config::tls_key>},
    {"tls-client-ca", "FILE",
     "clients must show a certificate that one of these has signed [none: they need no "
     "certificate]",
     SetText<&Config::tls_client_ca>, GetText<&Config::tls_client_ca>},
    {"insecure", kSwitch,
     "allows listeners without TLS that other machines can reach: on a trusted network only "
     "[false]",
     SetSwitch<&Config::insecure>, GetSwitch<&Config::insecure>},
    {"access", "FILE",
     "tenants, identities and roles, as JSON; read again at SIGHUP [none: whoever reaches the "
     "server may do everything]",
     SetText<&Config::access>, GetText<&Config::access>},
    {"admin-listen", "ADDRESS",
     "gRPC of operators: HOST:PORT, unix:PATH, off, or auto: on `listen` where only this machine "
     "reaches that, or where `access` gives roles, and else off [auto]",
     SetAdmin, GetText<&Config::admin_listen>},
    {"device", "DEVICE", "auto, cpu or cuda:N; auto uses cuda:0 where there is one [auto]",
     SetDevice, GetText<&Config::device>},
    {"gpu-bytes", "SIZE", "encoded bytes that the GPU tier may hold [0: no GPU tier]",
     SetSize<&Config::gpu_bytes>, GetSize<&Config::gpu_bytes>},
    {"host-bytes", "SIZE", "encoded bytes that the host tier may hold [a quarter of the RAM]",
     SetSize<&Config::host_bytes>, GetSize<&Config::host_bytes>},
    {"disk-path", "FOLDER", "where the disk tier lives; made when missing [none: no disk tier]",
     SetText<&Config::disk_path>, GetText<&Config::disk_path>},
    {"disk-bytes", "SIZE", "encoded bytes that the disk tier may hold [half of its file system]",
     SetSize<&Config::disk_bytes>, GetSize<&Config::disk_bytes>},
    {"master-key", "SOURCE",
     "of a key that encrypts what goes to disk or to the remote tier: file:PATH, env:NAME or "
     "command:PROGRAM [none: in clear]",
     SetMasterKey, GetText<&Config::master_key>},
    {"host-bits", "BITS", "of a value that a page keeps which cools into host memory; 0 = all [0]",
     SetBits<&Config::host_bits>, GetNumber<&Config::host_bits>},
    {"disk-bits", "BITS", "of a value that a page keeps which cools to disk; 0 = all [0]",
     SetBits<&Config::disk_bits>, GetNumber<&Config::disk_bits>},
    {"direct-listen", "ADDRESS",
     "pages over TCP beside gRPC: HOST:PORT, off, or auto: any port on the host of `listen` "
     "[auto]",
     SetDirect, GetText<&Config::direct_listen>},
    {"local-socket", "PATH",
     "where workers of this host ask for shared memory, to fetch and put without a stream [none]",
     SetText<&Config::local_socket>, GetText<&Config::local_socket>},
    {"local-bytes", "SIZE", "shared memory of all workers together, beside the tiers [1GiB]",
     SetSize<&Config::local_bytes>, GetSize<&Config::local_bytes>},
    {"local-gpu-bytes", "SIZE", "GPU memory shared with all workers on that GPU together [0: none]",
     SetSize<&Config::local_gpu_bytes>, GetSize<&Config::local_gpu_bytes>},
    {"kv-events-listen", "ADDRESS",
     "where routers subscribe to KV events, by ZeroMQ: HOST:PORT or off [off]",
     SetPort<&Config::kv_events_listen>, GetText<&Config::kv_events_listen>},
    {"kv-events-connect", "ADDRESS", "a router that listens for KV events itself: HOST:PORT [none]",
     SetRouter, GetText<&Config::kv_events_connect>},
    {"kv-events-replay-listen", "ADDRESS",
     "where routers ask for KV events that they missed: HOST:PORT or off [off]",
     SetPort<&Config::kv_events_replay_listen>, GetText<&Config::kv_events_replay_listen>},
    {"kv-events-name", "NAME", "of this server in the topics kv@NAME@MODEL [the host's name]",
     SetEventsName, GetText<&Config::kv_events_name>},
    {"remote", "ADDRESSES",
     "of a Redis Cluster or a Redis that several servers share as a cold tier: HOST:PORT, or "
     "several with commas [none]",
     SetRemote, GetText<&Config::remote>},
    {"remote-prefix", "TEXT", "of names there; servers with one prefix share pages [kvstow]",
     SetRemotePrefix, GetText<&Config::remote_prefix>},
    {"remote-user", "NAME", "to log in there as [none]", SetText<&Config::remote_user>,
     GetText<&Config::remote_user>},
    {"remote-password-file", "FILE", "with the password to log in there [none]",
     SetText<&Config::remote_password_file>, GetText<&Config::remote_password_file>},
    {"remote-tls-ca", "FILE", "talk TLS there, to servers whose certificate this CA signed [none]",
     SetText<&Config::remote_tls_ca>, GetText<&Config::remote_tls_ca>},
    {"remote-wait", "TIME",
     "how long a look-up waits for the remote tier before it answers with local pages [20ms]",
     SetTime<&Config::remote_wait>, GetTime<&Config::remote_wait>},
    {"remote-ttl", "TIME", "how long a page stays there at most [24h]",
     SetTime<&Config::remote_ttl>, GetTime<&Config::remote_ttl>},
    {"remote-bytes-per-second", "SIZE", "how fast pages are sent there; 0 = as fast as it goes [0]",
     SetSize<&Config::remote_bytes_per_second>, GetSize<&Config::remote_bytes_per_second>},
    {"recipe", "RECIPE",
     "codec of spaces that name none, hot=RECIPE,cold=RECIPE, or auto; `kvstow codec list` shows "
     "all "
     "[int8]",
     SetText<&Config::recipe>, GetText<&Config::recipe>},
    {"calibrations", "FOLDER",
     "files of `kvstow codec calibrate`, for recipes that need a calibration, and what workers "
     "send "
     "[`calibrations` below disk-path]",
     SetText<&Config::calibrations>, GetText<&Config::calibrations>},
    {"eviction-policy", "NAME", "what goes first, by one of these policies: $POLICIES [kvstow]",
     SetPolicy, GetText<&Config::eviction_policy>},
    {"lease-ttl", "TIME", "how long a lease lives that nobody renews [10s]",
     SetTime<&Config::lease_ttl>, GetTime<&Config::lease_ttl>},
    {"max-spaces", "NUMBER", "spaces at most; empty private ones make room for others [1024]",
     SetCount<&Config::max_spaces>, GetCount<&Config::max_spaces>},
    {"private-space-idle", "TIME",
     "how long a private space may be empty and unused before it is dropped [10m]",
     SetTime<&Config::private_space_idle>, GetTime<&Config::private_space_idle>},
    {"idle-timeout", "TIME", "after which a direct connection that asks for nothing is closed [5m]",
     SetTime<&Config::idle_timeout>, GetTime<&Config::idle_timeout>},
    {"index-bytes", "SIZE",
     "memory of the index of pages, about 250 bytes each; beyond it pages are forgotten [a 16th of "
     "the RAM]",
     SetSize<&Config::index_bytes>, GetSize<&Config::index_bytes>},
    {"max-leases", "NUMBER", "leases at a time; beyond them look-ups get none [65536]",
     SetCount<&Config::max_leases>, GetCount<&Config::max_leases>},
    {"max-leased-pages", "NUMBER", "pages that all leases together promise [4194304]",
     SetCount<&Config::max_leased_pages>, GetCount<&Config::max_leased_pages>},
    {"get-bytes", "SIZE",
     "encoded and decoded bytes of pages being sent, at a time; others wait [512MiB]",
     SetSize<&Config::get_bytes>, GetSize<&Config::get_bytes>},
    {"put-bytes", "SIZE",
     "of pages on their way in at a time, before and after they are coded [512MiB]",
     SetSize<&Config::put_bytes>, GetSize<&Config::put_bytes>},
    {"max-streams", "NUMBER", "Put streams, and as many Get streams, at a time [256]",
     SetCount<&Config::max_streams>, GetCount<&Config::max_streams>},
    {"stream-idle", "TIME", "a stream ends on which nothing moved for so long [1m]",
     SetTime<&Config::stream_idle>, GetTime<&Config::stream_idle>},
    {"high-watermark", "FRACTION", "of a budget: demotion starts above it [0.95]",
     SetFraction<&Config::high_watermark>, GetNumber<&Config::high_watermark>},
    {"low-watermark", "FRACTION", "of a budget: demotion ends below it [0.9]",
     SetFraction<&Config::low_watermark>, GetNumber<&Config::low_watermark>},
    {"scrub-bytes-per-second", "SIZE",
     "how fast what is stored is verified in the background; 0 = not at all [4MiB]",
     SetSize<&Config::scrub_bytes_per_second>, GetSize<&Config::scrub_bytes_per_second>},
    {"fit-bytes", "SIZE",
     "memory of the process that fits the cold form of spaces of recipe auto; 0 = nothing is "
     "fitted "
     "[4GiB]",
     SetSize<&Config::fit_bytes>, GetSize<&Config::fit_bytes>},
    {"slow-call", "TIME", "calls that take as long get a line in the log, as failing ones do [1s]",
     SetTime<&Config::slow_call>, GetTime<&Config::slow_call>},
    {"log-level", "LEVEL", "trace, debug, info, warn, error or off [info]",
     SetText<&Config::log_level>, GetText<&Config::log_level>},
    {"log-format", "FORMAT", "text or json [text]", SetText<&Config::log_format>,
     GetText<&Config::log_format>},
};

constexpr char kExamples[] =
    R"(Every flag is also an environment variable (KVSTOW_HOST_BYTES) and a key of the file
(host-bytes = "8GiB"); the flag wins, then the environment, then the file.
Sizes: 64MiB, 30GB, 1.5TiB. Times: 500ms, 10s.

Examples:
  kvstowd
      serves on 127.0.0.1:7380 with a quarter of the RAM, without a disk
  kvstowd --host-bytes 16GiB --disk-path /var/lib/kvstow --disk-bytes 500GB
      spills to disk, and is warm after a restart
  kvstowd --host-bytes 16GiB --disk-path /var/lib/kvstow --recipe rotated8 --disk-bits 4.5
      pages lose what is beyond 4.5 bits of a value when they go to disk
  kvstowd --disk-path /var/lib/kvstow --master-key file:/etc/kvstow/master.key
      what is on disk is encrypted; `openssl rand -hex 32` makes such a key
  kvstowd --local-socket /run/kvstow/local.sock --local-bytes 4GiB
      workers on this machine fetch pages into memory that they share with the server
  kvstowd --listen 0.0.0.0:7380 --tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem
      serves other machines by TLS; clients show a certificate of that CA
  kvstowd --access /etc/kvstow/access.json --admin-listen unix:/run/kvstow/admin.sock
      tenants with identities, and operators on this machine alone
  kvstowd --remote 10.0.0.1:6379,10.0.0.2:6379
      shares pages with other servers through a Redis Cluster
  kvstowd --kv-events-listen 0.0.0.0:5557 --kv-events-replay-listen 0.0.0.0:5558 --insecure
      tells routers which pages it holds, in the schema of vLLM's KV events, which have no TLS
  kvstowd --listen unix:/run/kvstow/kvstow.sock --gpu-bytes 4GiB --device cuda:0
      hot pages on the GPU, for workers on this machine
  KVSTOW_LOG_FORMAT=json kvstowd --config /etc/kvstow/kvstowd.conf
)";

std::string EnvironmentName(absl::string_view name) {
  return absl::StrCat("KVSTOW_", absl::StrReplaceAll(absl::AsciiStrToUpper(name), {{"-", "_"}}));
}

// The environment as flags that stand before the real ones, which therefore win; both win over the
// file. (CLI11's own environment support would lose against the file.)
std::vector<std::string> WithEnvironment(std::span<const char* const> args, const GetEnv& env) {
  std::vector<std::string> all;
  const auto add = [&](absl::string_view name) {
    const char* value = env(EnvironmentName(name).c_str());
    if (value != nullptr && *value != '\0') all.push_back(absl::StrCat("--", name, "=", value));
  };
  for (const Setting& s : kSettings) add(s.name);
  add("config");
  all.insert(all.end(), args.begin(), args.end());
  return all;
}

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return absl::StrReplaceAll(name.data(), {{"@", "-"}});
}

absl::Status CheckTls(const Config& c) {
  if (c.tls_cert.empty() != c.tls_key.empty()) {
    return absl::InvalidArgumentError(c.tls_cert.empty()
                                          ? "tls-key needs tls-cert: name the certificate too"
                                          : "tls-cert needs tls-key: name its key too");
  }
  if (!c.tls_client_ca.empty() && !c.tls()) {
    return absl::InvalidArgumentError(
        "tls-client-ca needs tls-cert and tls-key: clients show certificates over TLS only");
  }
  return absl::OkStatus();
}

absl::Status CheckRemote(const Config& c) {
  const bool more =
      !c.remote_user.empty() || !c.remote_password_file.empty() || !c.remote_tls_ca.empty();
  if (c.remote.empty()) {
    return more ? absl::InvalidArgumentError(
                      "remote-user, remote-password-file and remote-tls-ca need remote: say where")
                : absl::OkStatus();
  }
  if (c.remote_password_file.empty() && !c.remote_user.empty()) {
    return absl::InvalidArgumentError("remote-user needs remote-password-file: name its file");
  }
  return absl::OkStatus();
}

// Defaults that depend on the machine, and settings that must fit each other.
absl::Status Complete(Config& c, bool host_given, bool disk_given) {
  if (c.kv_events_name.empty()) c.kv_events_name = HostName();
  if (c.kv_events_replay_listen != "off" && !c.publishes_kv_events()) {
    return absl::InvalidArgumentError(
        "kv-events-replay-listen needs kv-events-listen: there are no KV events to miss");
  }
  KVSTOW_RETURN_IF_ERROR(CheckTls(c));
  KVSTOW_RETURN_IF_ERROR(CheckRemote(c));
  if (!host_given) c.host_bytes = UsableMemory() / 4;
  if (c.index_bytes == 0) c.index_bytes = UsableMemory() / 16;
  if (c.disk_path.empty() && c.disk_bytes > 0) {
    return absl::InvalidArgumentError("disk-bytes needs disk-path: say where the disk tier lives");
  }
  if (c.disk_path.empty() && c.remote.empty() && !c.master_key.empty()) {
    return absl::InvalidArgumentError(
        "master-key needs disk-path or remote: nothing else leaves the process to be encrypted");
  }
  if (c.disk_path.empty() && c.disk_bits > 0) {
    return absl::InvalidArgumentError("disk-bits needs disk-path: say where the disk tier lives");
  }
  if (c.local_socket.empty() && c.local_gpu_bytes > 0) {
    return absl::InvalidArgumentError(
        "local-gpu-bytes needs local-socket: say where workers ask for the memory");
  }
  if (c.host_bits > 0 && c.disk_bits > c.host_bits) {
    return absl::InvalidArgumentError(absl::StrCat("disk-bits ", c.disk_bits,
                                                   " is above host-bits ", c.host_bits,
                                                   ": a page that cools does not get bits back"));
  }
  if (!c.disk_path.empty() && !disk_given) {
    // The folder may not be there yet: its nearest parent is on the same file system.
    std::error_code error;
    std::filesystem::path folder = std::filesystem::absolute(c.disk_path, error);
    while (folder.has_relative_path() && !std::filesystem::exists(folder, error)) {
      folder = folder.parent_path();
    }
    const auto space = std::filesystem::space(folder, error);
    if (!error) c.disk_bytes = space.capacity / 2;
  }
  if (c.low_watermark > c.high_watermark) {
    return absl::InvalidArgumentError(absl::StrCat("low-watermark ", c.low_watermark,
                                                   " is above high-watermark ", c.high_watermark,
                                                   ": demotion would never end"));
  }
  return absl::OkStatus();
}

// Returns the error for a line of the file that is no setting. `what` is CLI11's sentence, which
// ends in the line's name.
absl::Status WrongLine(const std::string& path, absl::string_view what) {
  absl::ConsumePrefix(&what, "INI was not able to parse ");
  const std::string word(what);
  std::ifstream in(path);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (!absl::StartsWith(text, word)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ", line ", number, ": '", text,
                                                   "' is no setting: write NAME = \"VALUE\", "
                                                   "with a name that kvstowd --help lists"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": '", word, "' is no setting: kvstowd --help lists them"));
}

// Returns the error for words that no setting takes. CLI11 names them with their values, from the
// back.
absl::Status WrongWords(const std::vector<std::string>& words) {
  const auto flag = std::ranges::find_if(
      words, [](const std::string& word) { return absl::StartsWith(word, "-"); });
  return absl::InvalidArgumentError(
      flag != words.end()
          ? absl::StrCat("there is no flag ", flag->substr(0, flag->find('=')),
                         ": `kvstowd --help` lists them")
          : absl::StrCat("'", words[0], "' is no flag: `kvstowd --help` lists them"));
}

std::string HelpOf(const Setting& s) {
  const std::string policies = absl::StrJoin(
      EvictionPolicies(), ", ",
      [](std::string* out, const PolicyInfo& policy) { absl::StrAppend(out, policy.name); });
  return absl::StrReplaceAll(s.help, {{"$POLICIES", policies}});
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> args, const GetEnv& env,
                                             absl::string_view version) {
  CommandLine out;
  CLI::App app("kvstowd keeps the KV cache of language models: compressed, over GPU, RAM and disk.",
               "kvstowd");
  app.set_version_flag("--version", std::string(version));
  app.footer(kExamples);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.set_config("--config", "", "configuration file [none]")->type_name("FILE")->take_last();
  std::vector<std::string> texts(std::size(kSettings));
  std::vector<CLI::Option*> options;
  for (size_t i = 0; i < std::size(kSettings); ++i) {
    const Setting& s = kSettings[i];
    options.push_back(app.add_option(absl::StrCat("--", s.name), texts[i], HelpOf(s))
                          ->type_name(s.type)
                          ->take_last());
    if (s.type == kSwitch) options.back()->expected(0, 1)->default_str("true");
  }
  try {
    std::vector<std::string> all = WithEnvironment(args, env);
    std::reverse(all.begin(), all.end());  // CLI11 takes them from the back
    app.parse(all);
  } catch (const CLI::CallForHelp&) {
    out.print = absl::StrReplaceAll(app.help(), {{"BOOLEAN=true", "[true|false]"}});
    return out;
  } catch (const CLI::CallForVersion& v) {
    out.print = absl::StrCat(v.what(), "\n");
    return out;
  } catch (const CLI::FileError& e) {
    return absl::InvalidArgumentError(absl::StrCat("config: the file cannot be read: ", e.what()));
  } catch (const CLI::ConfigError& e) {
    return WrongLine(app.get_config_ptr()->as<std::string>(), e.what());
  } catch (const CLI::ExtrasError&) {
    return WrongWords(app.remaining());
  } catch (const CLI::Error& e) {
    return absl::InvalidArgumentError(e.what());
  }
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i]->count() == 0) continue;
    if (const absl::Status s = kSettings[i].set(out.config, texts[i]); !s.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(kSettings[i].name, ": ", s.message()));
    }
  }
  if (app.get_config_ptr()->count() > 0) {
    out.config.config = app.get_config_ptr()->as<std::string>();
  }
  const auto given = [&](absl::string_view name) {
    return app.count(absl::StrCat("--", name)) > 0;
  };
  KVSTOW_RETURN_IF_ERROR(Complete(out.config, given("host-bytes"), given("disk-bytes")));
  return out;
}

std::vector<std::pair<std::string, std::string>> Describe(const Config& config) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Setting& s : kSettings) out.emplace_back(s.name, s.get(config));
  out.emplace_back("config", config.config);
  return out;
}

uint64_t UsableMemory() {
  const uint64_t bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(bytes, ControlGroupMemory("", "self").value_or(bytes));
}

}  // namespace kvstow
