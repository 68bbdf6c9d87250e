// A blocking stream socket to a server: what the clients of other stores speak through.
//
// Not thread-safe. A peer that does nothing for 30 seconds is UNAVAILABLE, so is one that hangs up.
#ifndef KVSTOW_CLIENT_CLI_COMPARE_SOCKET_H_
#define KVSTOW_CLIENT_CLI_COMPARE_SOCKET_H_

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
  // To 127.0.0.1:PORT or unix:PATH, tried until somebody listens or 10 seconds have passed.
  static absl::StatusOr<Socket> Connect(const std::string& address);
  // Takes over an open descriptor.
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), ahead_(std::move(other.ahead_)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket();

  // All bytes of the parts, one behind the other, without copying them together.
  absl::Status Send(std::span<const absl::string_view> parts);
  // Fills `out`: straight from the socket but for what a line read ahead.
  absl::Status Receive(std::span<uint8_t> out);
  // Up to the next "\r\n", without it; at most 4 KiB.
  absl::StatusOr<std::string> ReceiveLine();

 private:
  int descriptor_;
  std::string ahead_;  // received behind a line
};

// A free TCP port of 127.0.0.1 that is listened on. Stop() may be called on any thread.
class Listener {
 public:
  static absl::StatusOr<Listener> Open();
  Listener(Listener&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), port_(other.port_) {}
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int port() const { return port_; }
  absl::StatusOr<Socket> Accept();
  void Stop();  // Accept fails from now on, also one that waits

 private:
  explicit Listener(int descriptor) : descriptor_(descriptor) {}
  int descriptor_, port_ = 0;
};

// A port that is free now: taken by nobody in the moment until the server starts, one hopes.
absl::StatusOr<int> PortForAServer();

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_COMPARE_SOCKET_H_
