// Bytes from anywhere on a direct connection with TLS: in place of a hello, behind a good handshake
// past the session's back, as what the session carries, or as what an authenticated peer sealed.
// The server survives them, takes nothing that is no record, and nothing stays staged. The first
// byte says where they go.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "proto/wire/tls_context.h"
#include "proto/wire/tls_records.h"
#include "tests/proto/certificates.h"
#include "tests/proto/tls_forger.h"
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

// What is within each record begins with its size.
void OpenSealed(const uint8_t* data, size_t size) {
  testing::TlsForger forger;
  const auto side = size % 2 == 0 ? TlsRecords::Side::kClient : TlsRecords::Side::kServer;
  const auto records =
      TlsRecords::Make(side, testing::TlsForger::kSuite, forger.secret(), forger.secret());
  for (int i = 0; i < 200 && size > 1; ++i) {
    const size_t inner = std::min<size_t>(std::max<size_t>(data[0], 1), size - 1);
    std::vector<uint8_t> record = forger.Sealed({data + 1, data + 1 + inner});
    data += 1 + inner, size -= 1 + inner;
    std::vector<uint8_t> room(size % 3 == 0 ? 0 : inner);
    const auto opened = records->Open(record, room);
    if (!opened.ok()) return;
    if (opened->size() >= inner) std::abort();  // the type is no payload
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static testing::BareServer server;
  static Sides sides;
  // Answers must find room in the socket, as nobody reads them.
  if (size < 1 || size > 4096) return 0;
  const int where = data[0] % 4;
  ++data, --size;
  if (where == 3) {
    OpenSealed(data, size);
    return 0;
  }
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
