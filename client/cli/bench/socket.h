// A blocking stream socket to a server, for the clients of other stores.
//
// Not thread-safe. A call fails with UNAVAILABLE when the peer does nothing for 30 seconds or hangs
// up.
#ifndef KVSTOW_CLIENT_CLI_BENCH_SOCKET_H_
#define KVSTOW_CLIENT_CLI_BENCH_SOCKET_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow::cli {

class Socket {
 public:
  // Connects to ADDRESS:PORT, an IPv4 address, or to unix:PATH. Tries until somebody listens or 10
  // seconds have passed.
  static absl::StatusOr<Socket> Connect(const std::string& address);
  // Takes over an open descriptor.
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), ahead_(std::move(other.ahead_)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket();

  // Sends all bytes of the parts, one after the other, without copying them together.
  absl::Status Send(std::span<const absl::string_view> parts);
  // Fills `out` straight from the socket, except for bytes that ReceiveLine read ahead.
  absl::Status Receive(std::span<uint8_t> out);
  // Returns the bytes up to the next "\r\n", without it; at most 4 KiB.
  absl::StatusOr<std::string> ReceiveLine();

 private:
  int descriptor_;
  std::string ahead_;  // bytes received behind a line
};

// Listens on a free TCP port of an IPv4 address of this machine. Any thread may call Stop().
class Listener {
 public:
  static absl::StatusOr<Listener> Open(const std::string& host);
  Listener(Listener&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), port_(other.port_) {}
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int port() const { return port_; }
  absl::StatusOr<Socket> Accept();
  void Stop();  // makes Accept fail from now on, also one that waits

 private:
  explicit Listener(int descriptor) : descriptor_(descriptor) {}
  int descriptor_, port_ = 0;
};

// Returns a port of that address that is free now. Somebody else may take it before the server
// starts.
absl::StatusOr<int> PortForAServer(const std::string& host);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_BENCH_SOCKET_H_
