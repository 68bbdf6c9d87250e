// A client of several servers, which share a remote store: it prefers one, goes to another when
// that one is dead or drains, and comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "client/client.h"
#include "kvstow/v1/admin.pb.h"
#include "service/remote/remote_tier.h"
#include "service/server.h"
#include "tests/client/batch/layers.h"
#include "tests/client/prompt.h"
#include "tests/client/transport/ways.h"
#include "tests/restartable_address.h"
#include "tests/service/remote/memory_remote_store.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kPages = 5;

// A server that may stop and start again at its address.
class FleetNode {
 public:
  FleetNode(const std::string& address, const std::string& local_socket, MemoryRemoteStore& remote)
      : remote_(remote) {
    config_.listen = address;
    config_.http_listen = "127.0.0.1:0";
    config_.device = "cpu";
    config_.host_bytes = 64 << 20;
    config_.local_socket = local_socket;
    config_.local_bytes = 64 << 20;
    config_.log_level = "error";
    Start();
  }
  void Start() {
    ServerOptions options;
    options.drain_grace = Duration(0);  // calls that run are cut off
    options.open_remote = [this] { return std::make_unique<SharedRemote>(remote_); };
    auto server = Server::Start(config_, options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Kill() { server_.reset(); }
  void SendAll() { server_->remote().Flush(); }
  void Drain(bool resume) {
    v1::DrainRequest request;
    request.set_resume(resume);
    const auto client = Client::Connect({.address = address()});
    ASSERT_TRUE(client->Call("/kvstow.v1.Admin/Drain", request.SerializeAsString()).ok());
  }
  double Metric(const std::string& name) const {
    const std::string text = "\n" + HttpGet(server_->http_address(), "/metrics");
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  // Pages that were got beside streams.
  double PagesGotBy(const ClientWay& way) const {
    const char* const table = way.shared ? "local" : "direct";
    return Metric(absl::StrCat("kvstow_", table, "_pages_total{method=\"get\"}"));
  }
  const std::string& address() const { return config_.listen; }

 private:
  MemoryRemoteStore& remote_;
  Config config_;
  std::unique_ptr<Server> server_;
};

class FleetTest : public ::testing::Test {
 protected:
  FleetTest() {
    EXPECT_TRUE(SetUpLog("off", "text").ok());
    std::string name = (std::filesystem::temp_directory_path() / "kvstow_fleet_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    for (FleetNode* const node : {&a_.emplace("unix:" + Path("a"), Path("local-a"), remote_),
                                  &b_.emplace(RestartableAddress(), Path("local-b"), remote_),
                                  &c_.emplace(RestartableAddress(), Path("local-c"), remote_)}) {
      // The order that the client prefers is not the order of the list.
      list_ = absl::StrCat(list_, list_.empty() ? "" : ",", node->address());
    }
  }
  ~FleetTest() override {
    a_.reset();
    b_.reset();
    c_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = list_;
    return Client::Connect(std::move(options));
  }
  static void Open(Client& client) {
    const auto space = client.OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
    ASSERT_TRUE(space.ok()) << space.status();
  }
  // A prompt's pages, and room for them, where the way takes them from.
  struct Room {
    std::unique_ptr<PageBuffer> buffer;
    std::vector<std::vector<uint8_t>> heap;
    std::vector<std::span<uint8_t>> pages;
    std::vector<PagePut> puts;
    std::vector<PageGet> gets;
  };
  static Room MakeRoom(Client& client, const ClientWay& way, const Prompt& prompt) {
    Room room{.puts = prompt.Puts()};
    const size_t bytes = RoundUpToSharedPage(prompt.pages[0].size());
    if (way.shared) room.buffer = client.NewBuffer(bytes * prompt.pages.size());
    for (size_t p = 0; p < prompt.pages.size(); ++p) {
      if (!way.shared) room.heap.emplace_back(prompt.pages[p].size());
      room.pages.push_back(way.shared
                               ? room.buffer->bytes().subspan(p * bytes, prompt.pages[p].size())
                               : std::span<uint8_t>(room.heap.back()));
    }
    for (size_t p = 0; p < prompt.pages.size(); ++p) {
      std::ranges::copy(prompt.pages[p], room.pages[p].begin());
      room.puts[p].raw = room.pages[p];
      room.gets.push_back({.key = prompt.keys[p], .out = room.pages[p]});
    }
    return room;
  }
  static void ExpectHits(Client& client, const Prompt& prompt, Room& room, uint64_t lease = 0) {
    for (const auto& page : room.pages) std::ranges::fill(page, 0xee);
    const auto results = client.Get("s", lease, room.gets).get();
    for (size_t p = 0; p < prompt.pages.size(); ++p) {
      ASSERT_EQ(results[p].outcome, PageOutcome::kHit) << results[p].message;
      EXPECT_TRUE(std::ranges::equal(room.pages[p], prompt.pages[p])) << "page " << p;
    }
  }
  static void ExpectStored(Client& client, const Room& room) {
    const auto results = client.Put("s", room.puts).get();
    EXPECT_THAT(OutcomesOf(results), Each(PageOutcome::kStored)) << results[0].message;
  }
  // Makes calls until one goes to the node.
  static void AwaitNode(Client& client, const FleetNode& node) {
    EXPECT_TRUE(Eventually([&] {
      (void)client.Lookup("s", std::vector<std::string>{"none"}, false);
      return client.serving().address == node.address();
    })) << client.serving().address;
  }

  std::filesystem::path folder_;
  MemoryRemoteStore remote_;
  std::optional<FleetNode> a_, b_, c_;
  std::string list_;
};

// Every way of pages alone. Direct connections need a first node that has a port.
class FleetWays : public FleetTest, public ::testing::WithParamInterface<ClientWay> {
 protected:
  std::unique_ptr<Client> ConnectByWay() {
    ClientOptions options = way_.options;
    options.address = absl::StrCat(first_.address(), ",", second_.address());
    return Client::Connect(std::move(options));
  }
  // Gets until pages come beside streams, where they may: connections open in the background.
  void AwaitWay(Client& client, FleetNode& node, const Prompt& prompt, Room& room) {
    EXPECT_TRUE(Eventually([&] {
      ExpectHits(client, prompt, room);
      return HasFatalFailure() || !beside_streams_ || node.PagesGotBy(way_) >= kPages;
    }));
  }

  const ClientWay& way_ = GetParam();
  const bool direct_ = !way_.shared && way_.options.direct_connections > 0;
  const bool beside_streams_ = way_.shared || direct_;
  FleetNode& first_ = direct_ ? *b_ : *a_;
  FleetNode& second_ = direct_ ? *c_ : *b_;
};

TEST_P(FleetWays, WhatOneNodeWasGivenTheNextOneServes) {
  const auto client = ConnectByWay();
  Open(*client);
  EXPECT_EQ(client->serving().address, first_.address());
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  Room room = MakeRoom(*client, way_, prompt);
  EXPECT_EQ(way_.shared, room.buffer != nullptr && room.buffer->shared());
  ExpectStored(*client, room);
  AwaitWay(*client, first_, prompt, room);
  const PrefixHit hit = client->Lookup("s", prompt.keys);
  ASSERT_EQ(hit.pages, kPages) << hit.status;
  ASSERT_NE(hit.lease, 0u);
  first_.SendAll();

  first_.Kill();
  ExpectHits(*client, prompt, room, hit.lease);
  EXPECT_EQ(client->serving().address, second_.address());
  EXPECT_EQ(client->serving().changes, 1u);
  EXPECT_EQ(client->Lookup("s", prompt.keys).pages, kPages);
  EXPECT_TRUE(client->Release(hit.lease).ok()) << "the second node is not told of it";
  // What the client has open beside streams, it opens there too.
  const Prompt more(SmallSpec(), 64 * kPages, 2);
  Room there = MakeRoom(*client, way_, more);
  if (way_.shared) {
    EXPECT_TRUE(there.buffer->shared());
    EXPECT_FALSE(room.buffer->shared());
  }
  ExpectStored(*client, there);
  AwaitWay(*client, second_, more, there);

  first_.Start();
  AwaitNode(*client, first_);
  EXPECT_EQ(client->serving().changes, 2u);
  second_.SendAll();
  ExpectHits(*client, more, there);
  ExpectHits(*client, prompt, room);
}

TEST_P(FleetWays, ADrainingNodeStoresElsewhereWithinTheCall) {
  const auto client = ConnectByWay();
  Open(*client);
  const Prompt first(SmallSpec(), 64 * kPages, 1), second(SmallSpec(), 64 * kPages, 2);
  Room one = MakeRoom(*client, way_, first), two = MakeRoom(*client, way_, second);
  ExpectStored(*client, one);
  AwaitWay(*client, first_, first, one);
  first_.Drain(/*resume=*/false);
  EXPECT_EQ(client->Lookup("s", first.keys).pages, kPages) << "it still answers";
  EXPECT_EQ(client->serving().address, first_.address());
  ExpectStored(*client, two);
  EXPECT_EQ(client->serving().address, second_.address());
  // Each page beside streams was refused before the stream was.
  EXPECT_GE(first_.Metric("kvstow_refused_calls_total{reason=\"draining\"}"),
            beside_streams_ ? kPages + 1 : 1);
  for (int calls = 0; calls < 20; ++calls) ExpectHits(*client, second, two);
  EXPECT_EQ(client->serving().address, second_.address());
  first_.Drain(/*resume=*/true);
  AwaitNode(*client, first_);
  ExpectHits(*client, first, one);
}

// A scheduler looks up with one client, and a worker gets with another, at another node.
TEST_P(FleetWays, ALeaseThatTheNodeDoesNotKnowCostsNoPage) {
  const auto client = ConnectByWay();
  Open(*client);
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  Room room = MakeRoom(*client, way_, prompt);
  ExpectStored(*client, room);
  AwaitWay(*client, first_, prompt, room);
  const auto scheduler = Client::Connect({.address = second_.address()});
  Open(*scheduler);
  ASSERT_THAT(OutcomesOf(scheduler->Put("s", prompt.Puts()).get()), Each(PageOutcome::kStored));
  const PrefixHit hit = scheduler->Lookup("s", prompt.keys);
  ASSERT_EQ(hit.pages, kPages) << hit.status;
  ASSERT_NE(hit.lease, 0u);
  for (int calls = 0; calls < 10; ++calls) ExpectHits(*client, prompt, room, hit.lease);
  EXPECT_EQ(client->serving().address, first_.address());
  // To a client of one server it has run out.
  ClientOptions options = way_.options;
  options.address = first_.address();
  EXPECT_THAT(OutcomesOf(Client::Connect(options)->Get("s", hit.lease, room.gets).get()),
              Each(PageOutcome::kExpired));
}

INSTANTIATE_TEST_SUITE_P(, FleetWays,
                         ::testing::Values(kClientWays[0], kClientWays[1], kClientWays[2]),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(FleetTest, APageThatDoesNotFitItsBufferSaysNothingOfItsNode) {
  const auto client = Connect({.direct_connections = 0});
  Open(*client);
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  Room room = MakeRoom(*client, {}, prompt);
  ExpectStored(*client, room);
  std::vector<PageGet> gets = room.gets;
  gets[0].out = gets[0].out.first(gets[0].out.size() / 2);
  const auto results = client->Get("s", 0, gets).get();
  EXPECT_EQ(results[0].outcome, PageOutcome::kNotCompatible);
  for (size_t page = 1; page < results.size(); ++page) {
    EXPECT_EQ(results[page].outcome, PageOutcome::kHit) << results[page].message;
  }
  EXPECT_EQ(client->serving().changes, 0u);
}

TEST_F(FleetTest, ASecondNodeThatDiesIsTheThirdOnesTurn) {
  const auto client = Connect();
  Open(*client);
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  Room room = MakeRoom(*client, {}, prompt);
  ExpectStored(*client, room);
  a_->SendAll();
  a_->Kill();
  b_->Kill();
  EXPECT_EQ(client->Lookup("s", prompt.keys).pages, kPages);
  EXPECT_EQ(client->serving().address, c_->address());
  b_->Start();
  AwaitNode(*client, *b_);
  ExpectHits(*client, prompt, room);
}

TEST_F(FleetTest, ADeadFleetIsAMissAndOneThatComesBackServes) {
  const auto client = Connect({.timeout = std::chrono::seconds(20), .attempts = 2});
  Open(*client);
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  Room room = MakeRoom(*client, {}, prompt);
  for (FleetNode* const node : {&*a_, &*b_, &*c_}) node->Kill();
  for (int calls = 0; calls < 3; ++calls) {
    const PrefixHit hit = client->Lookup("s", prompt.keys);
    EXPECT_EQ(hit.pages, 0u);
    EXPECT_TRUE(absl::IsUnavailable(hit.status)) << hit.status;
    EXPECT_THAT(std::string(hit.status.message()), HasSubstr(list_));
    EXPECT_THAT(OutcomesOf(client->Put("s", room.puts).get()), Each(PageOutcome::kUnavailable));
    EXPECT_THAT(OutcomesOf(client->Get("s", 0, room.gets).get()), Each(PageOutcome::kUnavailable));
  }
  c_->Start();
  EXPECT_TRUE(Eventually([&] {
    return OutcomesOf(client->Put("s", room.puts).get()) ==
           std::vector(kPages, PageOutcome::kStored);
  }));
  EXPECT_EQ(client->serving().address, c_->address());
}

// The pages that the dead node answered are not sent again; the others go on at the next one.
TEST_F(FleetTest, APutOfLayersGoesOnAtTheNextNode) {
  const auto client = Connect();
  const auto space = client->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok()) << space.status();
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  std::promise<std::vector<PutResult>> done;
  const auto put = client->PutLayers(*space, prompt.Puts(), [&](std::vector<PutResult> results) {
    done.set_value(std::move(results));
  });
  put->Filled(1);
  EXPECT_TRUE(Eventually([&] { return a_->Metric("kvstow_open_streams{method=\"put\"}") > 0; }));
  a_->Kill();
  put->Filled(SmallSpec().layers);
  EXPECT_THAT(OutcomesOf(done.get_future().get()), Each(PageOutcome::kStored));
  Room room = MakeRoom(*client, {}, prompt);
  ExpectHits(*client, prompt, room);
  EXPECT_EQ(client->serving().address, b_->address());
}

TEST_F(FleetTest, AnotherModelsSpaceOnTheNextNodeServesNothing) {
  const auto client = Connect();
  Open(*client);
  KvSpec other = SmallSpec();
  other.model = "test/other";
  const auto at_b = Client::Connect({.address = b_->address()});
  ASSERT_TRUE(at_b->OpenSpace({.name = "s", .spec = other, .recipe = "raw"}).ok());
  const Prompt prompt(SmallSpec(), 64 * kPages, 1);
  ASSERT_THAT(OutcomesOf(at_b->Put("s", Prompt(other, 64 * kPages, 1).Puts()).get()),
              Each(PageOutcome::kStored));
  a_->Kill();
  Room room = MakeRoom(*client, {}, prompt);
  const auto results = client->Get("s", 0, room.gets).get();
  EXPECT_THAT(OutcomesOf(results), Each(PageOutcome::kNotCompatible));
  EXPECT_THAT(results[0].message, HasSubstr("model"));
  EXPECT_EQ(client->serving().address, b_->address());
}

TEST_F(FleetTest, ASpaceOfNormedKeysIsTheSameOnTheNextNode) {
  const auto opened = Connect(), found = Connect();
  const auto space =
      opened->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "auto", .normed_keys = true});
  ASSERT_TRUE(space.ok()) << space.status();
  ASSERT_TRUE(found->FindSpace("s").ok());
  a_->Kill();
  for (Client* const client : {found.get(), opened.get()}) {
    const PrefixHit hit = client->Lookup("s", std::vector<std::string>{"none"}, false);
    EXPECT_TRUE(hit.status.ok()) << hit.status;
    EXPECT_EQ(client->serving().address, b_->address());
  }
}

TEST_F(FleetTest, WhatIsNotThereIsPassedOver) {
  const Prompt prompt(SmallSpec(), 64, 1);
  for (const std::string& dead :
       {"unix:" + Path("nobody"), RestartableAddress(), std::string("no-such-host.invalid:7380")}) {
    SCOPED_TRACE(dead);
    const auto client = Client::Connect({.address = absl::StrCat(dead, ",", c_->address())});
    Open(*client);
    EXPECT_EQ(client->Lookup("s", prompt.keys).status, absl::OkStatus());
    EXPECT_EQ(client->serving().address, c_->address());
  }
}

TEST_F(FleetTest, ANameIsAllOfItsAddresses) {
  const std::string port = c_->address().substr(c_->address().rfind(':') + 1);
  const auto client = Client::Connect({.address = "dns:///localhost:" + port});
  Open(*client);
  EXPECT_TRUE(Eventually([&] {
    const PrefixHit hit = client->Lookup("s", std::vector<std::string>{"none"});
    EXPECT_TRUE(hit.status.ok()) << hit.status;
    return client->serving().address == "127.0.0.1:" + port;
  })) << client->serving().address;
}

// A server that takes connections and hangs up: the client finds it dead each time that it tries.
class HangsUp {
 public:
  HangsUp() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
    thread_ = std::thread([this] {
      for (int peer = accept(fd_, nullptr, nullptr); peer >= 0;
           peer = accept(fd_, nullptr, nullptr)) {
        ++connections_;
        close(peer);
      }
    });
  }
  ~HangsUp() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  const std::string& address() const { return address_; }
  int connections() const { return connections_; }

 private:
  const int fd_;
  std::string address_;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

TEST_F(FleetTest, ManyCallsToTheDeadAreFewConnections) {
  const HangsUp one, two;
  const auto client = Client::Connect({.address = one.address() + "," + two.address(),
                                       .timeout = std::chrono::milliseconds(500),
                                       .attempts = 1,
                                       .direct_connections = 0});
  const Prompt prompt(SmallSpec(), 64, 1);
  const Time start = Clock::Real().Now();
  for (int calls = 0; calls < 300; ++calls) {
    EXPECT_FALSE(client->Lookup("s", prompt.keys).status.ok());
  }
  const double seconds = std::chrono::duration<double>(Clock::Real().Now() - start).count();
  // gRPC waits a second before it connects again; a node that has rested is tried once more.
  EXPECT_LE(one.connections() + two.connections(), 8 + 8 * seconds);
  EXPECT_GT(one.connections(), 0);
  EXPECT_GT(two.connections(), 0);
}

}  // namespace
}  // namespace kvstow::testing
