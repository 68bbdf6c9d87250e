#include "client/cli/bench/link.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/bench/child.h"

namespace kvstow::cli {
namespace {

constexpr char kCard[] = "link0";
// The bucket and the queue keep the card busy while a thread waits for a core. A full bucket goes
// at once when a call begins; a round has many times its bytes. A full queue would drop packets;
// TCP holds back less than this queue.
constexpr char kBucket[] = "1mb", kQueue[] = "50ms";
// Congestion control that paces costs a core more than the bucket does. Every network may use reno.
constexpr char kCongestionControl[] = "reno";

absl::Status NotAllowed(absl::string_view what) {
  return absl::PermissionDeniedError(
      absl::StrCat(what, ": ", std::strerror(errno),
                   ": --link makes networks of its own, which needs the rights of root "
                   "(CAP_SYS_ADMIN and CAP_NET_ADMIN): run it as root, or as `unshare "
                   "--map-root-user kvstow bench compare --link ...` where users may do that"));
}

// Makes a network, on a thread that ends in it.
absl::StatusOr<int> NewNetwork() {
  absl::StatusOr<int> made = -1;
  std::thread([&made] {
    if (unshare(CLONE_NEWNET) != 0) {
      made = NotAllowed("making a network");
      return;
    }
    made = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (*made < 0) {
      made = absl::InternalError(absl::StrCat("opening a new network: ", std::strerror(errno)));
    }
  }).join();
  return made;
}

// Runs a program of iproute2.
absl::Status Run(const std::vector<std::string>& argv, const std::string& folder) {
  const std::string log = absl::StrCat(folder, "/", argv[0], ".log");
  const absl::Status status = RunToEnd(argv, log);
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(absl::StrCat(
      status.message(), ": --link needs it; `scripts/setup --peers` installs iproute2"));
}

absl::Status ChooseCongestionControl() {
  constexpr char kFile[] = "/proc/sys/net/ipv4/tcp_congestion_control";
  std::ofstream file(kFile);
  file << kCongestionControl << std::flush;
  if (file) return absl::OkStatus();
  return NotAllowed(absl::StrCat("writing ", kFile));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> Link::Make(double bytes_per_s, const std::string& folder) {
  std::unique_ptr<Link> link(new Link);
  for (int& network : link->networks_) {
    KVSTOW_ASSIGN_OR_RETURN(network, NewNetwork());
  }
  // This thread stays where it is.
  absl::Status status;
  std::thread([&] { status = link->SetUp(bytes_per_s, folder); }).join();
  KVSTOW_RETURN_IF_ERROR(status);
  return link;
}

Link::~Link() {
  for (const int network : networks_) {
    if (network >= 0) close(network);
  }
}

absl::Status Link::Enter(Side side) const {
  if (setns(networks_[side], CLONE_NEWNET) != 0) return NotAllowed("entering a network");
  return absl::OkStatus();
}

absl::Status Link::SetUp(double bytes_per_s, const std::string& folder) const {
  const std::string mtu = absl::StrCat(kMtu);
  const std::string bits = absl::StrCat(static_cast<uint64_t>(bytes_per_s * 8), "bit");
  const std::string other = absl::StrCat("/proc/", getpid(), "/fd/", networks_[kClients]);
  KVSTOW_RETURN_IF_ERROR(Enter(kServers));
  KVSTOW_RETURN_IF_ERROR(Run({"ip", "link", "add", kCard, "mtu", mtu, "type", "veth", "peer",
                              "name", kCard, "mtu", mtu, "netns", other},
                             folder));
  const std::pair<Side, const char*> sides[] = {{kServers, kServerHost}, {kClients, kClientHost}};
  for (const auto& [side, host] : sides) {
    KVSTOW_RETURN_IF_ERROR(Enter(side));
    KVSTOW_RETURN_IF_ERROR(ChooseCongestionControl());
    const std::vector<std::string> commands[] = {
        {"ip", "link", "set", "lo", "up"},
        {"ip", "addr", "add", absl::StrCat(host, "/24"), "dev", kCard},
        {"ip", "link", "set", kCard, "up"},
        {"tc", "qdisc", "add", "dev", kCard, "root", "tbf", "rate", bits, "burst", kBucket,
         "latency", kQueue}};
    for (const auto& argv : commands) KVSTOW_RETURN_IF_ERROR(Run(argv, folder));
  }
  return absl::OkStatus();
}

}  // namespace kvstow::cli
