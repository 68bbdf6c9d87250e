// A server within the test's process, on ports of its own and with a folder of its own.
#ifndef KVSTOW_TESTS_SERVICE_SERVER_FIXTURE_H_
#define KVSTOW_TESTS_SERVICE_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "service/server.h"
#include "tests/service/wire_client.h"

namespace kvstow::testing {

// Looks every 20 milliseconds until `condition` holds; false after 60 seconds.
bool Eventually(const std::function<bool()>& condition);

class ServerTest : public ::testing::Test {
 protected:
  ServerTest();
  ~ServerTest() override;

  // Starts the server as config_ and options_ say, and the client that talks to it.
  void StartServer();
  void StopServer();
  // A folder for the disk tier, within the test's own.
  std::string DiskPath() const { return (folder_ / "disk").string(); }
  // The value of a metric (the whole text before the value), or -1.
  double Metric(const std::string& name) const;

  std::filesystem::path folder_;
  Config config_;
  ManualClock clock_;  // of the server, where options_ name it
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<WireClient> client_;
};

// The body of an HTTP GET; `status` may be null.
std::string HttpGet(const std::string& address, const std::string& path, int* status = nullptr);

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_SERVER_FIXTURE_H_
