// gRPC on a UNIX socket, where the server wants to know the users behind it: gRPC itself does not
// tell them. A thread accepts connections, notes the user that the kernel names (SO_PEERCRED), and
// hands each connection to the gRPC server.
//
// gRPC names such a peer by its descriptor, "fd:N". A call keeps its connection's descriptor open,
// so a number means one user for as long as a call of it lives. Everybody on the machine may
// connect, and gRPC counts no connections, so each user has so many at most: the next one is hung
// up on. Thread-safe.
#ifndef KVSTOW_SERVICE_API_UNIX_LISTENER_H_
#define KVSTOW_SERVICE_API_UNIX_LISTENER_H_

#include <grpcpp/server.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

// The users of all connections of a process that listeners have accepted.
class PeerUsers {
 public:
  void Note(int descriptor, uid_t user);
  // Returns whether fewer connections of the user than `most` are open.
  bool HasFewerThan(size_t most, uid_t user);
  // `peer` is ServerContext::peer(). Returns nothing for a peer of another kind.
  std::optional<uid_t> Find(absl::string_view peer) const;

 private:
  struct Peer {
    uid_t user;
    ino_t socket;  // of the connection: a descriptor's number is given away again
  };
  size_t Count(uid_t user) const KVSTOW_REQUIRES(mu_);

  mutable Mutex mu_;
  std::map<int, Peer> peers_ KVSTOW_GUARDED_BY(mu_);  // by descriptor; some are closed
};

// Returns how many connections a user may have: a quarter of the descriptors of this process.
size_t MostConnectionsOfUser();

class UnixListener {
 public:
  // Listens at `path`, for every user of this machine: identities decide. Removes a socket there
  // that nobody listens on. Fails with UNAVAILABLE. The others outlive this.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Start(
      const std::string& path, grpc::Server& server, PeerUsers& users,
      size_t most_of_user = MostConnectionsOfUser());
  ~UnixListener();  // takes no more connections; those that are there stay

 private:
  UnixListener(std::string path, int descriptor, grpc::Server& server, PeerUsers& users,
               size_t most_of_user);
  void AcceptAll();
  void Take(int accepted, uid_t user);

  const std::string path_;
  const int descriptor_;
  grpc::Server& server_;
  PeerUsers& users_;
  const size_t most_of_user_;
  Time complain_after_;  // of the thread
  std::thread accepting_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_UNIX_LISTENER_H_
