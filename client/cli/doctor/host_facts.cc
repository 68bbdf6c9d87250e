#include "client/cli/doctor/host_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/control_group.h"

namespace kvstow::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr size_t kBlock = 4 * kMebibyte;

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

// A line of /proc/meminfo, "MemTotal:  24576 kB", in bytes.
std::optional<uint64_t> MeminfoBytes(absl::string_view text, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() >= 2 && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
  }
  return std::nullopt;
}

// The word in brackets of "always [madvise] never".
std::string Chosen(absl::string_view text) {
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == text.npos || end == text.npos || end < begin) return "";
  return std::string(text.substr(begin + 1, end - begin - 1));
}

// Processes of the name kvstowd, as numbers in /proc.
std::vector<std::string> ServerProcesses(const std::string& root) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator i(root + "/proc", error), end; !error && i != end;
       i.increment(error)) {
    const std::string name = i->path().filename();
    if (!std::ranges::all_of(name, absl::ascii_isdigit)) continue;
    const std::string comm = ReadText(i->path() / "comm");
    if (absl::StripAsciiWhitespace(comm) == "kvstowd") out.push_back(name);
  }
  return out;
}

// "Max open files   1024   1048576   files": the soft limit.
std::optional<uint64_t> OpenFiles(absl::string_view limits) {
  constexpr absl::string_view kName = "Max open files";
  for (const absl::string_view line : absl::StrSplit(limits, '\n')) {
    if (!absl::StartsWith(line, kName)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(kName.size()), ' ', absl::SkipEmpty());
    uint64_t files = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &files)) return files;
    if (!words.empty() && words[0] == "unlimited") return UINT64_MAX;
  }
  return std::nullopt;
}

bool IsLoopback(absl::string_view hex_address) {
  // IPv4 as the kernel prints it: 0100007F is 127.0.0.1. IPv6: ::1, and IPv4 mapped.
  if (hex_address.size() == 8) return absl::EndsWith(hex_address, "7F");
  return hex_address == "00000000000000000000000001000000" ||
         (absl::StartsWith(hex_address, "0000000000000000FFFF0000") &&
          absl::EndsWith(hex_address, "7F"));
}

// The ports of /proc/net/tcp and tcp6 that listen (state 0A) on an address beyond loopback.
void AddOpenPorts(absl::string_view table, std::vector<uint16_t>& out) {
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 4 || words[3] != "0A") continue;
    const std::pair<absl::string_view, absl::string_view> local =
        absl::StrSplit(words[1], absl::MaxSplits(':', 1));
    uint32_t port = 0;
    if (IsLoopback(local.first) || !absl::SimpleHexAtoi(local.second, &port)) continue;
    out.push_back(static_cast<uint16_t>(port));
  }
}

const char* FileSystemName(int64_t type) {
  switch (type) {
    case 0xEF53:
      return "ext4";
    case 0x58465342:
      return "xfs";
    case 0x9123683E:
      return "btrfs";
    case 0x2FC12FC1:
      return "zfs";
    case 0x794C7630:
      return "overlay";
    case 0x01021994:
      return "tmpfs";
    case 0x858458F6:
      return "ramfs";
    case 0x6969:
      return "nfs";
    case 0xFF534D42:
    case 0xFE534D42:
      return "cifs";
    case 0x65735546:
      return "fuse";
    case 0x00C36400:
      return "ceph";
    default:
      return "";
  }
}

bool AnyOf(absl::string_view name, std::initializer_list<absl::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Writes or reads all blocks of the file, and returns the seconds; negative after an error.
double Pass(int file, uint8_t* block, uint64_t bytes, bool write) {
  const Time start = Clock::Real().Now();
  for (uint64_t at = 0; at < bytes; at += kBlock) {
    const auto offset = static_cast<off_t>(at);
    const ssize_t n =
        write ? pwrite(file, block, kBlock, offset) : pread(file, block, kBlock, offset);
    if (n != static_cast<ssize_t>(kBlock)) return -1;
  }
  if (write && fdatasync(file) != 0) return -1;
  return std::chrono::duration<double>(Clock::Real().Now() - start).count();
}

}  // namespace

HostFacts ReadHost(const std::string& root) {
  HostFacts facts;
  const std::string meminfo = ReadText(root + "/proc/meminfo");
  facts.memory_bytes = MeminfoBytes(meminfo, "MemTotal:");
  const std::vector<std::string> servers = ServerProcesses(root);
  facts.server_processes = servers.size();
  const std::string process = servers.size() == 1 ? servers[0] : "self";
  if (const auto limit = ControlGroupMemory(root, process); limit.has_value()) {
    facts.memory_bytes = std::min(facts.memory_bytes.value_or(*limit), *limit);
  }
  const std::string pages = root + "/sys/kernel/mm/transparent_hugepage/";
  facts.huge_pages = Chosen(ReadText(pages + "enabled"));
  facts.shared_huge_pages = Chosen(ReadText(pages + "shmem_enabled"));
  facts.open_files = OpenFiles(ReadText(absl::StrCat(root, "/proc/", process, "/limits")));
  facts.has_gpu = fs::exists(root + "/dev/nvidia0");
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    AddOpenPorts(ReadText(root + table), facts.open_ports);
  }
  timex clock{};
  const int state = adjtimex(&clock);  // reads only: no mode is set
  if (state >= 0) facts.clock_synchronised = state != TIME_ERROR;
  return facts;
}

FolderFacts ReadFolder(const std::string& path) {
  FolderFacts facts;
  struct stat about {};
  facts.exists = stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
  // A folder that the server has yet to make lies on its parent's file system.
  fs::path there = fs::path(path).lexically_normal();
  while (!fs::exists(there) && there.has_relative_path()) there = there.parent_path();
  struct statfs system {};
  if (statfs(there.c_str(), &system) == 0) {
    facts.file_system = FileSystemName(static_cast<uint32_t>(system.f_type));
    facts.in_memory = AnyOf(facts.file_system, {"tmpfs", "ramfs"});
    facts.on_network = AnyOf(facts.file_system, {"nfs", "cifs", "fuse", "ceph"});
    facts.total_bytes = uint64_t{system.f_blocks} * static_cast<uint64_t>(system.f_bsize);
    facts.free_bytes = uint64_t{system.f_bavail} * static_cast<uint64_t>(system.f_bsize);
  }
  facts.others_may_enter = facts.exists && (about.st_mode & (S_IRWXG | S_IRWXO)) != 0;
  facts.writable = access(there.c_str(), W_OK | X_OK) == 0;
  return facts;
}

std::optional<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t bytes, std::string& why) {
  std::string path = folder + "/.kvstow-doctor-XXXXXX";
  const int made = mkstemp(path.data());
  if (made < 0) {
    why = std::strerror(errno);
    return std::nullopt;
  }
  DiskSpeed speed;
  int file = open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  speed.direct = file >= 0;
  if (!speed.direct) file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  unlink(path.c_str());  // nothing is left behind, however this ends
  const std::unique_ptr<uint8_t, decltype(&std::free)> block(
      static_cast<uint8_t*>(std::aligned_alloc(kBlock, kBlock)), &std::free);
  // Bytes that a disk cannot compress.
  uint64_t x = 88172645463325252;
  for (size_t i = 0; i < kBlock; i += sizeof(x)) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(block.get() + i, &x, sizeof(x));
  }
  const double write_s = file < 0 ? -1 : Pass(file, block.get(), bytes, true);
  if (write_s < 0) why = std::strerror(errno);
  const double read_s = write_s < 0 ? -1 : Pass(file, block.get(), bytes, false);
  if (write_s >= 0 && read_s < 0) why = std::strerror(errno);
  if (file >= 0) close(file);
  close(made);
  if (read_s < 0) return std::nullopt;
  const double mb = static_cast<double>(bytes) / 1e6;
  speed.write_mb_s = mb / std::max(write_s, 1e-9);
  speed.read_mb_s = mb / std::max(read_s, 1e-9);
  return speed;
}

}  // namespace kvstow::cli
