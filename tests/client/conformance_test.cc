// The client against the fake server, over both kinds of address.
#include <unistd.h>

#include "tests/client/fake_server.h"
#include "tests/conformance/client_conformance.h"

namespace kvstow {
namespace {

std::unique_ptr<ServerUnderTest> OverTcp() { return StartFakeServer("127.0.0.1:0"); }
std::unique_ptr<ServerUnderTest> OverUnixSocket() {
  static int n = 0;
  return StartFakeServer("unix:" + testing::TempDir() + "kvstow-" + std::to_string(getpid()) + "-" +
                         std::to_string(n++));
}

INSTANTIATE_TEST_SUITE_P(Tcp, ClientConformance, testing::Values(ServerCase{"fake", OverTcp}));
INSTANTIATE_TEST_SUITE_P(Unix, ClientConformance,
                         testing::Values(ServerCase{"fake", OverUnixSocket}));

}  // namespace
}  // namespace kvstow
