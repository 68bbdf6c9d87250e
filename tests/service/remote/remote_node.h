// A server over a remote store that several servers share, in the test's process.
#ifndef KVSTOW_TESTS_SERVICE_REMOTE_REMOTE_NODE_H_
#define KVSTOW_TESTS_SERVICE_REMOTE_REMOTE_NODE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/aead.h"
#include "base/digest.h"
#include "base/log.h"
#include "service/remote/remote_tier.h"
#include "tests/service/remote/memory_remote_store.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {

inline constexpr int kPages = 5;
// A failure stands out where servers do not say each time that they start.
inline const absl::Status kQuiet = SetUpLog("error", "text");

// A source of a master key whose bytes are all the same.
inline std::string MasterKeyOf(uint8_t byte) {
  const std::string name = absl::StrCat("KVSTOW_TEST_MASTER_", byte);
  setenv(name.c_str(), HexOf(std::vector<uint8_t>(kAeadKeyBytes, byte)).c_str(), 1);
  return absl::StrCat("env:", name);
}
inline Config SealedBy(uint8_t byte) {
  Config config;
  config.master_key = MasterKeyOf(byte);
  return config;
}

struct Node {
  explicit Node(MemoryRemoteStore& remote, Config config = {}) {
    ServerOptions options;
    options.open_remote = [this, &remote] {
      return std::make_unique<SharedRemote>(remote, &record_reads);
    };
    Start(std::move(config), options);
  }
  // Its configuration names the remote store.
  explicit Node(Config config) { Start(std::move(config), {}); }
  void Start(Config config, const ServerOptions& options) {
    config.listen = "127.0.0.1:0";
    config.http_listen = "off";
    config.host_bytes = 64 << 20;
    config.log_level = "error";
    server = Server::Start(config, options).value();
    client = std::make_unique<WireClient>(server->address());
  }
  void Open(const std::string& recipe) {
    const grpc::Status opened = client->OpenSpace("s", recipe);
    ASSERT_TRUE(opened.ok()) << opened.error_message();
  }
  void PutAll() {
    std::vector<PageIn> pages;
    for (int i = 0; i < kPages; ++i) pages.push_back(PageAt(i));
    for (const v1::PutResult& result : client->Put("s", pages).pages) {
      EXPECT_EQ(result.status(), v1::STORED) << result.message();
    }
    server->remote().Flush();
  }
  // The request for a call about the space.
  template <typename Request>
  Request About() {
    Request request;
    v1::OpenSpaceResponse opened;
    EXPECT_TRUE(client->FindSpace("s", &opened).ok());
    request.set_space("s");
    request.set_fingerprint(opened.fingerprint());
    return request;
  }
  void Delete(int i) {
    auto request = About<v1::DeleteRequest>();
    request.add_keys(KeyOf(i));
    v1::DeleteResponse response;
    EXPECT_TRUE(client->kv().Delete(client->Context().get(), request, &response).ok());
  }
  void Drop() {
    v1::DropSpaceResponse response;
    EXPECT_TRUE(client->kv()
                    .DropSpace(client->Context().get(), About<v1::DropSpaceRequest>(), &response)
                    .ok());
  }
  absl::StatusCode DropTenant() {
    v1::DropTenantResponse out;
    return CodeOf(client->admin().DropTenant(client->Context().get(), {}, &out));
  }
  absl::StatusCode RotateKey() {
    v1::RotateKeyResponse out;
    return CodeOf(client->admin().RotateKey(client->Context().get(), {}, &out));
  }
  static absl::StatusCode CodeOf(const grpc::Status& status) {
    return static_cast<absl::StatusCode>(status.error_code());
  }
  // A metric of the remote tier.
  double Row(const std::string& name) const {
    for (const MetricRow& row : server->remote().Rows()) {
      if (name == row.name) return static_cast<double>(row.value);
    }
    ADD_FAILURE() << "no metric " << name;
    return -1;
  }
  static PageIn PageAt(int i) {
    const KvSpec spec = SmallSpec();
    return {.key = KeyOf(i),
            .raw = RandomPage(spec, spec.page_tokens, static_cast<uint32_t>(i + 1)),
            .tokens = spec.page_tokens,
            .first_position = uint64_t{spec.page_tokens} * static_cast<uint64_t>(i)};
  }
  static std::string KeyOf(int i) { return absl::StrCat("page-", i); }
  static std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    for (int i = 0; i < kPages; ++i) keys.push_back(KeyOf(i));
    return keys;
  }
  v1::LookupResponse Lookup() { return client->Lookup("s", Keys(), false); }
  PageOut Get(int i) { return client->Get("s", {Ask(KeyOf(i))}).pages.at(0); }

  std::atomic<int> record_reads = 0;  // round trips
  std::unique_ptr<Server> server;
  std::unique_ptr<WireClient> client;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_REMOTE_REMOTE_NODE_H_
