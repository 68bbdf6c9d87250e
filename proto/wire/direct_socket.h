// The socket of a direct connection: frames with payload over TCP (direct.proto; docs/FORMAT.md,
// "Direct connections").
//
// Payload is sent from where it lies and lands where it belongs: only the kernel copies it. With
// TLS (StartTls) it passes through the records beside that (tls_session.h). A call with a deadline
// waits, at most until then. Thread-safe while one thread sends and one receives, or with TLS while
// one thread does either; any thread may HangUp. Errors: UNAVAILABLE when the peer is gone or hung
// up, INVALID_ARGUMENT for a frame that breaks the rules, DEADLINE_EXCEEDED, and UNAUTHENTICATED
// when a side does not take the other's certificate. An error loses the place in the stream: hang
// up.
#ifndef KVSTOW_PROTO_WIRE_DIRECT_SOCKET_H_
#define KVSTOW_PROTO_WIRE_DIRECT_SOCKET_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/shared_bytes.h"

namespace kvstow {

inline constexpr size_t kMaxDirectMessageBytes = 64 << 10;
inline constexpr size_t kMaxDirectPages = 64;  // of a message
// A piece of payload that stays in a core's cache between its transfer and its digest.
inline constexpr size_t kDirectPieceBytes = 256 << 10;

class TlsContext;
class TlsSession;

class DirectSocket {
 public:
  static absl::StatusOr<DirectSocket> Connect(const std::string& host, int port, Time deadline);
  // Listens on `port`; 0 takes any free port. Fails with UNAVAILABLE when it cannot have the port.
  static absl::StatusOr<DirectSocket> Listen(const std::string& host, int port);
  // Returns both ends of a connection.
  static absl::StatusOr<std::pair<DirectSocket, DirectSocket>> Pair();

  DirectSocket(DirectSocket&& other) noexcept;
  DirectSocket& operator=(DirectSocket&& other) noexcept;
  ~DirectSocket();

  int descriptor() const { return descriptor_; }
  // These two are for a socket that listens. Accept waits for the next connection.
  int port() const;
  absl::StatusOr<DirectSocket> Accept() const;

  // Makes the handshake, as the side that `tls` is for. Everything after it goes through TLS. A
  // client may ask for another protocol than that of direct connections (TlsSession::Offer).
  absl::Status StartTls(TlsContext& tls, Time deadline, absl::string_view protocol = "");
  // Returns the names in the peer's verified certificate (service/access/caller.h); empty without.
  std::vector<std::string> peer_names() const;

  // Sends a frame. Its payload is `payload`, and `more` bytes that SendBytes sends.
  absl::Status Send(const google::protobuf::MessageLite& message,
                    std::span<const SharedBytes> payload, uint64_t more, Time deadline) const;
  absl::Status SendBytes(std::span<const uint8_t> bytes, Time deadline) const;
  absl::Status SendBytes(std::span<const SharedBytes> parts, Time deadline) const;

  // Waits until a frame begins.
  absl::Status WaitForFrame(Time deadline) const;
  // Receives head and message of a frame. `payload_bytes` follow, for Receive or Skip.
  absl::Status ReceiveFrame(google::protobuf::MessageLite& message, uint64_t& payload_bytes,
                            Time deadline) const;
  absl::Status Receive(std::span<uint8_t> bytes, Time deadline) const;
  absl::Status Skip(uint64_t bytes, Time deadline) const;

  // Returns whether the peer is still there and has sent nothing that is unread.
  bool Quiet() const;
  // Makes all further calls of both sides fail.
  void HangUp() const;

 private:
  explicit DirectSocket(int descriptor);
  absl::Status SendTls(std::span<const uint8_t> bytes, Time deadline) const;
  absl::Status FlushTls(Time deadline) const;

  int descriptor_;
  std::unique_ptr<TlsSession> tls_;  // null: none
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_DIRECT_SOCKET_H_
