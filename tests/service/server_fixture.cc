#include "tests/service/server_fixture.h"

#include <httplib.h>

#include <chrono>
#include <thread>

#include "base/log.h"

namespace kvstow::testing {

bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    // A loop that spins would take the time of what it waits for.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

ServerTest::ServerTest() {
  EXPECT_TRUE(SetUpLog("error", "text").ok());
  std::string name = (std::filesystem::temp_directory_path() / "kvstow_test_XXXXXX").string();
  folder_ = mkdtemp(name.data());
  config_.listen = "127.0.0.1:0";
  config_.http_listen = "127.0.0.1:0";
  config_.device = "cpu";
  config_.host_bytes = 64 << 20;
}

ServerTest::~ServerTest() {
  client_.reset();
  server_.reset();
  std::filesystem::remove_all(folder_);
}

void ServerTest::StartServer() {
  auto server = Server::Start(config_, options_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  client_ = std::make_unique<WireClient>(server_->address());
}

void ServerTest::StopServer() {
  client_.reset();
  if (server_ != nullptr) {
    EXPECT_TRUE(server_->Stop().ok());
  }
  server_.reset();
}

double ServerTest::Metric(const std::string& name) const {
  const std::string text = "\n" + HttpGet(server_->http_address(), "/metrics");
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

std::string HttpGet(const std::string& address, const std::string& path, int* status) {
  httplib::Client client("http://" + address);
  const auto result = client.Get(path);
  if (status != nullptr) *status = result ? result->status : -1;
  return result ? result->body : "";
}

}  // namespace kvstow::testing
