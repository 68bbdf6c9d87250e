// TLS of direct connections by itself: which files are taken, who is let in, and that every byte
// comes through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/tls_context.h"
#include "tests/proto/certificates.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() { EXPECT_TRUE(SetUpLog("error", "text").ok()); }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  // What the two sides of a handshake say.
  struct Hands {
    DirectSocket server, client;
    absl::Status server_says, client_says;
  };
  static Hands Shake(const TlsFiles& server, const TlsFiles& client,
                     const std::string& name = "localhost") {
    auto [a, b] = *DirectSocket::Pair();
    Hands out{std::move(a), std::move(b), {}, {}};
    const auto servers = TlsContext::ForServer(server);
    const auto clients = TlsContext::ForClient(client, name);
    EXPECT_TRUE(servers.ok()) << servers.status();
    EXPECT_TRUE(clients.ok()) << clients.status();
    std::thread serving([&] {
      out.server_says = out.server.StartTls(**servers, Soon());
      if (!out.server_says.ok()) out.server.HangUp();
    });
    out.client_says = out.client.StartTls(**clients, Soon());
    if (!out.client_says.ok()) out.client.HangUp();
    serving.join();
    return out;
  }

  const TempDir folder_;
  const Certificates files_{folder_.path()};
};

TEST_F(TlsTest, FilesThatAreNoGoodAreNamed) {
  const CertificateAuthority& ca = files_.ca;
  ca.Issue("old", {.from_day = -9, .until_day = -2});
  ca.Issue("future", {.from_day = 2, .until_day = 9});
  ca.Issue("locked", {.passphrase = "secret"});
  const CertificateAuthority expired(folder_.path(), "expired", nullptr,
                                     {.from_day = -9, .until_day = -2});
  const std::string garbage = Write("garbage", "no PEM at all"), empty = Write("empty", "");
  const auto server = [&](const std::string& certificate, const std::string& key) {
    return TlsContext::ForServer({.certificate = certificate, .key = key}).status();
  };
  const auto client = [&](const std::string& authority) {
    return TlsContext::ForClient({.ca = authority}, "localhost").status();
  };
  const std::string good = ca.certificate("server"), key = ca.key("server");
  const struct {
    absl::Status status;
    std::string file, says;
  } kCases[] = {
      {server(Path("none"), key), Path("none"), "cannot be read: No such file"},
      {server(good, Path("none")), Path("none"), "cannot be read: No such file"},
      {server(folder_.path(), key), folder_.path(), "holds no certificate in PEM"},
      {server(garbage, key), garbage, "holds no certificate in PEM"},
      {server(key, key), key, "holds no certificate in PEM"},
      {server(good, empty), empty, "holds no private key in PEM"},
      {server(good, good), good, "holds no private key in PEM"},
      {server(good, ca.key("worker")), ca.key("worker"), "does not fit the certificate of " + good},
      {server(ca.certificate("old"), ca.key("old")), ca.certificate("old"), "expired on "},
      {server(ca.certificate("future"), ca.key("future")), ca.certificate("future"),
       "not valid before "},
      {server(ca.certificate("locked"), ca.key("locked")), ca.key("locked"),
       "without a passphrase"},
      {client(Path("none")), Path("none"), "cannot be read: No such file"},
      {client(garbage), garbage, "holds no certificate in PEM"},
      {client(expired.file()), expired.file(), "expired on "},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(c.status.code(), absl::StatusCode::kInvalidArgument) << c.status;
    EXPECT_THAT(c.status.message(), AllOf(HasSubstr(c.file), HasSubstr(c.says)));
  }
}

TEST_F(TlsTest, BothSidesLearnWhatTheOthersCertificateProves) {
  const Hands mutual = Shake(files_.mutual_server(), files_.worker());
  EXPECT_TRUE(mutual.server_says.ok()) << mutual.server_says;
  EXPECT_TRUE(mutual.client_says.ok()) << mutual.client_says;
  EXPECT_THAT(mutual.server.peer_names(),
              ElementsAre(kWorkerId, "dns:worker.example", "cn:worker"));
  EXPECT_THAT(mutual.client.peer_names(), ElementsAre("dns:localhost", "cn:server"));
  const Hands one_sided = Shake(files_.server(), files_.worker());
  EXPECT_TRUE(one_sided.server_says.ok()) << one_sided.server_says;
  EXPECT_THAT(one_sided.server.peer_names(), ElementsAre()) << "nobody asked, so nothing is proven";
}

TEST_F(TlsTest, ASpiffeIdCountsAloneAndWholeOnly) {
  const auto names = [&](const std::string& common_name, const std::string& alternatives) {
    files_.ca.Issue("odd", {.name = common_name, .alternatives = alternatives});
    TlsFiles odd = files_.worker();
    odd.certificate = files_.ca.certificate("odd");
    odd.key = files_.ca.key("odd");
    const Hands hands = Shake(files_.mutual_server(), odd);
    EXPECT_TRUE(hands.server_says.ok()) << hands.server_says;
    return hands.server.peer_names();
  };
  EXPECT_THAT(names("a", "URI:spiffe://x/1,URI:spiffe://x/2"), ElementsAre("cn:a"));
  EXPECT_THAT(names("spiffe://x/1", "URI:https://x/"), ElementsAre("cn:spiffe://x/1"));
  EXPECT_THAT(names("a", ""), ElementsAre("cn:a"));
}

TEST_F(TlsTest, WhoIsNotWhoHeMustBeIsRefusedByName) {
  const TempDir elsewhere;
  const Certificates others(elsewhere.path(), "other-ca");
  const CertificateAuthority stale(folder_.path(), "stale", &files_.ca,
                                   {.from_day = -9, .until_day = -2});
  stale.Issue("stale-server", {.alternatives = kServerNames});
  stale.Issue("stale-worker", {});
  const TlsFiles stale_server = {.certificate = stale.certificate("stale-server"),
                                 .key = stale.key("stale-server")};
  const TlsFiles stale_worker = {.certificate = stale.certificate("stale-worker"),
                                 .key = stale.key("stale-worker"),
                                 .ca = files_.ca.file()};
  const TlsFiles wrong_worker = {.certificate = others.ca.certificate("worker"),
                                 .key = others.ca.key("worker"),
                                 .ca = files_.ca.file()};
  const auto client = [](const Hands& hands) { return hands.client_says; };
  const auto server = [](const Hands& hands) { return hands.server_says; };
  const struct {
    absl::Status status;
    const char* says;
  } kCases[] = {
      {client(Shake(others.server(), files_.anyone())), "unable to get local issuer"},
      {client(Shake(stale_server, files_.anyone())), "certificate has expired"},
      {client(Shake(files_.server(), files_.anyone(), "kv.example")), "hostname mismatch"},
      {client(Shake(files_.server(), files_.anyone(), "10.0.0.1")), "IP address mismatch"},
      {server(Shake(files_.mutual_server(), files_.anyone())), "did not return a certificate"},
      {server(Shake(files_.mutual_server(), wrong_worker)), "unable to get local issuer"},
      {server(Shake(files_.mutual_server(), stale_worker)), "certificate has expired"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(c.status.code(), absl::StatusCode::kUnauthenticated) << c.status;
    EXPECT_THAT(c.status.message(), HasSubstr(c.says));
  }
  const Hands by_address = Shake(files_.server(), files_.anyone(), "127.0.0.1");
  EXPECT_TRUE(by_address.client_says.ok()) << by_address.client_says;
}

TEST_F(TlsTest, AClientThatIsRefusedLearnsItWhenItReads) {
  const Hands hands = Shake(files_.mutual_server(), files_.anyone());
  uint8_t byte = 0;
  const absl::Status read = hands.client.Receive({&byte, 1}, Soon());
  EXPECT_EQ(read.code(), absl::StatusCode::kUnauthenticated) << read;
  EXPECT_THAT(read.message(), HasSubstr("the server wants a certificate of its clients"));
}

TEST_F(TlsTest, ASideWithoutTlsIsTold) {
  const auto server = *TlsContext::ForServer(files_.server());
  const auto client = *TlsContext::ForClient(files_.anyone(), "localhost");
  auto [plain, secure] = *DirectSocket::Pair();
  ASSERT_TRUE(plain.Send(v1::DirectRequest(), {}, 0, Soon()).ok());
  const absl::Status refused = secure.StartTls(*server, Soon());
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(refused.message(), HasSubstr("does not speak TLS"));
  auto [listener, talker] = *DirectSocket::Pair();
  std::thread talking([&, &talker = talker] {
    EXPECT_TRUE(absl::IsUnavailable(talker.StartTls(*client, Soon())));
  });
  v1::DirectRequest request;
  uint64_t bytes = 0;
  EXPECT_EQ(listener.ReceiveFrame(request, bytes, Soon()).code(),
            absl::StatusCode::kInvalidArgument);
  listener.HangUp();
  talking.join();
}

TEST_F(TlsTest, AHandshakeThatStallsEndsAtItsDeadline) {
  const auto server = *TlsContext::ForServer(files_.server());
  const auto client = *TlsContext::ForClient(files_.anyone(), "localhost");
  const Time at_once = Clock::Real().Now() + std::chrono::milliseconds(1);
  for (TlsContext* side : {server.get(), client.get()}) {
    auto [silent, waiting] = *DirectSocket::Pair();
    EXPECT_EQ(waiting.StartTls(*side, at_once).code(), absl::StatusCode::kDeadlineExceeded);
  }
}

// Frames with every kind of payload, one after the other, as a server and a worker send them.
TEST_F(TlsTest, FramesComeThroughByteForByte) {
  const Hands hands = Shake(files_.mutual_server(), files_.worker());
  ASSERT_TRUE(hands.client_says.ok()) << hands.client_says;
  std::mt19937_64 random(7);
  const std::vector<size_t> kSizes = {0,       1,       16'383,    16'384, 16'385, 131'072, 131'073,
                                      262'144, 300'001, 5'000'003, 1,      0,      70'000};
  std::vector<std::vector<uint8_t>> sent;
  for (const size_t size : kSizes) {
    sent.emplace_back(size);
    std::ranges::generate(sent.back(), [&] { return static_cast<uint8_t>(random()); });
  }
  std::thread sending([&] {
    for (size_t i = 0; i < sent.size(); ++i) {
      v1::DirectReply message;
      message.mutable_got()->set_payload_bytes(sent[i].size());
      if (i % 2 == 0) {
        EXPECT_TRUE(hands.server.Send(message, {}, sent[i].size(), Soon()).ok());
        for (std::span<const uint8_t> left = sent[i]; !left.empty();) {
          const auto piece = left.first(std::min(left.size(), kDirectPieceBytes));
          EXPECT_TRUE(hands.server.SendBytes(piece, Soon()).ok());
          left = left.subspan(piece.size());
        }
      } else {
        const std::span<const uint8_t> all(sent[i]);
        const std::vector<SharedBytes> parts = {SharedBytes::CopyOf(all.first(all.size() / 3)),
                                                SharedBytes::CopyOf(all.subspan(all.size() / 3))};
        EXPECT_TRUE(hands.server.Send(message, parts, 0, Soon()).ok());
      }
    }
  });
  for (const auto& expected : sent) {
    ASSERT_TRUE(hands.client.WaitForFrame(Soon()).ok());
    v1::DirectReply message;
    uint64_t bytes = 0;
    ASSERT_TRUE(hands.client.ReceiveFrame(message, bytes, Soon()).ok());
    ASSERT_EQ(bytes, expected.size());
    EXPECT_EQ(message.got().payload_bytes(), expected.size());
    std::vector<uint8_t> got(bytes, 0xee);
    for (std::span<uint8_t> left = got; !left.empty();) {
      const auto piece = left.first(std::min<size_t>(left.size(), 100'000));
      ASSERT_TRUE(hands.client.Receive(piece, Soon()).ok());
      left = left.subspan(piece.size());
    }
    ASSERT_TRUE(got == expected) << "a frame of " << bytes << " bytes";
  }
  sending.join();
  EXPECT_TRUE(hands.client.Quiet()) << "nothing but frames comes, no ticket either";
  EXPECT_TRUE(hands.server.Quiet());
  hands.server.HangUp();
  EXPECT_FALSE(hands.client.Quiet());
  uint8_t byte = 0;
  EXPECT_TRUE(absl::IsUnavailable(hands.client.Receive({&byte, 1}, Soon())));
}

TEST_F(TlsTest, WhatIsNotReadYetIsNeitherQuietNorWaitedFor) {
  const Hands hands = Shake(files_.server(), files_.anyone());
  ASSERT_TRUE(hands.client_says.ok()) << hands.client_says;
  v1::DirectReply message;
  message.mutable_got()->set_message("one");
  ASSERT_TRUE(hands.server.Send(message, {}, 0, Soon()).ok());
  ASSERT_TRUE(hands.server.Send(message, {}, 0, Soon()).ok());
  uint64_t bytes = 0;
  ASSERT_TRUE(hands.client.ReceiveFrame(message, bytes, Soon()).ok());
  // Both came at once: the second is in the session now, and not in the socket.
  EXPECT_FALSE(hands.client.Quiet());
  EXPECT_TRUE(hands.client.WaitForFrame(Clock::Real().Now() + std::chrono::milliseconds(1)).ok());
  ASSERT_TRUE(hands.client.ReceiveFrame(message, bytes, Soon()).ok());
  EXPECT_TRUE(hands.client.Quiet());
}

// A byte on the wire that changes is an error, never another byte.
TEST_F(TlsTest, AChangedRecordIsNoByte) {
  for (const bool truncated : {false, true}) {
    Hands hands = Shake(files_.server(), files_.anyone());
    ASSERT_TRUE(hands.client_says.ok()) << hands.client_says;
    // Bytes past the session's back, as somebody on the way would slip them in.
    std::string record("\x17\x03\x03\x00\x40", 5);
    record.append(truncated ? 10 : 64, 'x');
    ASSERT_EQ(write(hands.server.descriptor(), record.data(), record.size()),
              static_cast<ssize_t>(record.size()));
    if (truncated) hands.server.HangUp();
    std::vector<uint8_t> got(8, 0xee);
    const absl::Status read = hands.client.Receive(got, Soon());
    EXPECT_EQ(read.code(),
              truncated ? absl::StatusCode::kUnavailable : absl::StatusCode::kInvalidArgument)
        << read;
    EXPECT_THAT(got, ::testing::Each(0xee));
  }
}

TEST_F(TlsTest, FilesThatChangeCountFromTheNextConnectionOn) {
  ManualClock clock;
  const auto context = *TlsContext::ForServer(files_.server(), clock);
  const auto first = context->Current();
  const CertificateAuthority& ca = files_.ca;
  ca.Issue("server", {.name = "renewed", .alternatives = kServerNames});
  clock.Advance(std::chrono::milliseconds(500));
  EXPECT_EQ(context->Current(), first) << "it looks once a second";
  clock.Advance(std::chrono::seconds(1));
  const auto second = context->Current();
  EXPECT_NE(second, first);
  clock.Advance(std::chrono::seconds(2));
  EXPECT_EQ(context->Current(), second) << "nothing changed";
  EXPECT_EQ(context->broken_reloads(), 0u);
}

TEST_F(TlsTest, BrokenFilesLeaveTheOldOnesInUseAndAreCountedOnce) {
  ManualClock clock;
  const auto context = *TlsContext::ForServer(files_.mutual_server(), clock);
  const auto good = context->Current();
  const CertificateAuthority& ca = files_.ca;
  const auto look = [&] {
    clock.Advance(std::chrono::seconds(2));
    return context->Current();
  };
  // A renewal that writes one file after the other.
  ca.Issue("next", {.alternatives = kServerNames});
  std::filesystem::rename(ca.certificate("next"), ca.certificate("server"));
  EXPECT_EQ(look(), good) << "the key does not fit yet";
  EXPECT_EQ(look(), good);
  EXPECT_EQ(context->broken_reloads(), 1u);
  std::filesystem::rename(ca.key("next"), ca.key("server"));
  const auto renewed = look();
  EXPECT_NE(renewed, good);
  std::filesystem::remove(ca.file());
  EXPECT_EQ(look(), renewed);
  ca.Issue("server", {.from_day = -9, .until_day = -2});
  EXPECT_EQ(look(), renewed);
  EXPECT_EQ(context->broken_reloads(), 3u);
}

}  // namespace
}  // namespace kvstow::testing
