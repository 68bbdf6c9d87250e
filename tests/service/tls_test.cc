// TLS of a whole server: whoever is not who he must be is refused on every listener, by name and
// without a hang; new certificates count without a restart.
#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/tls_context.h"
#include "service/api/grpc_credentials.h"
#include "service/api/peer_names.h"
#include "tests/adversary/tcp_peer.h"
#include "tests/client/prompt.h"
#include "tests/proto/certificates.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kOpenDirect[] = "/kvstow.v1.KvCache/OpenDirect";
constexpr char kDirectGets[] = "kvstow_direct_pages_total{method=\"get\"}";

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

TlsOptions OptionsOf(const TlsFiles& files, const std::string& name = "") {
  return {.ca = files.ca, .certificate = files.certificate, .key = files.key, .server_name = name};
}

// The files of a client or of a server that is not what it must be, and what is said of it.
struct Wrong {
  const char* what;
  TlsFiles files;
  std::string name;  // that the client expects
  const char* says;
  const char* over_grpc = "";  // which tells a client less
};

class TlsServerTest : public ServerTest {
 protected:
  // HTTP speaks TLS where others may reach it; metrics are read from another port.
  void Start(const TlsFiles& files, bool open_http = false) {
    config_.tls_cert = files.certificate;
    config_.tls_key = files.key;
    config_.tls_client_ca = files.ca;
    if (open_http) config_.http_listen = "0.0.0.0:0";
    StartServer();
  }
  std::unique_ptr<Client> Connect(const TlsOptions& tls, int attempts = 2) const {
    return Client::Connect({.address = server_->address(),
                            .tls = tls,
                            .timeout = std::chrono::seconds(20),
                            .attempts = attempts,
                            .shared_bytes = 0});
  }
  static int DirectPort(Client& client) {
    const auto answer = client.Call(kOpenDirect, "");
    EXPECT_TRUE(answer.ok()) << answer.status();
    v1::OpenDirectResponse where;
    EXPECT_TRUE(answer.ok() && where.ParseFromString(*answer));
    return static_cast<int>(where.port());
  }
  static int HttpPort(const Server& server) { return PortOf(server.http_address()); }
  // A status after the handshake, and after a byte was waited for: a server tells a client that it
  // refuses it only then.
  static absl::Status Shake(int port, const TlsFiles& files, const std::string& name) {
    const auto context = TlsContext::ForClient(files, name);
    if (!context.ok()) return context.status();
    auto socket = DirectSocket::Connect("127.0.0.1", port, Soon());
    if (!socket.ok()) return socket.status();
    if (absl::Status s = socket->StartTls(**context, Soon()); !s.ok()) return s;
    uint8_t byte = 0;
    return socket->Receive({&byte, 1}, Soon());
  }
  // The answer to a GET over TLS, or "".
  static std::string Get(int port, const TlsFiles& files, const std::string& path) {
    const auto context = *TlsContext::ForClient(files, "127.0.0.1");
    const DirectSocket socket = [&] {
      DirectSocket out = *DirectSocket::Connect("127.0.0.1", port, Soon());
      EXPECT_TRUE(out.StartTls(*context, Soon()).ok());
      return out;
    }();
    const std::string request = "GET " + path + " HTTP/1.1\r\n\r\n";
    EXPECT_TRUE(socket.SendBytes(AsBytes(request), Soon()).ok());
    std::string answer;
    uint8_t byte = 0;
    while (socket.Receive({&byte, 1}, Soon()).ok()) answer.push_back(static_cast<char>(byte));
    return answer;
  }
  // Puts and gets pages until some went over a direct connection.
  void ExpectPagesOverTls(Client& client) {
    const Prompt prompt(kvstow::SmallSpec(), 5 * 64, 1);
    const double before = Metric(kDirectGets);
    ASSERT_TRUE(client.OpenSpace({.name = "s", .spec = kvstow::SmallSpec(), .recipe = "raw"}).ok());
    ASSERT_THAT(OutcomesOf(client.Put("s", prompt.Puts()).get()),
                Each(AnyOf(PageOutcome::kStored, PageOutcome::kAlreadyThere)));
    EXPECT_TRUE(Eventually([&] {
      Fetch fetch(prompt);
      const auto results = client.Get("s", 0, fetch.gets).get();
      EXPECT_THAT(OutcomesOf(results), Each(PageOutcome::kHit));
      EXPECT_EQ(fetch.buffers, prompt.pages);
      return Metric(kDirectGets) > before;
    }));
  }

  Certificates& files() {
    if (!files_.has_value()) files_.emplace(folder_);
    return *files_;
  }
  Certificates& others() {
    std::filesystem::create_directories(folder_ / "others");
    if (!others_.has_value()) others_.emplace(folder_ / "others", "another-ca");
    return *others_;
  }
  std::optional<Certificates> files_, others_;
};

TEST_F(TlsServerTest, PagesComeOverStreamsAndDirectConnections) {
  Start(files().mutual_server());
  ExpectPagesOverTls(*Connect(OptionsOf(files().worker())));
  EXPECT_EQ(Metric("kvstow_failed_handshakes_total{listener=\"direct\"}"), 0);
}

TEST_F(TlsServerTest, ClientsOfAWrongServerSayWhatIsWrong) {
  const CertificateAuthority stale(folder_, "stale", &files().ca,
                                   {.from_day = -9, .until_day = -2});
  stale.Issue("stale-server", {.alternatives = kServerNames});
  const TlsFiles expired = {.certificate = stale.certificate("stale-server"),
                            .key = stale.key("stale-server")};
  const Wrong kWrong[] = {
      {"wrong CA", others().server(), "", "unable to get local issuer certificate"},
      {"expired", expired, "", "certificate has expired"},
      {"wrong name", files().server(), "kv.example", "hostname mismatch"},
      {"plaintext", {}, "", "does not speak TLS"},
  };
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.what);
    Start(wrong.files);
    const auto client = Connect(OptionsOf(files().anyone(), wrong.name));
    const absl::Status grpc = client->Call(kOpenDirect, "").status();
    EXPECT_TRUE(absl::IsUnavailable(grpc)) << grpc;
    EXPECT_THAT(grpc.message(), AllOf(HasSubstr(server_->address()), HasSubstr(wrong.says)));
    const auto insider =
        Connect(wrong.files.certificate.empty()
                    ? TlsOptions()
                    : OptionsOf({.ca = wrong.what == std::string("wrong CA") ? others().ca.file()
                                                                             : files().ca.file()}));
    if (wrong.what != std::string("expired")) {
      const absl::Status direct = Shake(DirectPort(*insider), files().anyone(),
                                        wrong.name.empty() ? "127.0.0.1" : wrong.name);
      EXPECT_FALSE(direct.ok());
      EXPECT_TRUE(absl::StrContains(direct.message(), wrong.says) ||
                  wrong.files.certificate.empty())
          << direct;
    }
    StopServer();
  }
}

TEST_F(TlsServerTest, AWrongClientIsRefusedOnEveryListener) {
  const CertificateAuthority stale(folder_, "stale", &files().ca,
                                   {.from_day = -9, .until_day = -2});
  stale.Issue("stale-worker", {});
  Start(files().mutual_server(), /*open_http=*/true);
  const auto good = Connect(OptionsOf(files().worker()));
  const int direct_port = DirectPort(*good), http_port = HttpPort(*server_);
  const Wrong kWrong[] = {
      {"no certificate", files().anyone(), "", "wants a certificate",
       "does it want a certificate of its clients?"},
      {"wrong CA",
       {.certificate = others().worker().certificate,
        .key = others().worker().key,
        .ca = files().ca.file()},
       "",
       "unknown ca",
       "does it want another one than "},
      {"expired",
       {.certificate = stale.certificate("stale-worker"),
        .key = stale.key("stale-worker"),
        .ca = files().ca.file()},
       "",
       "certificate expired",
       "does it want another one than "},
  };
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.what);
    const absl::Status grpc = Connect(OptionsOf(wrong.files))->Call(kOpenDirect, "").status();
    EXPECT_TRUE(absl::IsUnavailable(grpc)) << grpc;
    EXPECT_THAT(grpc.message(), HasSubstr(wrong.over_grpc));
    const absl::Status direct = Shake(direct_port, wrong.files, "127.0.0.1");
    EXPECT_TRUE(absl::IsUnauthenticated(direct)) << direct;
    EXPECT_THAT(direct.message(), HasSubstr(wrong.says));
    if (wrong.files.certificate.empty()) continue;  // probes have none: see the next test
    const absl::Status http = Shake(http_port, wrong.files, "127.0.0.1");
    EXPECT_TRUE(absl::IsUnauthenticated(http)) << http;
    EXPECT_THAT(http.message(), HasSubstr(wrong.says));
  }
  // Without TLS at all.
  EXPECT_TRUE(absl::IsUnavailable(Connect({})->Call(kOpenDirect, "").status()));
  const TcpPeer direct(direct_port), http(http_port);
  ASSERT_TRUE(direct.Send(std::string(64, 'x')));
  EXPECT_EQ(direct.ReceiveAll(), "") << "it hangs up";
  ASSERT_TRUE(http.Send("GET /metrics HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(http.ReceiveAll(), "");
  EXPECT_TRUE(good->Call(kOpenDirect, "").ok()) << "others go on";
}

TEST_F(TlsServerTest, HttpTellsProbesWithoutACertificateNothingElse) {
  Start(files().mutual_server(), /*open_http=*/true);
  const int port = HttpPort(*server_);
  EXPECT_THAT(Get(port, files().anyone(), "/healthz"), ::testing::EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(Get(port, files().anyone(), "/readyz"), StartsWith("HTTP/1.1 200 "));
  for (const char* path : {"/metrics", "/", "/parts", "/page.js", "/nothing"}) {
    EXPECT_THAT(Get(port, files().anyone(), path), StartsWith("HTTP/1.1 403 ")) << path;
  }
  const std::string metrics = Get(port, files().worker(), "/metrics");
  EXPECT_THAT(metrics, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\nkvstow_ready 1\n")));
  EXPECT_THAT(Get(port, files().worker(), "/"), HasSubstr("</html>"));
}

TEST_F(TlsServerTest, OlderVersionsOfTlsAreNotSpoken) {
  Start(files().server(), /*open_http=*/true);
  const auto client = Connect(OptionsOf(files().anyone()));
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> old(SSL_CTX_new(TLS_client_method()),
                                                         SSL_CTX_free);
  for (const int port : {PortOf(server_->address()), DirectPort(*client), HttpPort(*server_)}) {
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
      SSL_CTX_set_max_proto_version(old.get(), version);
      const TcpPeer peer(port);
      const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(old.get()), SSL_free);
      SSL_set_fd(ssl.get(), peer.descriptor());
      static const uint8_t kH2[] = {2, 'h', '2'};
      SSL_set_alpn_protos(ssl.get(), kH2, sizeof(kH2));
      EXPECT_EQ(SSL_connect(ssl.get()) == 1, version == TLS1_3_VERSION) << port;
    }
  }
}

TEST_F(TlsServerTest, NewCertificatesCountWithoutARestart) {
  Start(files().server());
  const auto before = Connect(OptionsOf(files().anyone()));
  ExpectPagesOverTls(*before);
  const int direct_port = DirectPort(*before);
  // Of another authority. The files come one after the other: in between nothing breaks.
  std::filesystem::rename(others().server().certificate, files().server().certificate);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(Connect(OptionsOf(files().anyone()))->Call(kOpenDirect, "").ok());
    return Metric("kvstow_tls_broken_reloads_total") == 1;
  }));
  std::filesystem::rename(others().server().key, files().server().key);
  EXPECT_TRUE(Eventually(
      [&] { return Connect(OptionsOf(others().anyone()), 1)->Call(kOpenDirect, "").ok(); }));
  EXPECT_THAT(Shake(direct_port, files().anyone(), "127.0.0.1").message(),
              HasSubstr("unable to get local issuer certificate"));
  ExpectPagesOverTls(*Connect(OptionsOf(others().anyone())));
  ExpectPagesOverTls(*before);  // its connections stand
}

TEST_F(TlsServerTest, OperatorsListenerHasItsOwnHandshakes) {
  config_.admin_listen = "127.0.0.1:0";
  Start(files().server());
  const auto both_answer = [&](const TlsOptions& tls) {
    for (const std::string& address : {server_->address(), server_->admin_address()}) {
      const auto client = Client::Connect(
          {.address = address, .tls = tls, .timeout = std::chrono::seconds(20), .attempts = 1});
      if (!client->Call(kOpenDirect, "").ok()) return false;
    }
    return true;
  };
  EXPECT_TRUE(both_answer(OptionsOf(files().anyone())));
  std::filesystem::rename(others().server().certificate, files().server().certificate);
  std::filesystem::rename(others().server().key, files().server().key);
  EXPECT_TRUE(Eventually([&] { return both_answer(OptionsOf(others().anyone())); }));
}

TEST_F(TlsServerTest, PeersThatStallInTheHandshakeKeepNobodyOut) {
  Start(files().server(), /*open_http=*/true);
  const auto client = Connect(OptionsOf(files().anyone()));
  const int direct_port = DirectPort(*client), http_port = HttpPort(*server_);
  std::vector<TcpPeer> stalled;
  for (int i = 0; i < 300; ++i) {
    for (const int port : {direct_port, http_port}) {
      stalled.emplace_back(port);
      // Nothing, the head of a record, or part of a hello.
      (void)stalled.back().Send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01", i % 3 * 4));
    }
    if (i % 50 != 49) continue;
    EXPECT_THAT(Get(http_port, files().anyone(), "/healthz"), ::testing::EndsWith("ok\n"));
    const auto context = *TlsContext::ForClient(files().anyone(), "127.0.0.1");
    auto socket = *DirectSocket::Connect("127.0.0.1", direct_port, Soon());
    EXPECT_TRUE(socket.StartTls(*context, Soon()).ok());
  }
}

TEST_F(TlsServerTest, FilesThatAreNoGoodKeepAServerFromStarting) {
  config_.tls_cert = files().server().certificate;
  config_.tls_key = files().worker().key;
  const auto server = Server::Start(config_, options_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(server.status().message(),
              AllOf(HasSubstr(config_.tls_key), HasSubstr("does not fit the certificate")));
}

TEST_F(TlsServerTest, FilesThatAreNoGoodFailEveryCallOfAClientByName) {
  StartServer();
  const auto fails = [&](const TlsOptions& tls) {
    const auto client = Connect(tls);
    const absl::Status status = client->Call(kOpenDirect, "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const Prompt prompt(kvstow::SmallSpec(), 64, 1);
    Fetch fetch(prompt);
    EXPECT_THAT(OutcomesOf(client->Get("s", 0, fetch.gets).get()),
                ::testing::Not(::testing::Contains(PageOutcome::kHit)));
    return std::string(status.message());
  };
  EXPECT_THAT(fails({.ca = "/no/such/ca.pem"}), HasSubstr("/no/such/ca.pem: cannot be read"));
  EXPECT_THAT(fails({.ca = files().worker().key}), HasSubstr("holds no certificate"));
  EXPECT_THAT(fails({.ca = files().ca.file(), .certificate = files().worker().certificate}),
              HasSubstr("a certificate and its key go together"));
  EXPECT_THAT(fails({.certificate = files().worker().certificate, .key = files().worker().key}),
              HasSubstr("there is no TLS without a CA"));
}

// Answers every call with the names that gRPC has verified of its caller.
class Names final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* c) override {
    class Call final : public grpc::ServerGenericBidiReactor {
     public:
      void OnDone() override { delete this; }
    };
    names = CertificateNames(*c);
    auto* const call = new Call;
    call->Finish(grpc::Status::OK);
    return call;
  }
  std::vector<std::string> names = {"none yet"};
};

TEST_F(TlsServerTest, GrpcTellsWhatACertificateProves) {
  files().ca.Issue("two", {.name = "two", .alternatives = "URI:spiffe://x/1,URI:spiffe://x/2"});
  TlsFiles two = files().worker();
  two.certificate = files().ca.certificate("two");
  two.key = files().ca.key("two");
  const struct {
    TlsFiles server, client;
    std::vector<std::string> names;
  } kCases[] = {
      {files().mutual_server(), files().worker(), {kWorkerId, "dns:worker.example", "cn:worker"}},
      {files().mutual_server(), two, {"cn:two"}},
      {files().server(), files().worker(), {}},
  };
  for (const auto& c : kCases) {
    Names service;
    const auto tls = *TlsContext::ForServer(c.server);
    const auto credentials = MakeServerCredentials(*tls);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterCallbackGenericService(&service);
    const auto server = builder.BuildAndStart();
    const auto client = Client::Connect(
        {.address = absl::StrCat("127.0.0.1:", port), .tls = OptionsOf(c.client), .attempts = 2});
    (void)client->Call("/any/Call", "");
    EXPECT_EQ(service.names, c.names);
    server->Shutdown();
  }
}

}  // namespace
}  // namespace kvstow::testing
