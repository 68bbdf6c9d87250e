// Bytes from anywhere on a direct connection with TLS: in place of a hello, behind a good handshake
// past the session's back, or as what the session carries. The server survives them, takes nothing
// that is no record, and nothing stays staged. The first byte says where they go.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "proto/wire/tls_context.h"
#include "tests/proto/certificates.h"
#include "tests/service/bare_server.h"

using namespace kvstow;

namespace {

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(5); }

struct Sides {
  std::string folder = [] {
    static_cast<void>(SetUpLog("off", "text"));
    std::string name = (std::filesystem::temp_directory_path() / "kvstow_fuzz_XXXXXX").string();
    return std::string(mkdtemp(name.data()));
  }();
  testing::Certificates files{folder};
  std::shared_ptr<TlsContext> server = TlsContext::ForServer(files.server()).value();
  std::shared_ptr<TlsContext> client = TlsContext::ForClient(files.anyone(), "localhost").value();
  ~Sides() { std::filesystem::remove_all(folder); }
};

void Write(const DirectSocket& socket, const uint8_t* data, size_t size) {
  if (write(socket.descriptor(), data, size) != static_cast<ssize_t>(size)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static testing::BareServer server;
  static Sides sides;
  // Answers must find room in the socket, as nobody reads them.
  if (size < 1 || size > 4096) return 0;
  const int where = data[0] % 3;
  ++data, --size;
  DirectParts parts = server.Direct();
  auto [peer, served] = *DirectSocket::Pair();
  if (where == 0) {
    Write(peer, data, size);
    peer.HangUp();
    if (served.StartTls(*sides.server, Soon()).ok()) std::abort();  // nobody guesses a handshake
    return 0;
  }
  std::thread shaking([&, &served = served] {
    if (!served.StartTls(*sides.server, Soon()).ok()) std::abort();
  });
  if (!peer.StartTls(*sides.client, Soon()).ok()) std::abort();
  shaking.join();
  DirectRequests requests(parts, served, std::chrono::milliseconds(100));
  if (where == 1) {
    Write(peer, data, size);
  } else if (!peer.SendBytes({data, size}, Soon()).ok()) {
    std::abort();
  }
  peer.HangUp();
  while (requests.ServeOne().ok()) {
    if (where == 1) std::abort();  // no request was sealed
  }
  if (server.staging().open_tickets() != 0) std::abort();
  return 0;
}
