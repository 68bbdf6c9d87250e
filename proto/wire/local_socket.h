// A local session's socket: whole messages between two processes of one host (local.proto).
//
// SOCK_SEQPACKET: the kernel copies each message, keeps them apart and in order, and tells each
// side when the other is gone. Thread-safe: several threads may wait in Receive, each message goes
// to one of them; so may Send and HangUp be called. Errors: UNAVAILABLE when the peer hung up or
// does not read, INVALID_ARGUMENT for a message that is too long, DEADLINE_EXCEEDED.
#ifndef KVSTOW_PROTO_WIRE_LOCAL_SOCKET_H_
#define KVSTOW_PROTO_WIRE_LOCAL_SOCKET_H_

#include <google/protobuf/message_lite.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace kvstow {

inline constexpr size_t kMaxLocalMessageBytes = 64 << 10;
inline constexpr size_t kMaxLocalPages = 64;  // of a message

// Who is at the other end, as the kernel says.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

class LocalSocket {
 public:
  // To the socket at `path`. Does not wait.
  static absl::StatusOr<LocalSocket> Connect(const std::string& path);
  // Listens at `path`, where it removes a socket that nobody listens on; others cannot connect
  // unless they are of this user. FAILED_PRECONDITION when somebody listens there.
  static absl::StatusOr<LocalSocket> Listen(const std::string& path);
  // Both ends of a connection.
  static absl::StatusOr<std::pair<LocalSocket, LocalSocket>> Pair();

  LocalSocket(LocalSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  LocalSocket& operator=(LocalSocket&&) = delete;
  ~LocalSocket();

  int descriptor() const { return descriptor_; }

  // Of one that listens: waits for the next connection.
  absl::StatusOr<LocalSocket> Accept() const;
  absl::StatusOr<PeerCredentials> Peer() const;

  // Never waits. With `descriptor`, the peer gets a copy of it.
  absl::Status Send(const google::protobuf::MessageLite& message, int descriptor = -1) const;
  // Waits for a message at most `timeout`; no value: as long as it takes. A descriptor that comes
  // with it is put into `descriptor` (the caller's to close), or dropped when that is null.
  absl::Status Receive(google::protobuf::MessageLite& message,
                       std::optional<Duration> timeout = std::nullopt,
                       int* descriptor = nullptr) const;
  // Both sides' Receive and Accept fail from here on.
  void HangUp() const;

 private:
  explicit LocalSocket(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_LOCAL_SOCKET_H_
