// Peers that ask for much and take nothing: what the server holds in memory stays within its
// budgets, and once they are gone, or make way, others are served.
//
// Pages of 16 MiB of zeros, which are a few bytes as they are stored; budgets for one of them at a
// time. The peers are in the server's process, and hold no more than messages.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/spec.h"
#include "service/transports/direct_requests.h"
#include "tests/adversary/health_probe.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using std::chrono::seconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLargePage = 16 * kMiB;
constexpr uint64_t kBudget = 40 * kMiB;

// The memory that the process holds. 0 under AddressSanitizer, which keeps what was freed.
uint64_t ResidentBytes() {
#ifdef __SANITIZE_ADDRESS__
  return 0;
#endif

  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

KvSpec LargeSpec() {
  KvSpec spec = SmallSpec();
  spec.model = "test/large";
  spec.layers = 32;
  spec.kv_heads = 8;
  spec.head_dim_k = spec.head_dim_v = 128;
  spec.page_tokens = 128;
  return spec;
}

class MemoryTest : public ServerTest {
 protected:
  void SetUp() override {
    mallopt(M_MMAP_THRESHOLD, 256 << 10);  // what is freed is no longer resident
    config_.get_bytes = kBudget;
    config_.stream_idle = std::chrono::hours(24);
    options_.reap_every = std::chrono::milliseconds(5);
    options_.clock = &clock_;
    StartServer();
    ASSERT_EQ(PageBytes(LargeSpec(), 128), kLargePage);
    v1::OpenSpaceRequest request;
    request.set_space("large");
    request.set_recipe("lossless");
    ToProto(LargeSpec(), *request.mutable_spec());
    v1::OpenSpaceResponse response;
    ASSERT_TRUE(client_->kv().OpenSpace(client_->Context().get(), request, &response).ok());
    Fingerprints::All().Note("large", response.fingerprint());
    const PageIn zeros{.key = "zeros", .raw = std::string(kLargePage, '\0'), .tokens = 128};
    const auto put = client_->Put("large", {zeros}, kMiB);
    ASSERT_EQ(put.pages.at(0).status(), v1::STORED) << put.pages[0].message();
    ASSERT_LT(put.pages[0].stored_bytes(), kMiB);
    ASSERT_TRUE(client_->OpenSpace("small", "raw").ok());
    ASSERT_EQ(client_->Put("small", {small_}).pages.at(0).status(), v1::STORED);
    health_.emplace(server_->http_address());
  }
  // The process may have grown by the budget and a tenth.
  void ExpectWithin(uint64_t before) {
    const uint64_t now = ResidentBytes();
    EXPECT_LE(now - std::min(before, now), kBudget + kBudget / 10);
  }

  const PageIn small_{.key = "small", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  std::optional<HealthProbe> health_;
};

// A Get stream that asks for the large page and reads nothing.
class Greedy {
 public:
  Greedy(WireClient& client, uint64_t credit)
      : context_(client.Context(600)), call_(client.kv().Get(context_.get())) {
    v1::GetRequest request;
    NameSpace("large", *request.mutable_open());
    *request.add_pages() = Ask("zeros");
    request.set_credit_bytes(credit);
    EXPECT_TRUE(call_->Write(request));
  }
  ~Greedy() {
    context_->TryCancel();
    v1::GetResponse response;
    while (call_->Read(&response)) {
    }
    call_->Finish();
  }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<GetCall> call_;
};

TEST_F(MemoryTest, GetStreamsWithoutCreditCostNothing) {
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<Greedy>> greedy;
  for (int i = 0; i < 12; ++i) greedy.push_back(std::make_unique<Greedy>(*client_, 0));
  // Pages that others asked for before come first, as far as anybody fetches them.
  EXPECT_EQ(client_->Get("small", {Ask("small")}).pages.at(0).data, small_.raw);
  EXPECT_LE(ResidentBytes(), before + kLargePage / 2);
  // The server lets go of the small page once its own half of that call has ended.
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_get_bytes") == 0; }));
}

// Requests of pages that are nowhere, which wait for credit behind a page that has a byte of it.
class Waiting {
 public:
  static constexpr int kPages = 15'000;

  explicit Waiting(WireClient& client)
      : context_(client.Context(60)), call_(client.kv().Get(context_.get())) {
    v1::GetRequest request;
    NameSpace("small", *request.mutable_open());
    *request.add_pages() = Ask("small", 1);
    for (int i = 1; i < kPages; ++i) *request.add_pages() = Ask("nowhere", i + 1);
    request.set_credit_bytes(1);
    call_->Write(request);
    v1::GetResponse first;
    taken_ = call_->Read(&first);
  }
  bool taken() const { return taken_; }
  // Grants credit. Returns how many pages are answered then.
  int Take() {
    v1::GetRequest request;
    request.set_credit_bytes(kMiB);
    call_->Write(request);
    call_->WritesDone();
    int answers = 0;
    for (v1::GetResponse response; call_->Read(&response);) answers += response.has_begin() ? 1 : 0;
    return answers;
  }
  grpc::StatusCode End() {
    v1::GetResponse response;
    EXPECT_FALSE(call_->Read(&response));
    return call_->Finish().error_code();
  }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<GetCall> call_;
  bool taken_ = false;
};

TEST_F(MemoryTest, RequestsThatWaitForCreditShareABudget) {
  Waiting first(*client_);
  ASSERT_TRUE(first.taken());
  Waiting second(*client_);
  EXPECT_FALSE(second.taken()) << "there is room for one of them";
  EXPECT_EQ(second.End(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client_->Get("small", {Ask("small")}).pages.at(0).data, small_.raw);
  // A client that was idle for a while makes way for those that come back.
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(seconds(2));
    EXPECT_EQ(Waiting(*client_).End(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    return Metric("kvstow_ended_streams_total{reason=\"crowded\"}") == 1;
  }));
  EXPECT_EQ(first.End(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  Waiting another(*client_);
  ASSERT_TRUE(another.taken());
  EXPECT_EQ(another.Take(), Waiting::kPages - 1);
  EXPECT_EQ(another.End(), grpc::StatusCode::OK);
}

// The server reads no more of them than it serves: else they would be too many.
TEST_F(MemoryTest, RequestsWithCreditWaitAtTheClient) {
  constexpr int kMessages = 40, kPages = 1000;
  const auto context = client_->Context(60);
  const auto call = client_->kv().Get(context.get());
  std::thread asks([&] {
    v1::GetRequest request;
    NameSpace("small", *request.mutable_open());
    request.set_credit_bytes(1);
    for (int m = 0; m < kMessages; ++m) {
      for (int i = 0; i < kPages; ++i) *request.add_pages() = Ask("nowhere", i + 1);
      if (!call->Write(request)) return;
      request = {};
    }
    call->WritesDone();
  });
  int answers = 0;
  for (v1::GetResponse response; call->Read(&response);) ++answers;
  asks.join();
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(answers, kMessages * kPages);
}

TEST_F(MemoryTest, GetStreamsWithAByteOfCreditTakeTurnsAndMakeWay) {
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<Greedy>> greedy;
  for (int i = 0; i < 12; ++i) greedy.push_back(std::make_unique<Greedy>(*client_, 1));
  ASSERT_TRUE(Eventually([&] { return Metric("kvstow_waiting_gets") == 11; }));
  auto honest =
      std::async(std::launch::async, [&] { return client_->Get("small", {Ask("small")}); });
  while (honest.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    ExpectWithin(before);
    clock_.Advance(seconds(1));  // those who hold bytes and take nothing make way
  }
  EXPECT_EQ(honest.get().pages.at(0).data, small_.raw);
  EXPECT_GE(Metric("kvstow_ended_streams_total{reason=\"crowded\"}"), 11);
  greedy.clear();
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_get_bytes") == 0; }));
}

TEST_F(MemoryTest, DirectConnectionsThatDoNotReadShareTheBudgetOfStreams) {
  v1::OpenDirectResponse direct;
  ASSERT_TRUE(client_->kv().OpenDirect(client_->Context().get(), {}, &direct).ok());
  const uint64_t before = ResidentBytes();
  std::vector<DirectSocket> sockets;
  v1::DirectRequest request;
  NameSpace("large", *request.mutable_get());
  request.mutable_get()->set_payload(v1::RAW);
  request.mutable_get()->add_pages()->set_key("zeros");
  for (int i = 0; i < 24; ++i) {
    const Time soon = Clock::Real().Now() + seconds(20);
    auto socket = DirectSocket::Connect("127.0.0.1", static_cast<int>(direct.port()), soon);
    ASSERT_TRUE(socket.ok()) << socket.status();
    ASSERT_TRUE(socket->Send(request, {}, 0, soon).ok());
    sockets.push_back(*std::move(socket));
  }
  // Each is answered, with the page or with a refusal.
  for (const DirectSocket& socket : sockets) {
    ASSERT_TRUE(Eventually([&] { return !socket.Quiet(); }));
  }
  ExpectWithin(before);
  EXPECT_GE(Metric("kvstow_refused_calls_total{reason=\"get_memory\"}"), 1);
  // Those that hold bytes and take nothing make way.
  auto honest =
      std::async(std::launch::async, [&] { return client_->Get("large", {Ask("zeros")}); });
  while (honest.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    clock_.Advance(seconds(1));
  }
  const auto got = honest.get();
  ASSERT_EQ(got.pages.size(), 1u) << got.status.error_message();
  EXPECT_TRUE(got.pages[0].data == std::string(kLargePage, '\0'));
  EXPECT_GE(Metric("kvstow_ended_streams_total{reason=\"crowded\"}"), 1);
  sockets.clear();
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_get_bytes") == 0; }));
}

class LeaseFloodTest : public ServerTest {
 protected:
  void SetUp() override { mallopt(M_MMAP_THRESHOLD, 256 << 10); }
};

TEST_F(LeaseFloodTest, LeasesArePromisesOfSoManyPagesAndNoMore) {
  constexpr int kPages = 500, kLookups = 60, kMost = 10'000;
  config_.max_leased_pages = kMost;
  config_.lease_ttl = std::chrono::hours(1);
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  std::vector<PageIn> pages;
  std::vector<std::string> keys;
  for (int i = 0; i < kPages; ++i) {
    keys.push_back("p" + std::to_string(i));
    pages.push_back({.key = keys.back(), .raw = RandomPage(SmallSpec(), 1, i), .tokens = 1});
  }
  for (const v1::PutResult& result : client_->Put("s", pages).pages) {
    ASSERT_EQ(result.status(), v1::STORED);
  }
  const HealthProbe health(server_->http_address());
  // One page, asked for as often as a call takes it, is promised once.
  const std::vector<std::string> repeated(65'536, "p0");
  v1::LookupResponse found = client_->Lookup("s", repeated, true);
  const uint64_t before = ResidentBytes();
  int leases = 1;
  for (; leases < 40; ++leases) {
    found = client_->Lookup("s", repeated, true);
    EXPECT_EQ(found.pages(), repeated.size());
    EXPECT_NE(found.lease(), 0u);
  }
  EXPECT_LE(ResidentBytes(), before + 20 * kMiB);  // promised as often as asked for: 40 MiB
  EXPECT_EQ(Metric("kvstow_leased_pages"), leases);
  for (int i = 0; i < kLookups; ++i) {
    found = client_->Lookup("s", keys, true);
    EXPECT_EQ(found.pages(), keys.size()) << "what is there is told all the same";
    leases += found.lease() != 0 ? 1 : 0;
  }
  EXPECT_EQ(leases, 40 + (kMost - 40) / kPages);
  EXPECT_LE(Metric("kvstow_leased_pages"), kMost);
  EXPECT_EQ(Metric("kvstow_refused_calls_total{reason=\"leases\"}"), 40 + kLookups - leases);
  EXPECT_EQ(client_->Get("s", {Ask("p7")}).pages.at(0).reply.status(), v1::HIT);
}

}  // namespace
}  // namespace kvstow::testing
