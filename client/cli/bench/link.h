// A network of its own for the servers, another one for the clients, and a link of a given speed
// between them, all within this machine: what a comparison has in place of two machines.
//
// The networks are namespaces of the kernel. A pair of virtual cards joins them, and a token bucket
// on each card bounds what it sends. Nothing of this has a name outside: the kernel removes it when
// the last process in it has ended, whatever ended that.
//
//   KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<Link> link, Link::Make(1.25e9, folder));
//   KVSTOW_RETURN_IF_ERROR(link->Enter(Link::kClients));
//
// Not thread-safe. Needs the programs `ip` and `tc` (iproute2) and the rights of root.
#ifndef KVSTOW_CLIENT_CLI_BENCH_LINK_H_
#define KVSTOW_CLIENT_CLI_BENCH_LINK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace kvstow::cli {

class Link {
 public:
  enum Side { kServers, kClients, kSides };
  static constexpr char kServerHost[] = "192.0.2.1";  // of TEST-NET-1, which no network routes
  static constexpr char kClientHost[] = "192.0.2.2";
  static constexpr int kMtu = 9000;

  // Makes both networks. `folder` is for the output of programs. Fails with PERMISSION_DENIED for
  // a user who may not, with NOT_FOUND without iproute2, and with INTERNAL when one of its programs
  // fails; the message says what to do.
  static absl::StatusOr<std::unique_ptr<Link>> Make(double bytes_per_s, const std::string& folder);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Moves the calling thread into a network, with the threads and processes that it starts from
  // then on.
  absl::Status Enter(Side side) const;

 private:
  Link() = default;
  absl::Status SetUp(double bytes_per_s, const std::string& folder) const;

  int networks_[kSides] = {-1, -1};  // descriptors
};

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_BENCH_LINK_H_
