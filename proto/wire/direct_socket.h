// A direct connection's socket: frames with payload over TCP (direct.proto; docs/FORMAT.md, "Direct
// connections").
//
// Payload goes from where it lies and lands where it belongs: nothing is copied but by the kernel.
// Every call waits, at most until its deadline. Thread-safe as far as one thread sends and one
// receives; any may HangUp. Errors: UNAVAILABLE when the peer is gone or hung up, INVALID_ARGUMENT
// for a frame that breaks the rules, DEADLINE_EXCEEDED. After any of them the place in the stream
// is lost: hang up.
#ifndef KVSTOW_PROTO_WIRE_DIRECT_SOCKET_H_
#define KVSTOW_PROTO_WIRE_DIRECT_SOCKET_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/shared_bytes.h"

namespace kvstow {

inline constexpr size_t kMaxDirectMessageBytes = 64 << 10;
inline constexpr size_t kMaxDirectPages = 64;  // of a message
// A piece of payload that is taken and looked at while it is in a core's cache.
inline constexpr size_t kDirectPieceBytes = 256 << 10;

class DirectSocket {
 public:
  static absl::StatusOr<DirectSocket> Connect(const std::string& host, int port, Time deadline);
  // `port` 0: any that is free. UNAVAILABLE when it cannot be had.
  static absl::StatusOr<DirectSocket> Listen(const std::string& host, int port);
  // Both ends of a connection.
  static absl::StatusOr<std::pair<DirectSocket, DirectSocket>> Pair();

  DirectSocket(DirectSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  DirectSocket& operator=(DirectSocket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~DirectSocket();

  int descriptor() const { return descriptor_; }
  // Of one that listens.
  int port() const;
  absl::StatusOr<DirectSocket> Accept() const;

  // A frame whose payload is `payload` and `more` bytes that SendBytes sends.
  absl::Status Send(const google::protobuf::MessageLite& message,
                    std::span<const SharedBytes> payload, uint64_t more, Time deadline) const;
  absl::Status SendBytes(std::span<const uint8_t> bytes, Time deadline) const;

  // Waits until a frame begins.
  absl::Status WaitForFrame(Time deadline) const;
  // Head and message of a frame; `payload_bytes` follow, for Receive or Skip.
  absl::Status ReceiveFrame(google::protobuf::MessageLite& message, uint64_t& payload_bytes,
                            Time deadline) const;
  absl::Status Receive(std::span<uint8_t> bytes, Time deadline) const;
  absl::Status Skip(uint64_t bytes, Time deadline) const;

  // Whether the peer is still there and nothing of it is unread.
  bool Quiet() const;
  // Both sides' calls fail from here on.
  void HangUp() const;

 private:
  explicit DirectSocket(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_DIRECT_SOCKET_H_
