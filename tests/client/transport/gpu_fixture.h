// What the tests of pages on a GPU share: a server and its clients, whose GPU the host plays. No
// address of the "GPU" can be dereferenced.
#ifndef KVSTOW_TESTS_CLIENT_TRANSPORT_GPU_FIXTURE_H_
#define KVSTOW_TESTS_CLIENT_TRANSPORT_GPU_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/log.h"
#include "client/client.h"
#include "kernels/device/host_sharing.h"
#include "service/server.h"
#include "tests/client/prompt.h"
#include "tests/client/transport/played_gpus.h"
#include "tests/client/transport/ways.h"
#include "tests/restartable_address.h"

namespace kvstow {

class GpuPagesTest : public ::testing::Test {
 protected:
  GpuPagesTest() {
    EXPECT_TRUE(SetUpLog("error", "text").ok());
    std::string name = (std::filesystem::temp_directory_path() / "kvstow_gpu_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    config_.listen = RestartableAddress();
    config_.http_listen = "127.0.0.1:0";
    config_.host_bytes = 64 << 20;
    config_.local_socket = (folder_ / "local").string();
    config_.local_bytes = 64 << 20;
    config_.local_gpu_bytes = 64 << 20;
    options_.gpu = &HostDevice();
    options_.gpu_sharing = &servers_gpu_;
  }
  ~GpuPagesTest() override {
    servers_gpu_.LetGo();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    auto server = Server::Start(config_, options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = server_->address();
    return Client::Connect(options);
  }
  std::unique_ptr<Client> ConnectGpu(ClientOptions options = {}) {
    options.gpu = gpu_;
    return Connect(options);
  }
  std::unique_ptr<Client> ConnectBy(const ClientWay& way,
                                    std::chrono::milliseconds timeout = ClientOptions().timeout) {
    ClientOptions options = way.options;
    options.timeout = timeout;
    return way.on_gpu ? ConnectGpu(options) : Connect(options);
  }

  // A prompt's pages in the GPU's memory, and room for them.
  struct OnGpu {
    std::vector<std::vector<uint8_t>> pages, room;
    std::vector<PagePut> puts;
    std::vector<PageGet> gets;

    explicit OnGpu(const Prompt& prompt)
        : pages(prompt.pages), room(prompt.pages.size()), puts(prompt.Puts()) {
      for (size_t p = 0; p < pages.size(); ++p) {
        puts[p].raw = AsDeviceBytes(pages[p]);
        puts[p].on_gpu = true;
        room[p].assign(pages[p].size(), 0xee);
        gets.push_back({.key = prompt.keys[p], .out = AsDeviceBytes(room[p]), .on_gpu = true});
      }
    }
  };
  // Puts and gets a prompt, and compares with streams.
  void ExpectWhatStreamsGive(Client& client, const std::string& space) {
    const Prompt prompt(SmallSpec(), 5 * 64 + 24, ++seed_);
    OnGpu on_gpu(prompt);
    ASSERT_THAT(OutcomesOf(client.Put(space, on_gpu.puts).get()),
                ::testing::Each(PageOutcome::kStored));
    const auto streams = Connect({.shared_bytes = 0});
    EXPECT_THAT(OutcomesOf(streams->Put(space, prompt.Puts()).get()),
                ::testing::Each(PageOutcome::kAlreadyThere));
    Fetch streamed(prompt);
    const auto a = streams->Get(space, 0, streamed.gets).get();
    const auto b = client.Get(space, 0, on_gpu.gets).get();
    for (size_t p = 0; p < a.size(); ++p) {
      ASSERT_EQ(a[p].outcome, PageOutcome::kHit) << a[p].message;
      ASSERT_EQ(b[p].outcome, PageOutcome::kHit) << b[p].message;
      EXPECT_EQ(a[p].bytes, b[p].bytes);
      EXPECT_EQ(a[p].keep, b[p].keep);
      EXPECT_EQ(a[p].exact, b[p].exact);
      EXPECT_EQ(a[p].raw_digest, b[p].raw_digest);
      EXPECT_EQ(on_gpu.room[p], streamed.buffers[p]);
    }
  }
  void Open(Client& client, const std::string& space, const std::string& recipe) {
    const bool sparse = absl::StrContains(recipe, "keep");
    ASSERT_TRUE(client
                    .OpenSpace({.name = space,
                                .spec = SmallSpec(),
                                .recipe = recipe,
                                .fidelity = sparse ? Fidelity::kSparse : Fidelity::kUnspecified})
                    .ok());
  }

  int seed_ = 0;
  std::filesystem::path folder_;
  const std::shared_ptr<WorkersGpu> gpu_ = std::make_shared<WorkersGpu>();
  ServersGpu servers_gpu_{kUuid};
  Config config_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CLIENT_TRANSPORT_GPU_FIXTURE_H_
