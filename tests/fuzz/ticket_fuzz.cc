// Bytes from anywhere on a direct connection to a server with identities: without a ticket that it
// gave, nobody gets an answer.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "tests/service/bare_server.h"

using namespace kvstow;

namespace {

std::unique_ptr<Access> OneTenant() {
  (void)SetUpLog("off", "text");
  std::string path = "/tmp/kvstow_ticket_fuzz_XXXXXX";
  close(mkstemp(path.data()));
  std::ofstream(path) << R"({"tenants": {"a": {}},
                             "identities": [{"uid": 1, "tenant": "a", "role": "worker"}]})";
  auto access = Access::Open(path);
  unlink(path.c_str());
  if (!access.ok()) std::abort();
  return *std::move(access);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static testing::BareServer server;
  static const std::unique_ptr<Access> access = OneTenant();
  static Tickets tickets(std::chrono::hours(1));
  static const std::string given = tickets.New(*access->Identify({{}, "", 1}));
  if (size > 4096) return 0;
  DirectParts parts = server.Direct();
  parts.access = access.get();
  parts.tickets = &tickets;
  auto pair = *DirectSocket::Pair();
  if (!pair.first.SendBytes({data, size}, Clock::Real().Now() + std::chrono::seconds(5)).ok())
    std::abort();
  shutdown(pair.first.descriptor(), SHUT_WR);
  DirectRequests requests(parts, pair.second, std::chrono::milliseconds(100));
  while (requests.ServeOne().ok()) {
  }
  if (requests.caller() != nullptr || !pair.first.Quiet()) std::abort();
  return 0;
}
