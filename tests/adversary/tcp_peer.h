// A peer over plain TCP that sends what it likes.
#ifndef KVSTOW_TESTS_ADVERSARY_TCP_PEER_H_
#define KVSTOW_TESTS_ADVERSARY_TCP_PEER_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace kvstow::testing {

class TcpPeer {
 public:
  // To 127.0.0.1. Nothing that it waits for may take more than 20 seconds.
  explicit TcpPeer(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval long_time{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof(long_time));
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &long_time, sizeof(long_time));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  TcpPeer(TcpPeer&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  TcpPeer& operator=(TcpPeer&&) = delete;
  ~TcpPeer() {
    if (socket_ >= 0) close(socket_);
  }

  int descriptor() const { return socket_; }
  // False when the server has hung up.
  bool Send(const std::string& bytes) const {
    return send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // All that comes until the server hangs up. Fails when it does not.
  std::string ReceiveAll() const {
    std::string all;
    char piece[4096];
    for (;;) {
      const ssize_t came = recv(socket_, piece, sizeof(piece), 0);
      EXPECT_FALSE(came < 0 && errno == EAGAIN) << "the server does not hang up";
      if (came <= 0) return all;
      all.append(piece, static_cast<size_t>(came));
    }
  }

 private:
  int socket_;
};

inline int PortOf(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_ADVERSARY_TCP_PEER_H_
