#include "client/cli/doctor/findings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"

namespace kvstow::cli {
namespace {

using Settings = std::map<std::string, std::string>;

// A server takes two files a connection, and some hundred for its tables and segments.
constexpr uint64_t kOpenFiles = 4096;
// A slower disk reads pages back no faster than a small GPU computes them anew.
constexpr double kSlowDisk = 200;
// Beyond this share of the memory, budgets and what is beside them do not fit.
constexpr double kMostMemory = 0.9;

std::string Setting(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "" : found->second;
}

std::optional<uint64_t> SizeSetting(const Settings& settings, const std::string& name) {
  const auto size = ParseSize(absl::StrReplaceAll(Setting(settings, name), {{" ", ""}}));
  return size.ok() ? std::optional(*size) : std::nullopt;
}

Finding FindMemory(const HostFacts& host, const Settings& settings) {
  Finding f{.subject = "memory"};
  uint64_t wanted = 0;
  std::vector<std::string> parts;
  for (const char* name : {"host-bytes", "index-bytes", "put-bytes", "get-bytes", "local-bytes"}) {
    if (std::string(name) == "local-bytes" && Setting(settings, "local-socket").empty()) continue;
    const auto bytes = SizeSetting(settings, name);
    if (!bytes.has_value() || *bytes == 0) continue;
    wanted += *bytes;
    parts.push_back(absl::StrCat(name, " ", FormatSize(*bytes)));
  }
  if (!host.memory_bytes.has_value() || parts.empty()) {
    f.verdict = Verdict::kUnknown;
    f.found = host.memory_bytes.has_value()
                  ? absl::StrCat("this machine has ", FormatSize(*host.memory_bytes),
                                 "; the server's budgets are not known")
                  : "this machine does not tell its memory";
    return f;
  }
  f.found = absl::StrCat(FormatSize(wanted), " of ", FormatSize(*host.memory_bytes), ": ",
                         absl::StrJoin(parts, ", "));
  if (static_cast<double>(wanted) > kMostMemory * static_cast<double>(*host.memory_bytes)) {
    f.verdict = wanted > *host.memory_bytes ? Verdict::kWrong : Verdict::kWarning;
    f.advice = "lower host-bytes, so that the sum is at most nine tenths of the memory";
  }
  return f;
}

Finding FindHugePages(const HostFacts& host, const Settings& settings) {
  Finding f{.subject = "huge pages"};
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  if (host.huge_pages.empty()) {
    f.verdict = Verdict::kUnknown;
    f.found = absl::StrCat(folder, "enabled cannot be read");
    return f;
  }
  f.found = absl::StrCat("memory: ", host.huge_pages);
  if (host.huge_pages == "never") {
    f.verdict = Verdict::kWarning;
    f.advice = absl::StrCat("echo madvise > ", folder, "enabled");
  }
  if (!Setting(settings, "local-socket").empty() && !host.shared_huge_pages.empty()) {
    absl::StrAppend(&f.found, ", shared with workers: ", host.shared_huge_pages);
    if (host.shared_huge_pages == "never" || host.shared_huge_pages == "deny") {
      f.verdict = Verdict::kWarning;
      f.advice = absl::StrCat(f.advice, f.advice.empty() ? "" : "; ", "echo advise > ", folder,
                              "shmem_enabled");
    }
  }
  return f;
}

Finding FindOpenFiles(const HostFacts& host) {
  Finding f{.subject = "open files"};
  if (!host.open_files.has_value()) {
    f.verdict = Verdict::kUnknown;
    f.found = "the limit cannot be read: run this as the server's user";
    return f;
  }
  const bool of_server = host.server_processes == uint64_t{1};
  f.found = absl::StrCat(
      *host.open_files == UINT64_MAX ? "no limit" : absl::StrCat("at most ", *host.open_files),
      of_server ? " for kvstowd" : " for this shell and what it starts");
  if (*host.open_files < kOpenFiles) {
    f.verdict = Verdict::kWarning;
    f.advice = "LimitNOFILE=65536 in the unit, or ulimit -n 65536 before the start";
  }
  return f;
}

Finding FindClock(const HostFacts& host) {
  Finding f{.subject = "clock"};
  if (!host.clock_synchronised.has_value()) {
    f.verdict = Verdict::kUnknown;
    f.found = "the kernel does not tell whether it is synchronised";
    return f;
  }
  f.found = *host.clock_synchronised ? "synchronised" : "not synchronised";
  if (!*host.clock_synchronised) {
    f.verdict = Verdict::kWarning;
    f.advice = "run chrony or systemd-timesyncd: logs of nodes and certificates go by this clock";
  }
  return f;
}

Finding FindGpu(const HostFacts& host, const Settings& settings) {
  Finding f{.subject = "GPU"};
  const std::string device = Setting(settings, "device");
  const auto gpu_bytes = SizeSetting(settings, "gpu-bytes");
  f.found = host.has_gpu ? "there is one" : "there is none";
  if (host.has_gpu && device == "cpu") {
    f.verdict = Verdict::kWarning;
    f.advice = "device = \"auto\" lets the server use it";
  } else if (host.has_gpu && gpu_bytes == uint64_t{0}) {
    f.verdict = Verdict::kWarning;
    f.advice = "gpu-bytes gives it a tier: without, it holds no pages";
  } else if (!host.has_gpu && absl::StartsWith(device, "cuda")) {
    f.verdict = Verdict::kWrong;
    f.advice = absl::StrCat("device is ", device, ": install the driver, or write auto");
  }
  return f;
}

// The listeners that other machines reach.
Finding FindListeners(const HostFacts& host, const Settings& settings) {
  Finding f{.subject = "listeners"};
  std::vector<std::string> open, events;
  bool any = false;
  for (const char* name : {"listen", "direct-listen", "http-listen", "admin-listen",
                           "kv-events-listen", "kv-events-replay-listen"}) {
    const std::string address = Setting(settings, name);
    if (address.empty() || address == "off" || address == "auto") continue;
    any = true;
    if (StaysHere(address)) continue;
    open.push_back(absl::StrCat(name, " ", address));
    if (absl::StartsWith(name, "kv-events-")) events.emplace_back(name);
  }
  if (!any) {
    f.verdict = Verdict::kUnknown;
    f.found = absl::StrCat("the server's addresses are not known; ", host.open_ports.size(),
                           " TCP ports of this machine are open to others");
    return f;
  }
  if (open.empty()) {
    f.found = "only this machine reaches them";
    return f;
  }
  f.found = absl::StrCat("other machines reach ", absl::StrJoin(open, ", "));
  if (Setting(settings, "tls-cert").empty()) {
    f.verdict = Verdict::kWarning;
    f.advice =
        "they have no TLS: keep the network to itself, or set tls-cert, tls-key and "
        "tls-client-ca (docs/SECURITY.md)";
  } else if (!events.empty()) {
    f.verdict = Verdict::kWarning;
    f.advice = absl::StrCat(absl::StrJoin(events, ", "),
                            ": KV events have no TLS: keep their network to itself");
  }
  return f;
}

}  // namespace

bool StaysHere(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

const char* VerdictName(Verdict verdict) {
  constexpr const char* kNames[] = {"ok", "unknown", "warning", "wrong"};
  return kNames[static_cast<int>(verdict)];
}

std::vector<Finding> FindServer(const ServerFacts& server, absl::string_view own_version) {
  Finding f{.subject = "server"};
  if (!server.error.empty()) {
    f.verdict = server.answers ? Verdict::kUnknown : Verdict::kWrong;
    f.found = server.error;
    return {f};
  }
  f.found = absl::StrCat(server.address, " runs kvstowd ", server.version, ", ",
                         server.ready ? "ready" : "not ready");
  if (!server.ready) {
    f.verdict = Verdict::kWarning;
    f.advice = "it drains or stops: `kvstow drain --resume` takes a drain back";
  } else if (server.version != own_version) {
    f.verdict = Verdict::kWarning;
    f.advice =
        absl::StrCat("this command line is ", own_version, ": install the same version of both");
  }
  std::vector<Finding> out = {f};
  if (!server.on_this_host) {
    out.push_back(
        {.subject = "machine",
         .verdict = Verdict::kWarning,
         .found = absl::StrCat(server.address, " is not this machine"),
         .advice = "what follows tells of this machine: run kvstow doctor on the server's"});
  }
  return out;
}

std::vector<Finding> FindHost(const HostFacts& host, const Settings& settings) {
  return {FindMemory(host, settings), FindHugePages(host, settings),
          FindOpenFiles(host),        FindClock(host),
          FindGpu(host, settings),    FindListeners(host, settings)};
}

std::vector<Finding> FindDisk(const FolderFacts& folder, const std::optional<DiskSpeed>& speed,
                              const std::string& why, const Settings& settings) {
  const std::string path = Setting(settings, "disk-path");
  if (settings.empty()) {
    return {{.subject = "disk",
             .verdict = Verdict::kUnknown,
             .found = "the server's settings are not known",
             .advice = ""}};
  }
  if (path.empty()) {
    return {{.subject = "disk",
             .verdict = Verdict::kWarning,
             .found = "there is no disk tier: pages that leave memory are forgotten",
             .advice = "disk-path and disk-bytes give it one"}};
  }
  Finding place{
      .subject = "disk",
      .found = absl::StrCat(path, " on ",
                            folder.file_system.empty() ? "a file system" : folder.file_system)};
  if (folder.in_memory || folder.on_network) {
    place.verdict = Verdict::kWarning;
    place.advice = folder.in_memory ? "it takes memory, and a restart loses it: name a disk"
                                    : "it is on the network: name a disk of this machine";
  }
  Finding room{.subject = "disk room",
               .found = absl::StrCat(FormatSize(folder.free_bytes), " of ",
                                     FormatSize(folder.total_bytes), " are free")};
  const auto wanted = SizeSetting(settings, "disk-bytes");
  if (wanted.has_value() && *wanted > folder.total_bytes) {
    room.verdict = Verdict::kWrong;
    room.advice = absl::StrCat("disk-bytes is ", FormatSize(*wanted), ": lower it");
  } else if (folder.free_bytes < folder.total_bytes / 20) {
    room.verdict = Verdict::kWarning;
    room.advice = "free some: a full disk takes no more pages";
  }
  Finding access{.subject = "disk access",
                 .found = folder.exists ? "the server makes its folders for its user alone"
                                        : "the folder is not there; the server makes it"};
  if (folder.others_may_enter) {
    access.found = "other users may enter the folder; the files in it are the server's alone";
  }
  Finding rate{.subject = "disk speed"};
  if (!speed.has_value()) {
    rate.verdict = Verdict::kUnknown;
    rate.found = why;
  } else {
    rate.found = absl::StrCat("writes ", static_cast<int>(speed->write_mb_s), " MB/s, reads ",
                              static_cast<int>(speed->read_mb_s), " MB/s",
                              speed->direct ? "" : " (through the page cache)");
    if (std::min(speed->write_mb_s, speed->read_mb_s) < kSlowDisk) {
      rate.verdict = Verdict::kWarning;
      rate.advice = "computing a prompt anew may be faster than this disk: use an NVMe disk";
    } else if (!speed->direct) {
      rate.verdict = Verdict::kWarning;
      rate.advice = "this file system knows no O_DIRECT, so cold pages also fill the page cache";
    }
  }
  return {place, room, access, rate};
}

std::map<std::string, std::string> ParseSettings(absl::string_view text) {
  std::map<std::string, std::string> out;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    const size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || line[0] == ';' || equals == line.npos) continue;
    const absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, equals));
    absl::string_view value = absl::StripAsciiWhitespace(line.substr(equals + 1));
    if (!value.empty() && value[0] == '"') {
      value = value.substr(1, value.find('"', 1) - 1);
    } else {
      value = absl::StripAsciiWhitespace(value.substr(0, value.find('#')));
    }
    out[std::string(name)] = std::string(value);
  }
  return out;
}

}  // namespace kvstow::cli
