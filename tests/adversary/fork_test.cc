// A worker that forks: its child says nothing on the worker's connections, and is told so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/client/prompt.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::Each;

constexpr char kDirectGets[] = "kvstow_direct_pages_total{method=\"get\"}";
constexpr char kLocalGets[] = "kvstow_local_pages_total{method=\"get\"}";

size_t OpenSockets() {
  size_t sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    sockets += std::filesystem::read_symlink(entry, error).string().starts_with("socket:");
  }
  return sockets;
}

// Runs `child` in a child process; its exit code, or -1 when it did not end by itself.
template <typename Child>
int InChild(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);  // a call that never ends
    _exit(child());
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class ForkTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.local_socket = (folder_ / "local").string();
    StartServer();
    worker_ = Client::Connect({.address = server_->address(), .direct_connections = 1});
    ASSERT_TRUE(worker_->OpenSpace({.name = "s", .spec = spec_, .recipe = "raw"}).ok());
    ASSERT_THAT(OutcomesOf(worker_->Put("s", prompt_.Puts()).get()), Each(PageOutcome::kStored));
    ASSERT_TRUE(Eventually([&] {
      GetAll();
      return Metric(kDirectGets) > 0;
    }));
    buffer_ = worker_->NewBuffer(PageBytes(spec_, spec_.page_tokens));
    ASSERT_TRUE(buffer_->shared());
  }
  void GetAll() {
    Fetch fetch(spec_, prompt_.keys);
    EXPECT_THAT(OutcomesOf(worker_->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kHit));
    EXPECT_EQ(fetch.buffers, prompt_.pages);
  }
  void GetShared() {
    std::ranges::fill(buffer_->bytes(), 0);
    const auto got =
        worker_->Get("s", 0, {{.key = prompt_.keys[0], .out = buffer_->bytes()}}).get();
    EXPECT_EQ(got[0].outcome, PageOutcome::kHit) << got[0].message;
    EXPECT_TRUE(std::ranges::equal(buffer_->bytes(), prompt_.pages[0]));
  }
  // How many of a worker's calls do not say in a child what they should.
  int WrongCalls() {
    int wrong = 0;
    const auto says = [&](const absl::Status& status) { wrong += !absl::IsUnavailable(status); };
    says(worker_->OpenSpace({.name = "t", .spec = spec_}).status());
    says(worker_->FindSpace("s").status());
    says(worker_->Lookup("s", prompt_.keys).status);
    says(worker_->Release(1));
    says(worker_->Delete("s", prompt_.keys).status());
    says(worker_->Pin("s", prompt_.keys, true).status());
    says(worker_->Call("/kvstow.v1.Admin/Status", "").status());
    Fetch fetch(spec_, prompt_.keys);
    for (const GetResult& got : worker_->Get("s", 0, fetch.gets).get()) {
      wrong += got.outcome != PageOutcome::kUnavailable || got.message.empty();
    }
    for (const PutResult& put : worker_->Put("s", prompt_.Puts()).get()) {
      wrong += put.outcome != PageOutcome::kUnavailable || put.message.empty();
    }
    const auto shared =
        worker_->Get("s", 0, {{.key = prompt_.keys[0], .out = buffer_->bytes()}}).get();
    wrong += shared[0].outcome != PageOutcome::kUnavailable;
    wrong += buffer_->shared();
    wrong += worker_->NewBuffer(4096)->shared();
    return wrong;
  }

  const KvSpec spec_ = kvstow::SmallSpec();
  const Prompt prompt_{spec_, 4 * 64, 1};
  std::unique_ptr<Client> worker_;
  std::unique_ptr<PageBuffer> buffer_;
};

TEST_F(ForkTest, AChildsCallsFailAndItsParentGoesOn) {
  const size_t sockets = OpenSockets();
  EXPECT_EQ(InChild([&] { return WrongCalls(); }), 0);
  EXPECT_EQ(InChild([&] { return OpenSockets() + 2 <= sockets ? 0 : 1; }), 0)
      << "a child keeps the direct connection and the local session open";
  const double direct = Metric(kDirectGets), local = Metric(kLocalGets);
  GetAll();
  GetShared();
  EXPECT_EQ(Metric(kDirectGets), direct + 4);
  EXPECT_EQ(Metric(kLocalGets), local + 1);
}

TEST_F(ForkTest, AChildMayDestroyWhatItsParentHas) {
  const int code = InChild([&] {
    buffer_.reset();
    worker_.reset();
    return 0;
  });
  EXPECT_EQ(code, 0);
  GetAll();
  GetShared();
}

TEST_F(ForkTest, AClientMadeInAChildSaysWhatToDo) {
  const int code = InChild([&] {
    const auto client = Client::Connect({.address = server_->address()});
    const absl::Status status = client->FindSpace("s").status();
    return absl::IsUnavailable(status) && status.message().find("exec") != std::string::npos ? 0
                                                                                             : 1;
  });
  EXPECT_EQ(code, 0);
  GetAll();
}

}  // namespace
}  // namespace kvstow::testing
