// One tenant's attempts at another's pages: none succeeds, whatever keys, leases, fingerprints,
// tickets and slots it has got hold of. KVSTOW_CROSS_TENANT = how many it makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/spec.h"
#include "tests/service/access/tenants.h"
#include "tests/service/transports/local_worker.h"

namespace kvstow::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr int kPages = 8;
// "s" is a name that both have; "vault" a's alone; "docs" was shared once.
const std::vector<std::string> kSpaces = {"s", "vault", "docs"};

Time Soon() { return Clock::Real().Now() + kSoon; }

class CrossTenantTest : public TenantsTest {
 protected:
  CrossTenantTest() {
    config_.local_socket = (folder_ / "local.sock").string();
    config_.local_bytes = 4 << 20;
    config_.lease_ttl = std::chrono::hours(1);
  }
  ~CrossTenantTest() override {
    socket_.reset();
    session_.reset();
    StopServer();
  }

  // What `a` has, and what `b` has stolen: everything but a's token.
  void Prepare() {
    StartServer();
    for (const std::string& space : kSpaces) {
      v1::OpenSpaceResponse opened;
      ASSERT_TRUE(As("a.worker").OpenSpace(space, "raw", &opened).ok());
      std::vector<PageIn> pages;
      std::vector<std::string> keys;
      for (int i = 0; i < kPages; ++i) {
        keys.push_back(absl::StrCat(space, "-", i));
        pages.push_back(Page(keys.back(), static_cast<uint32_t>(i)));
      }
      ASSERT_TRUE(As("a.worker").Put(space, pages).status.ok());
      const v1::LookupResponse found = As("a.worker").Lookup(space, keys, /*lease=*/true);
      ASSERT_EQ(found.pages(), static_cast<uint32_t>(kPages));
      leases_.push_back(found.lease());
    }
    EXPECT_EQ(As("b.reader").Lookup("docs", {"docs-0"}, false).pages(), 1u) << "it is shared";
    access_["shared_spaces"] = Json::array();
    WriteAccess();
    ASSERT_TRUE(server_->Reload().ok());
    // b has a space of that name too: its fingerprint is the same as a's.
    ASSERT_TRUE(As("b.worker").OpenSpace("s", "raw").ok());
    Connect();
  }
  void Connect() {
    v1::OpenDirectResponse offer;
    ASSERT_TRUE(As("b.worker").kv().OpenDirect(As("b.worker").Context().get(), {}, &offer).ok());
    port_ = static_cast<int>(offer.port());
    used_ticket_ = offer.ticket();
    socket_.emplace(*DirectSocket::Connect("127.0.0.1", port_, Soon()));
    v1::DirectRequest hello;
    hello.mutable_hello()->set_ticket(offer.ticket());
    ASSERT_TRUE(socket_->Send(hello, {}, 0, Soon()).ok());
    v1::OpenLocalResponse local;
    ASSERT_TRUE(As("b.worker").kv().OpenLocal(As("b.worker").Context().get(), {}, &local).ok());
    auto connected = LocalSocket::Connect(config_.local_socket);
    v1::LocalRequest begin;
    begin.mutable_hello()->set_token(local.token());
    begin.mutable_hello()->set_bytes(1 << 20);
    v1::LocalReply welcome;
    int descriptor = -1;
    ASSERT_TRUE(connected->Send(begin).ok());
    ASSERT_TRUE(connected->Receive(welcome, kSoon, &descriptor).ok());
    session_.emplace(Worker{*std::move(connected), *SharedMemory::Map(descriptor)});
    slot_ = session_->Allocate(PageBytes(SmallSpec(), 64));
  }

  size_t Below(size_t n) { return random_() % n; }
  std::string Space() { return kSpaces[Below(kSpaces.size())]; }
  // Mostly a key that `a` has.
  std::string Key() {
    if (Below(4) == 0) return absl::StrCat(random_());
    return absl::StrCat(kSpaces[Below(kSpaces.size())], "-", Below(kPages));
  }
  // One of a's, or one near it.
  uint64_t Lease() { return leases_[Below(leases_.size())] + Below(3) - 1; }

  v1::DirectReply Direct(const v1::DirectRequest& request) {
    v1::DirectReply reply;
    uint64_t bytes = 0;
    EXPECT_TRUE(socket_->Send(request, {}, 0, Soon()).ok());
    EXPECT_TRUE(socket_->ReceiveFrame(reply, bytes, Soon()).ok());
    EXPECT_EQ(bytes, 0u) << "payload";
    return reply;
  }

 public:
  // The attempts; each returns whether it got something.
  bool LookupDirect() {
    v1::LookupRequest lookup;
    NameSpace(Space(), lookup);
    for (size_t i = 0; i <= Below(8); ++i) lookup.add_keys(Key());
    lookup.set_lease(Below(2) == 0);
    v1::DirectRequest request;
    lookup.SerializeToString(request.mutable_lookup());
    v1::LookupResponse found;
    const v1::DirectReply reply = Direct(request);
    return !reply.looked_up().empty() && found.ParseFromString(reply.looked_up()) &&
           (found.pages() > 0 || found.lease() != 0);
  }
  bool GetDirect() {
    v1::DirectRequest request;
    v1::DirectGet& get = *request.mutable_get();
    NameSpace(Space(), get);
    get.set_payload(Below(2) == 0 ? v1::RAW : v1::ENCODED);
    get.set_lease(Below(2) == 0 ? Lease() : 0);
    get.add_pages()->set_key(Key());
    return Direct(request).got().status() == v1::HIT;
  }
  bool GetLocal() {
    v1::LocalRequest request = GetOf(slot_, Key());
    NameSpace(Space(), *request.mutable_get());
    request.mutable_get()->set_lease(Below(2) == 0 ? Lease() : 0);
    return session_->Call(request).got().reply().status() == v1::HIT;
  }
  bool GetStream() {
    v1::GetRequest request;
    NameSpace(Space(), *request.mutable_open());
    request.mutable_open()->set_payload(v1::RAW);
    request.mutable_open()->set_lease(Below(2) == 0 ? Lease() : 0);
    request.set_credit_bytes(1 << 30);
    *request.add_pages() = Ask(Key());
    const auto context = As("b.worker").Context();
    const auto call = As("b.worker").kv().Get(context.get());
    call->Write(request);
    call->WritesDone();
    bool got = false;
    v1::GetResponse response;
    while (call->Read(&response)) got = got || response.begin().status() == v1::HIT;
    (void)call->Finish();
    return got;
  }
  bool ByLease() {
    v1::ReleaseRequest request;
    request.set_lease(Lease());
    request.set_renew(Below(2) == 0);
    v1::ReleaseResponse response;
    (void)As("b.worker").kv().Release(As("b.worker").Context().get(), request, &response);
    return response.found();
  }
  template <typename Request>
  Request Keyed() {
    Request request;
    NameSpace(Space(), request);
    request.add_keys(Key());
    return request;
  }
  bool PinOrDelete() {
    v1::PinResponse pinned;
    v1::DeleteResponse deleted;
    auto del = Keyed<v1::DeleteRequest>();
    del.set_force(true);
    (void)As("b.worker").kv().Pin(As("b.worker").Context().get(), Keyed<v1::PinRequest>(), &pinned);
    (void)As("b.worker").kv().Delete(As("b.worker").Context().get(), del, &deleted);
    const auto hit = [](const auto& response) {
      return response.status_size() > 0 && response.status(0) != v1::MISS;
    };
    return hit(pinned) || hit(deleted);
  }
  bool Report() {
    v1::ReportAttentionRequest request;
    NameSpace(Space(), request);
    v1::PageAttention& page = *request.add_pages();
    page.set_key(Key());
    page.set_column("attn_sum");
    page.set_queries(1);
    page.set_scores(std::string(size_t{4} * 64 * 2 * 2, '\0'));
    v1::ReportAttentionResponse response;
    (void)As("b.worker").kv().ReportAttention(As("b.worker").Context().get(), request, &response);
    return response.results_size() > 0 && response.results(0).status() == v1::HIT;
  }
  bool NamesOfSpaces() {
    const std::string space = Below(2) == 0 ? "vault" : "docs";
    v1::UsageRequest usage;
    usage.set_space(space);
    usage.set_tenant("a");
    v1::UsageResponse response;
    v1::OpenSpaceRequest open;
    open.set_space(space);
    v1::OpenSpaceResponse opened;
    v1::DropSpaceRequest drop;
    NameSpace(space, drop);
    v1::DropSpaceResponse dropped;
    return As("b.worker").kv().Usage(As("b.worker").Context().get(), usage, &response).ok() ||
           As("b.worker").kv().OpenSpace(As("b.worker").Context().get(), open, &opened).ok() ||
           As("b.worker").kv().DropSpace(As("b.worker").Context().get(), drop, &dropped).ok();
  }
  // A ticket that b has used, or made up: a connection with it gets no answer at all.
  bool StaleTicket() {
    const auto socket = DirectSocket::Connect("127.0.0.1", port_, Soon());
    v1::DirectRequest hello, get;
    hello.mutable_hello()->set_ticket(Below(2) == 0 ? used_ticket_ : std::string(16, 'x'));
    NameSpace("vault", *get.mutable_get());
    get.mutable_get()->add_pages()->set_key("vault-0");
    (void)socket->Send(hello, {}, 0, Soon());
    (void)socket->Send(get, {}, 0, Soon());
    v1::DirectReply reply;
    uint64_t bytes = 0;
    return socket->ReceiveFrame(reply, bytes, Soon()).ok();
  }

 protected:
  std::mt19937_64 random_{20};
  std::vector<uint64_t> leases_;
  std::optional<DirectSocket> socket_;
  std::optional<Worker> session_;
  v1::LocalSlot slot_;
  std::string used_ticket_;
  int port_ = 0;
};

TEST_F(CrossTenantTest, NoAttemptSucceeds) {
  const char* const most = std::getenv("KVSTOW_CROSS_TENANT");
  const size_t attempts = most == nullptr ? 3000 : std::strtoull(most, nullptr, 10);
  ASSERT_NO_FATAL_FAILURE(Prepare());
  struct Row {
    size_t share;  // per thousand: what takes long comes seldom
    bool (CrossTenantTest::*attempt)();
  };
  const Row rows[] = {{450, &CrossTenantTest::LookupDirect}, {300, &CrossTenantTest::GetDirect},
                      {150, &CrossTenantTest::GetLocal},     {30, &CrossTenantTest::ByLease},
                      {20, &CrossTenantTest::GetStream},     {20, &CrossTenantTest::PinOrDelete},
                      {15, &CrossTenantTest::Report},        {10, &CrossTenantTest::NamesOfSpaces},
                      {5, &CrossTenantTest::StaleTicket}};
  size_t succeeded = 0;
  for (size_t i = 0; i < attempts && !HasFailure(); ++i) {
    size_t draw = Below(1000), row = 0;
    while (draw >= rows[row].share) draw -= rows[row++].share;
    if (!(this->*rows[row].attempt)()) continue;
    ++succeeded;
    ADD_FAILURE() << "attempt " << i << " of kind " << row << " succeeded";
  }
  EXPECT_EQ(succeeded, 0u) << "of " << attempts;
  // The same tenant still has everything, and its leases.
  for (size_t s = 0; s < kSpaces.size(); ++s) {
    std::vector<v1::GetPage> gets;
    for (int i = 0; i < kPages; ++i) gets.push_back(Ask(absl::StrCat(kSpaces[s], "-", i), i + 1));
    const auto answer = As("a.worker").Get(kSpaces[s], gets, leases_[s]);
    ASSERT_EQ(answer.pages.size(), gets.size()) << answer.status.error_message();
    for (int i = 0; i < kPages; ++i) {
      EXPECT_EQ(answer.pages[static_cast<size_t>(i)].reply.status(), v1::HIT);
      EXPECT_EQ(answer.pages[static_cast<size_t>(i)].data, Page("", static_cast<uint32_t>(i)).raw);
    }
  }
}

TEST_F(CrossTenantTest, AnothersSpaceIsLikeNone) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  WireClient& b = As("b.worker");
  const auto answers = [&](const std::string& space) {
    std::vector<std::string> out;
    const auto add = [&](const grpc::Status& status) {
      std::string message = status.error_message();
      for (size_t at; (at = message.find(space)) != std::string::npos;) {
        message.replace(at, space.size(), "NAME");
      }
      out.push_back(absl::StrCat(static_cast<int>(status.error_code()), " ", message));
    };
    v1::OpenSpaceRequest open;
    open.set_space(space);
    v1::OpenSpaceResponse opened;
    add(b.kv().OpenSpace(b.Context().get(), open, &opened));
    const auto named = [&](auto request) {
      request.set_space(space);
      request.set_fingerprint(Fingerprints::All().Of("vault"));
      return request;
    };
    v1::LookupResponse found;
    add(b.kv().Lookup(b.Context().get(), named(v1::LookupRequest()), &found));
    v1::PinResponse pinned;
    add(b.kv().Pin(b.Context().get(), named(v1::PinRequest()), &pinned));
    v1::DropSpaceResponse dropped;
    add(b.kv().DropSpace(b.Context().get(), named(v1::DropSpaceRequest()), &dropped));
    v1::UsageRequest usage;
    usage.set_space(space);
    v1::UsageResponse used;
    add(b.kv().Usage(b.Context().get(), usage, &used));
    return out;
  };
  EXPECT_EQ(answers("vault"), answers("nowhere"));
  v1::UsageResponse usage;
  ASSERT_TRUE(b.kv().Usage(b.Context().get(), {}, &usage).ok());
  ASSERT_EQ(usage.spaces_size(), 1);
  EXPECT_EQ(usage.spaces(0).space(), "s");
  EXPECT_EQ(usage.pages(), 0u);
  EXPECT_EQ(usage.counters_size(), 0);
  EXPECT_FALSE(usage.has_reuse());
  v1::UsageResponse all;
  ASSERT_TRUE(As("operator").kv().Usage(As("operator").Context().get(), {}, &all).ok());
  EXPECT_EQ(all.spaces_size(), 4);
}

class SharedSpacesTest : public TenantsTest {
 protected:
  ~SharedSpacesTest() override { StopServer(); }
};

TEST_F(SharedSpacesTest, OthersReadWhatIsSharedAndPutWhereTheyMay) {
  StartServer();
  const auto put = [&](const std::string& person, const std::string& space, uint32_t seed) {
    return As(person).Put(space, {Page(absl::StrCat("k", seed), seed)});
  };
  EXPECT_EQ(As("b.worker").OpenSpace("docs", "raw").error_code(), StatusCode::NOT_FOUND)
      << "its owner makes it";
  EXPECT_EQ(As("a.reader").OpenSpace("docs", "raw").error_code(), StatusCode::NOT_FOUND);
  for (const char* space : {"docs", "pool"}) {
    ASSERT_TRUE(As("a.worker").OpenSpace(space, "raw").ok());
    EXPECT_EQ(put("a.worker", space, 1).pages.at(0).status(), v1::STORED);
    EXPECT_EQ(As("b.reader").Lookup(space, {"k1"}, true).pages(), 1u);
    EXPECT_EQ(As("b.reader").Get(space, {Ask("k1")}).pages.at(0).reply.status(), v1::HIT);
    EXPECT_EQ(As("c.worker").FindSpace(space).error_code(), StatusCode::NOT_FOUND);
  }
  ASSERT_TRUE(As("b.worker").FindSpace("docs").ok());
  const auto refused = put("b.worker", "docs", 2);
  EXPECT_EQ(refused.status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("shares it for reading"));
  ASSERT_TRUE(As("b.worker").FindSpace("pool").ok());
  EXPECT_EQ(put("b.worker", "pool", 2).pages.at(0).status(), v1::STORED);
  EXPECT_EQ(As("a.reader").Get("pool", {Ask("k2")}).pages.at(0).reply.status(), v1::HIT);
  v1::DropSpaceRequest drop;
  NameSpace("pool", drop);
  v1::DropSpaceResponse dropped;
  EXPECT_EQ(
      As("b.worker").kv().DropSpace(As("b.worker").Context().get(), drop, &dropped).error_code(),
      StatusCode::PERMISSION_DENIED);
}

TEST_F(SharedSpacesTest, WhoMovesPagesOfASharedSpacePaysForIt) {
  access_["tenants"]["b"] = {
      {"streams", 1}, {"get_bytes_per_second", "1"}, {"put_bytes_per_second", "1"}};
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("pool", "raw").ok());
  ASSERT_EQ(As("a.worker").Put("pool", {Page("k1", 1)}).pages.at(0).status(), v1::STORED);
  const auto get = [&](const std::string& person) {
    const auto got = As(person).Get("pool", {Ask("k1")});
    return got.pages.empty() ? v1::PAGE_STATUS_UNSPECIFIED : got.pages[0].reply.status();
  };
  // A page passes where anything is left of the second.
  EXPECT_EQ(get("b.reader"), v1::HIT);
  EXPECT_EQ(get("b.reader"), v1::UNAVAILABLE);
  EXPECT_EQ(get("a.reader"), v1::HIT);
  EXPECT_EQ(As("b.worker").Put("pool", {Page("k2", 2)}).pages.at(0).status(), v1::STORED);
  const v1::PutResult refused = As("b.worker").Put("pool", {Page("k3", 3)}).pages.at(0);
  EXPECT_EQ(refused.status(), v1::REFUSED);
  EXPECT_THAT(refused.message(), HasSubstr("tenant 'b' may put"));
  EXPECT_EQ(As("a.worker").Put("pool", {Page("k3", 3)}).pages.at(0).status(), v1::STORED);
  EXPECT_EQ(Metric("kvstow_tenant_get_bytes_total{tenant=\"b\"}"), 128 << 10);
}

// It counts from its first moment on, when it has not said yet which space it is about.
TEST_F(SharedSpacesTest, AStreamIsItsCallersTenants) {
  access_["tenants"]["b"]["streams"] = 1;
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("docs", "raw").ok());
  const auto streams = [&](const std::string& tenant) {
    return Metric("kvstow_tenant_streams{tenant=\"" + tenant + "\"}");
  };
  const auto context = As("b.reader").Context();
  const auto silent = As("b.reader").kv().Get(context.get());
  ASSERT_TRUE(Eventually([&] { return streams("b") == 1; }));
  const auto second = As("b.reader").Get("docs", {Ask("k")});
  EXPECT_EQ(second.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(second.status.error_message(), HasSubstr("tenant 'b' has 1 streams"));
  EXPECT_EQ(As("a.reader").Get("docs", {Ask("k")}).pages.at(0).reply.status(), v1::MISS);
  v1::GetRequest request;
  NameSpace("docs", *request.mutable_open());
  ASSERT_TRUE(silent->Write(request));
  silent->WritesDone();
  v1::GetResponse response;
  EXPECT_FALSE(silent->Read(&response));
  EXPECT_TRUE(silent->Finish().ok());
  EXPECT_EQ(streams("b"), 0);
  EXPECT_EQ(As("b.reader").Get("docs", {Ask("k")}).pages.at(0).reply.status(), v1::MISS);
}

TEST_F(SharedSpacesTest, ATenantsSpacesComeBackAsItsOwn) {
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  StartServer();
  for (const char* person : {"a.worker", "b.worker"}) {
    ASSERT_TRUE(As(person).OpenSpace("s", "raw").ok());
  }
  PageIn page = Page("k", 1);
  page.ack = v1::PROCESS;
  ASSERT_EQ(As("a.worker").Put("s", {page}).pages.at(0).status(), v1::STORED);
  StopServer();
  StartServer();
  EXPECT_EQ(As("a.worker").Get("s", {Ask("k")}).pages.at(0).data, page.raw);
  EXPECT_EQ(As("b.worker").Get("s", {Ask("k")}).pages.at(0).reply.status(), v1::MISS);
  EXPECT_EQ(As("operator").FindSpace("s").error_code(), StatusCode::NOT_FOUND);
}

TEST_F(SharedSpacesTest, ATenantHasSoManySpaces) {
  access_["tenants"]["a"]["spaces"] = 2;
  StartServer();
  EXPECT_TRUE(As("a.worker").OpenSpace("one", "raw").ok());
  EXPECT_TRUE(As("a.worker").OpenSpace("two", "raw").ok());
  EXPECT_EQ(As("a.worker").OpenSpace("three", "raw").error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(As("a.worker").OpenSpace("one", "raw").ok());
  for (const char* name : {"one", "two", "three"}) {
    EXPECT_TRUE(As("b.worker").OpenSpace(name, "raw").ok());
  }
}

}  // namespace
}  // namespace kvstow::testing
