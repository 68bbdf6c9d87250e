// Every call and everybody who might make it: strangers, and people of each role, over gRPC, direct
// connections and local sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <map>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/shared_memory.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "service/api/unix_listener.h"
#include "service/transports/direct_server.h"
#include "tests/service/access/tenants.h"
#include "tests/service/raw_call.h"
#include "tests/service/transports/local_worker.h"

namespace kvstow::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

Time Soon() { return Clock::Real().Now() + kSoon; }

// Written here once more, so that a slip in the server's own table shows.
const std::map<std::string, std::string> kLeastRole = {
    {"KvCache/OpenSpace", "reader"}, {"KvCache/SendCalibration", "admin"},
    {"KvCache/Lookup", "reader"},    {"KvCache/Put", "worker"},
    {"KvCache/Get", "reader"},       {"KvCache/ReportAttention", "worker"},
    {"KvCache/OpenLocal", "reader"}, {"KvCache/OpenDirect", "reader"},
    {"KvCache/Release", "reader"},   {"KvCache/Pin", "worker"},
    {"KvCache/Delete", "worker"},    {"KvCache/DropSpace", "worker"},
    {"KvCache/Usage", "reader"},     {"KvCache/SendStatistics", "worker"},
    {"Admin/Status", "admin"},       {"Admin/Verify", "admin"},
    {"Admin/SamplePages", "admin"},  {"Admin/Ages", "admin"},
    {"Admin/Activity", "admin"},     {"Admin/Evict", "admin"},
    {"Admin/SetBudget", "admin"},    {"Admin/Flush", "admin"},
    {"Admin/Drain", "admin"},        {"Admin/SetQuota", "admin"},
    {"Admin/Tenants", "admin"},      {"Admin/RotateKey", "admin"},
    {"Admin/DropTenant", "admin"}};

int RankOf(const std::string& role) { return role == "reader" ? 1 : role == "worker" ? 2 : 3; }

class AccessMatrixTest : public TenantsTest {
 protected:
  AccessMatrixTest() {
    config_.local_socket = (folder_ / "local.sock").string();
    config_.local_bytes = 4 << 20;
  }
  ~AccessMatrixTest() override { StopServer(); }

  v1::OpenDirectResponse DirectOf(const std::string& person) {
    v1::OpenDirectResponse out;
    const auto status = As(person).kv().OpenDirect(As(person).Context().get(), {}, &out);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return out;
  }
  DirectSocket Connect(int port) { return *DirectSocket::Connect("127.0.0.1", port, Soon()); }
  // Shows a ticket and asks for a page; returns whether there was an answer.
  static bool Answers(const DirectSocket& socket, const std::string& ticket,
                      v1::DirectReply* reply = nullptr) {
    v1::DirectRequest hello, get;
    hello.mutable_hello()->set_ticket(ticket);
    if (!ticket.empty() && !socket.Send(hello, {}, 0, Soon()).ok()) return false;
    return Asks(socket, reply);
  }
  static bool Asks(const DirectSocket& socket, v1::DirectReply* reply = nullptr) {
    v1::DirectRequest get;
    NameSpace("s", *get.mutable_get());
    get.mutable_get()->set_payload(v1::RAW);
    get.mutable_get()->add_pages()->set_key("k");
    v1::DirectReply any;
    uint64_t bytes = 0;
    if (!socket.Send(get, {}, 0, Soon()).ok()) return false;
    if (!socket.ReceiveFrame(reply == nullptr ? any : *reply, bytes, Soon()).ok()) return false;
    return socket.Skip(bytes, Soon()).ok();
  }
  std::unique_ptr<Worker> Session(const std::string& token) {
    auto socket = LocalSocket::Connect(config_.local_socket);
    if (!socket.ok()) return nullptr;
    v1::LocalRequest hello;
    hello.mutable_hello()->set_token(token);
    hello.mutable_hello()->set_bytes(1 << 20);
    v1::LocalReply welcome;
    int descriptor = -1;
    if (!socket->Send(hello).ok() || !socket->Receive(welcome, kSoon, &descriptor).ok()) {
      return nullptr;
    }
    return std::make_unique<Worker>(Worker{*std::move(socket), *SharedMemory::Map(descriptor)});
  }
  std::string LocalToken(const std::string& person) {
    v1::OpenLocalResponse out;
    EXPECT_TRUE(As(person).kv().OpenLocal(As(person).Context().get(), {}, &out).ok());
    return out.token();
  }
};

TEST_F(AccessMatrixTest, EveryCallIsDecidedByWhoMakesIt) {
  StartServer();
  const auto channel = client_->channel();
  size_t calls = 0;
  double refused_roles = 0;
  for (const auto* file :
       {v1::OpenSpaceRequest::descriptor()->file(), v1::StatusRequest::descriptor()->file()}) {
    const auto* service = file->service(0);
    for (int m = 0; m < service->method_count(); ++m, ++calls) {
      const std::string name = service->name() + "/" + service->method(m)->name();
      ASSERT_TRUE(kLeastRole.contains(name)) << name << ": say who may call it";
      const int least = RankOf(kLeastRole.at(name));
      const auto call = [&](const std::string& token) {
        std::string response;
        return RawCall(channel, "/kvstow.v1." + name, "", &response, token).error_code();
      };
      EXPECT_EQ(call(""), StatusCode::UNAUTHENTICATED) << name;
      EXPECT_EQ(call("guessed"), StatusCode::UNAUTHENTICATED) << name;
      for (const auto& [person, rank] :
           {std::pair{"a.reader", 1}, std::pair{"a.worker", 2}, std::pair{"operator", 3}}) {
        const StatusCode code = call(person);
        if (rank < least) {
          EXPECT_EQ(code, StatusCode::PERMISSION_DENIED) << name << " by " << person;
          ++refused_roles;
        } else {
          EXPECT_NE(code, StatusCode::PERMISSION_DENIED) << name << " by " << person;
          EXPECT_NE(code, StatusCode::UNAUTHENTICATED) << name << " by " << person;
        }
      }
    }
  }
  EXPECT_EQ(calls, kLeastRole.size());
  EXPECT_EQ(Refused("no_identity"), static_cast<double>(calls));
  EXPECT_EQ(Refused("unknown_identity"), static_cast<double>(calls));
  EXPECT_EQ(Refused("role"), refused_roles);
}

TEST_F(AccessMatrixTest, WhatStrangersCallASpaceIsInNoRow) {
  StartServer();
  for (const std::string& space : {std::string(4 << 20, '\x01'), std::string("guessed")}) {
    v1::PinRequest pin;
    pin.set_space(space);
    v1::PinResponse pinned;
    EXPECT_EQ(client_->kv().Pin(client_->Context().get(), pin, &pinned).error_code(),
              StatusCode::UNAUTHENTICATED);
  }
  // A Lookup is read by hand: what is no UTF-8 would make the answer of Activity unreadable.
  std::string response;
  const std::string lookup("\x0a\x01\xff", 3);
  EXPECT_FALSE(
      RawCall(client_->channel(), "/kvstow.v1.KvCache/Lookup", lookup, &response, "a.reader").ok());
  v1::ActivityResponse activity;
  WireClient& operators = As("operator");
  const auto status = operators.admin().Activity(operators.Context().get(), {}, &activity);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(activity.failing_size(), 2);
  for (const v1::CallUsage& row : activity.failing()) EXPECT_EQ(row.space(), "") << row.method();
  EXPECT_EQ(activity.failing(1).method(), "Pin");
  EXPECT_EQ(activity.failing(1).calls(), 2u);
}

TEST_F(AccessMatrixTest, HealthIsOpenAndReflectionIsNotThere) {
  StartServer();
  std::string response;
  EXPECT_TRUE(RawCall(client_->channel(), "/grpc.health.v1.Health/Check", "", &response).ok());
  for (const char* token : {"", "a.worker"}) {
    EXPECT_EQ(RawCall(client_->channel(),
                      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                      std::string("\x3a\x00", 2), &response, token)
                  .error_code(),
              StatusCode::UNIMPLEMENTED);
  }
}

TEST_F(AccessMatrixTest, OddAuthorizationIsNobodys) {
  StartServer();
  for (const std::string value : {"", "Bearer", "Bearer ", "Basic a.worker", "a.worker", " ",
                                  "Bearer a.worker ", "Bearer  a.worker"}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("authorization", value);
    v1::UsageResponse usage;
    EXPECT_EQ(client_->kv().Usage(&context, {}, &usage).error_code(), StatusCode::UNAUTHENTICATED)
        << "'" << value << "'";
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  context.AddMetadata("authorization", "Bearer a.worker");
  context.AddMetadata("authorization", "Bearer b.worker");
  v1::UsageResponse usage;
  EXPECT_EQ(client_->kv().Usage(&context, {}, &usage).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessMatrixTest, ADirectConnectionNeedsAGoodTicket) {
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("s", "raw").ok());
  const v1::OpenDirectResponse offer = DirectOf("a.worker");
  const int port = static_cast<int>(offer.port());
  EXPECT_EQ(offer.ticket().size(), 16u);
  EXPECT_FALSE(Answers(Connect(port), "")) << "no ticket";
  EXPECT_FALSE(Answers(Connect(port), std::string(16, 'x'))) << "a guessed one";
  EXPECT_FALSE(Answers(Connect(port), LocalToken("a.worker"))) << "one of another kind";
  const DirectSocket good = Connect(port);
  EXPECT_TRUE(Answers(good, offer.ticket()));
  EXPECT_FALSE(Answers(Connect(port), offer.ticket())) << "a used one";
  EXPECT_TRUE(Asks(good)) << "the connection that used it";
  EXPECT_FALSE(Answers(good, DirectOf("b.worker").ticket())) << "nobody changes who they are";
  EXPECT_EQ(Refused("ticket"), 5);
}

// They may send a byte now and then. All connections that there may be are theirs.
TEST_F(AccessMatrixTest, PeersWithoutATicketKeepNobodyOut) {
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("s", "raw").ok());
  const v1::OpenDirectResponse offer = DirectOf("a.worker");
  const int port = static_cast<int>(offer.port());
  const int most = static_cast<int>(DirectOptions().max_connections);
  std::vector<DirectSocket> strangers;
  for (int i = 0; i < most; ++i) {
    strangers.push_back(Connect(port));
    ASSERT_TRUE(strangers.back().SendBytes(AsBytes("K"), Soon()).ok());
  }
  ASSERT_TRUE(Eventually([&] { return Metric("kvstow_direct_connections") == most; }));
  EXPECT_TRUE(Answers(Connect(port), offer.ticket()));
}

TEST_F(AccessMatrixTest, OnADirectConnectionAReaderReadsAndAWorkerPuts) {
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("s", "raw").ok());
  const PageIn page = Page("k", 1);
  const auto put = [&](const DirectSocket& socket) {
    v1::DirectRequest request;
    v1::DirectPut& put = *request.mutable_put();
    NameSpace("s", put);
    put.set_payload(v1::RAW);
    put.mutable_page()->set_key(page.key);
    put.mutable_page()->set_tokens(page.tokens);
    put.mutable_page()->set_payload_bytes(page.raw.size());
    const std::string digest(AsString(Xxh3_128(AsBytes(page.raw)).bytes));
    put.mutable_page()->set_digest(digest);
    v1::DirectReply reply;
    uint64_t bytes = 0;
    const SharedBytes raw = SharedBytes::CopyOf(AsBytes(page.raw));
    EXPECT_TRUE(socket.Send(request, {&raw, 1}, 0, Soon()).ok());
    EXPECT_TRUE(socket.ReceiveFrame(reply, bytes, Soon()).ok());
    return reply;
  };
  const v1::OpenDirectResponse reader = DirectOf("a.reader"), worker = DirectOf("a.worker");
  const DirectSocket reads = Connect(static_cast<int>(reader.port()));
  v1::DirectReply reply;
  EXPECT_TRUE(Answers(reads, reader.ticket(), &reply));
  EXPECT_EQ(reply.got().status(), v1::MISS);
  EXPECT_EQ(put(reads).refused().code(), static_cast<int>(StatusCode::PERMISSION_DENIED));
  const DirectSocket puts = Connect(static_cast<int>(worker.port()));
  EXPECT_TRUE(Answers(puts, worker.ticket()));
  EXPECT_EQ(put(puts).put().status(), v1::STORED);
  EXPECT_TRUE(Asks(reads, &reply));
  EXPECT_EQ(reply.got().status(), v1::HIT);
}

TEST_F(AccessMatrixTest, ALocalSessionIsItsTokensCaller) {
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("s", "raw").ok());
  EXPECT_EQ(Session(""), nullptr);
  EXPECT_EQ(Session(std::string(16, 'x')), nullptr);
  EXPECT_EQ(Session(DirectOf("a.worker").ticket()), nullptr);
  const std::string token = LocalToken("a.worker");
  const auto worker = Session(token);
  ASSERT_NE(worker, nullptr);
  EXPECT_EQ(Session(token), nullptr) << "a used one";
  const auto reader = Session(LocalToken("a.reader")), other = Session(LocalToken("b.worker"));
  const PageIn page = Page("k", 1);
  const auto put = [&](Worker& session) {
    const v1::LocalSlot slot = session.Allocate(page.raw.size());
    std::ranges::copy(AsBytes(page.raw), session.Bytes(slot).begin());
    return session.Call(PutOf(slot, page)).put();
  };
  EXPECT_EQ(put(*reader).status(), v1::NOT_COMPATIBLE);
  EXPECT_THAT(put(*reader).message(), HasSubstr("needs the role worker"));
  EXPECT_EQ(put(*worker).status(), v1::STORED);
  const auto get = [&](Worker& session) {
    const v1::LocalSlot slot = session.Allocate(page.raw.size());
    return session.Call(GetOf(slot, "k")).got().reply();
  };
  EXPECT_EQ(get(*reader).status(), v1::HIT);
  EXPECT_EQ(get(*other).status(), v1::NOT_COMPATIBLE) << "b has no such space";
}

TEST_F(AccessMatrixTest, AReloadHangsUpOnWhoIsGoneAndOnNobodyElse) {
  StartServer();
  ASSERT_TRUE(As("a.worker").OpenSpace("s", "raw").ok());
  const v1::OpenDirectResponse gone = DirectOf("a.reader"), stays = DirectOf("a.worker");
  const std::string unused = DirectOf("a.reader").ticket();
  const int port = static_cast<int>(stays.port());
  const DirectSocket gone_socket = Connect(port), stays_socket = Connect(port);
  ASSERT_TRUE(Answers(gone_socket, gone.ticket()));
  ASSERT_TRUE(Answers(stays_socket, stays.ticket()));
  const auto gone_session = Session(LocalToken("a.reader")),
             stays_session = Session(LocalToken("a.worker"));
  Remove("a.reader");
  WriteAccess();
  ASSERT_TRUE(server_->Reload().ok());
  v1::DirectReply reply;
  uint64_t bytes = 0;
  EXPECT_FALSE(gone_socket.ReceiveFrame(reply, bytes, Soon()).ok()) << "hung up on, unasked";
  v1::LocalReply local;
  EXPECT_TRUE(absl::IsUnavailable(gone_session->socket.Receive(local, kSoon)));
  EXPECT_FALSE(Answers(Connect(port), unused)) << "a ticket of somebody who is gone";
  EXPECT_TRUE(Asks(stays_socket));
  EXPECT_EQ(stays_session->Allocate(4096).message(), "");
  v1::UsageResponse usage;
  EXPECT_EQ(As("a.reader").kv().Usage(As("a.reader").Context().get(), {}, &usage).error_code(),
            StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Metric("kvstow_access_reloads_total{result=\"ok\"}"), 1);
  access_ = "broken";
  WriteAccess();
  EXPECT_FALSE(server_->Reload().ok());
  EXPECT_TRUE(Asks(stays_socket));
  EXPECT_EQ(Metric("kvstow_access_reloads_total{result=\"failed\"}"), 1);
}

TEST_F(AccessMatrixTest, OperatorsHaveAListenerOfTheirOwn) {
  config_.admin_listen = "127.0.0.1:0";
  StartServer();
  WireClient elsewhere(server_->admin_address(), "operator");
  v1::StatusResponse status;
  EXPECT_TRUE(elsewhere.admin().Status(elsewhere.Context().get(), {}, &status).ok());
  EXPECT_EQ(As("operator").admin().Status(As("operator").Context().get(), {}, &status).error_code(),
            StatusCode::UNIMPLEMENTED);
  v1::UsageResponse usage;
  EXPECT_TRUE(elsewhere.kv().Usage(elsewhere.Context().get(), {}, &usage).ok());
  WireClient worker(server_->admin_address(), "a.worker");
  EXPECT_EQ(worker.admin().Status(worker.Context().get(), {}, &status).error_code(),
            StatusCode::PERMISSION_DENIED);
}

TEST_F(AccessMatrixTest, OnAUnixSocketTheKernelNamesTheUser) {
  config_.listen = "unix:" + (folder_ / "kvstow.sock").string();
  access_["identities"].push_back({{"uid", geteuid()}, {"tenant", "c"}, {"role", "reader"}});
  StartServer();
  v1::UsageResponse usage;
  EXPECT_TRUE(client_->kv().Usage(client_->Context().get(), {}, &usage).ok()) << "without a token";
  EXPECT_EQ(client_->OpenSpace("s", "raw").error_code(), StatusCode::NOT_FOUND) << "a reader";
  EXPECT_TRUE(As("a.worker").OpenSpace("s", "raw").ok()) << "a token decides alone";
  access_["identities"].back()["uid"] = geteuid() + 1;
  WriteAccess();
  ASSERT_TRUE(server_->Reload().ok());
  EXPECT_EQ(client_->kv().Usage(client_->Context().get(), {}, &usage).error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessMatrixTest, OnAUnixSocketAUserHasSoManyConnections) {
  config_.listen = "unix:" + (folder_ / "kvstow.sock").string();
  rlimit was{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
  rlimit few = was;
  few.rlim_cur = 400;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const size_t most = MostConnectionsOfUser();
  StartServer();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
  EXPECT_EQ(most, 100u);
  std::vector<Descriptor> open;
  // Connects; returns whether gRPC greets.
  const auto connects = [&] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    config_.listen.copy(address.sun_path, sizeof(address.sun_path) - 1, 5);
    Descriptor descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    char byte = 0;
    const bool greets = read(descriptor.get(), &byte, 1) == 1;
    if (greets) open.push_back(std::move(descriptor));
    return greets;
  };
  for (size_t i = 0; i < most; ++i) EXPECT_TRUE(connects()) << i;
  EXPECT_FALSE(connects());
  open.erase(open.begin() + static_cast<ptrdiff_t>(most / 2), open.end());
  EXPECT_TRUE(Eventually(connects)) << "those that are closed do not count";
}

class AdminListenTest : public ServerTest {};

TEST_F(AdminListenTest, WithoutIdentitiesOthersMachinesDoNotReachOperatorsCalls) {
  config_.listen = "0.0.0.0:0";
  config_.insecure = true;
  StartServer();
  WireClient near("127.0.0.1" + server_->address().substr(server_->address().rfind(':')));
  v1::StatusResponse status;
  EXPECT_EQ(near.admin().Status(near.Context().get(), {}, &status).error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(server_->admin_address(), "");
}

}  // namespace
}  // namespace kvstow::testing
