// Bytes from anywhere on a direct connection: the server survives them, and nothing stays staged.
#include <cstdlib>

#include "base/clock.h"
#include "tests/service/bare_server.h"

using namespace kvstow;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static testing::BareServer server;
  // Answers must find room in the socket, as nobody reads them.
  if (size > 4096) return 0;
  DirectParts parts = server.Direct();
  auto pair = *DirectSocket::Pair();
  if (!pair.first.SendBytes({data, size}, Clock::Real().Now() + std::chrono::seconds(5)).ok())
    std::abort();
  pair.first.HangUp();
  DirectRequests requests(parts, pair.second, std::chrono::milliseconds(100));
  while (requests.ServeOne().ok()) {
  }
  if (server.staging().open_tickets() != 0) std::abort();
  return 0;
}
