// A loopback address for a server that a test stops and starts again.
//
// A port that the kernel picked (port 0) lies in the range from which it also takes the local ports
// of outgoing connections. While the server is down, any client of any test may get that port, even
// one that tries to reach the server, and the server cannot bind it again. Ports below the range
// are given to nobody who does not ask for them.
#ifndef KVSTOW_TESTS_RESTARTABLE_ADDRESS_H_
#define KVSTOW_TESTS_RESTARTABLE_ADDRESS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>

namespace kvstow {

// Returns "127.0.0.1:PORT", where nothing listens now.
inline std::string RestartableAddress() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(10'000, 32'000);
  for (;;) {
    const int port = ports(random);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = {.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(port)),
                      .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const bool free = bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
    close(fd);
    if (free) return "127.0.0.1:" + std::to_string(port);
  }
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_RESTARTABLE_ADDRESS_H_
