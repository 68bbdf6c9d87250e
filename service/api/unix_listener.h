// gRPC on a UNIX socket, where the server wants to know the users behind it: gRPC itself does not
// tell them. A thread accepts connections, notes the user that the kernel names (SO_PEERCRED), and
// hands each connection to the gRPC server.
//
// gRPC names such a peer by its descriptor, "fd:N". A call keeps its connection's descriptor open,
// so a number means one user for as long as a call of it lives. Thread-safe.
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
#include "base/mutex.h"

namespace kvstow {

// The users of all connections of a process that listeners have accepted.
class PeerUsers {
 public:
  void Note(int descriptor, uid_t user);
  // `peer` is ServerContext::peer(). Returns nothing for a peer of another kind.
  std::optional<uid_t> Find(absl::string_view peer) const;

 private:
  mutable Mutex mu_;
  std::map<int, uid_t> users_ KVSTOW_GUARDED_BY(mu_);  // by descriptor; some are closed
};

class UnixListener {
 public:
  // Listens at `path`, for every user of this machine: identities decide. Removes a socket there
  // that nobody listens on. Fails with UNAVAILABLE. The others outlive this.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Start(const std::string& path,
                                                             grpc::Server& server,
                                                             PeerUsers& users);
  ~UnixListener();  // takes no more connections; those that are there stay

 private:
  UnixListener(std::string path, int descriptor, grpc::Server& server, PeerUsers& users);
  void AcceptAll();

  const std::string path_;
  const int descriptor_;
  grpc::Server& server_;
  PeerUsers& users_;
  std::thread accepting_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_UNIX_LISTENER_H_
