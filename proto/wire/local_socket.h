// The socket of a local session: whole messages between two processes of one host (local.proto).
//
// SOCK_SEQPACKET: the kernel copies each message, keeps them apart and in order, and tells each
// side when the other is gone. Thread-safe: several threads may wait in Receive, and each message
// goes to one of them; any thread may call Send and HangUp. Errors: UNAVAILABLE when the peer hung
// up, RESOURCE_EXHAUSTED when it left so much unread that there is no room to send,
// INVALID_ARGUMENT for a message that is too long or does not parse, DEADLINE_EXCEEDED.
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

// The process at the other end, as the kernel says.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

class LocalSocket {
 public:
  // Connects to the socket at `path`. Waits only for a full backlog, at most 1 s.
  static absl::StatusOr<LocalSocket> Connect(const std::string& path);
  // Listens at `path`, and removes a socket there that nobody listens on. Only processes of this
  // user can connect. Fails with FAILED_PRECONDITION when somebody listens there.
  static absl::StatusOr<LocalSocket> Listen(const std::string& path);
  // Returns both ends of a connection.
  static absl::StatusOr<std::pair<LocalSocket, LocalSocket>> Pair();

  LocalSocket(LocalSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  LocalSocket& operator=(LocalSocket&&) = delete;
  ~LocalSocket();

  int descriptor() const { return descriptor_; }

  // Waits for the next connection. For a socket that listens.
  absl::StatusOr<LocalSocket> Accept() const;
  absl::StatusOr<PeerCredentials> Peer() const;

  // Sends a message without waiting. The peer gets a copy of `descriptor`, if any.
  absl::Status Send(const google::protobuf::MessageLite& message, int descriptor = -1) const;
  // Waits for a message at most `timeout`; without a value, as long as it takes. Puts a descriptor
  // that comes with it into `descriptor`, and the caller closes it. Drops it when that is null.
  absl::Status Receive(google::protobuf::MessageLite& message,
                       std::optional<Duration> timeout = std::nullopt,
                       int* descriptor = nullptr) const;
  // Makes further Receive and Accept of both sides fail.
  void HangUp() const;

 private:
  explicit LocalSocket(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_LOCAL_SOCKET_H_
