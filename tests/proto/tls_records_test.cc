// The records of TLS 1.3 against OpenSSL's own on the other side, both ways: by themselves over
// memory, and in a session over a socket.
#include "proto/wire/tls_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "proto/wire/tls_secrets.h"
#include "proto/wire/tls_session.h"
#include "tests/proto/certificates.h"
#include "tests/proto/tls_forger.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::testing {
namespace {

using ::testing::Each;
using Bytes = std::vector<uint8_t>;
using Connection = std::unique_ptr<SSL, void (*)(SSL*)>;

constexpr char kSmall[] = "TLS_AES_128_GCM_SHA256", kLarge[] = "TLS_AES_256_GCM_SHA384",
               kOther[] = "TLS_CHACHA20_POLY1305_SHA256";
constexpr size_t kSizes[] = {1, 2, 17, 16'383, 16'384, 16'385, 65'537, 3'000'001};

Bytes Random(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes out(size);
  std::ranges::generate(out, [&] { return static_cast<uint8_t>(random()); });
  return out;
}

const Certificates& Files() {
  static const TempDir folder;
  static const Certificates files(folder.path());
  return files;
}

// One side as OpenSSL alone has it, tickets and all.
Connection Plain(bool server, const char* suite) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_method()),
                                                             SSL_CTX_free);
  SSL_CTX_set_ciphersuites(context.get(), suite);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  TlsSecrets::Allow(context.get());
  const TlsFiles files = Files().server();
  if (server) {
    SSL_CTX_use_certificate_file(context.get(), files.certificate.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM);
  }
  Connection out(SSL_new(context.get()), SSL_free);
  server ? SSL_set_accept_state(out.get()) : SSL_set_connect_state(out.get());
  return out;
}

// OpenSSL on one side, and records over the secrets of the other, which OpenSSL shook hands for.
struct Pair {
  Pair(TlsRecords::Side side, const char* suite,
       uint64_t records_of_a_key = TlsRecords::kRecordsOfAKey)
      : peer(Plain(side == TlsRecords::Side::kClient, suite)) {
    const Connection own = Plain(side == TlsRecords::Side::kServer, suite);
    TlsSecrets secrets;
    secrets.TakeFrom(own.get());
    // A server that sends its tickets here has counted them as records.
    if (side == TlsRecords::Side::kServer) SSL_set_num_tickets(own.get(), 0);
    BIO *to_peer = BIO_new(BIO_s_mem()), *from_peer = BIO_new(BIO_s_mem());
    BIO_up_ref(to_peer);
    BIO_up_ref(from_peer);
    SSL_set_bio(peer.get(), to_peer, from_peer);
    SSL_set_bio(own.get(), from_peer, to_peer);
    BIO_up_ref(to_peer);
    BIO_up_ref(from_peer);
    in = to_peer, out = from_peer;
    // The own side stops as soon as it is done: what follows is for the records.
    for (int done = 0; done != 3;) {
      if ((done & 1) == 0 && SSL_do_handshake(own.get()) == 1) done |= 1;
      if ((done & 2) == 0 && SSL_do_handshake(peer.get()) == 1) done |= 2;
    }
    records = TlsRecords::Make(side, SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(own.get())),
                               secrets.client(), secrets.server(), records_of_a_key);
  }
  ~Pair() {
    BIO_free(in);
    BIO_free(out);
  }

  void ToPeer(const Bytes& wire) const {
    if (!wire.empty()) BIO_write(in, wire.data(), static_cast<int>(wire.size()));
  }
  Bytes FromPeer() const {
    Bytes wire(static_cast<size_t>(BIO_ctrl_pending(out)));
    if (!wire.empty()) BIO_read(out, wire.data(), static_cast<int>(wire.size()));
    return wire;
  }
  Bytes Seal(const Bytes& bytes) const {
    Bytes wire;
    for (std::span<const uint8_t> left = bytes; !left.empty();) {
      Bytes record(TlsRecords::MostSealed(left.size()));
      const TlsRecords::Sealed sealed = records->Seal(left, record.data());
      EXPECT_LE(sealed.written, record.size());
      wire.insert(wire.end(), record.begin(),
                  record.begin() + static_cast<ptrdiff_t>(sealed.written));
      left = left.subspan(sealed.taken);
    }
    return wire;
  }
  // What the records in `wire` hold, opened with room for them or in their places.
  absl::StatusOr<Bytes> Open(Bytes wire, bool with_room = true) const {
    Bytes all, room(with_room ? TlsRecords::kMostPayload : 0, 0xee);
    for (std::span<uint8_t> left = wire; !left.empty();) {
      const auto size = TlsRecords::SizeOf(left);
      if (!size.ok()) return size.status();
      if (*size == 0 || *size > left.size()) return absl::OutOfRangeError("half a record");
      const auto opened = records->Open(left.first(*size), room);
      if (!opened.ok()) return opened.status();
      all.insert(all.end(), opened->begin(), opened->end());
      left = left.subspan(*size);
    }
    return all;
  }
  void PeerWrites(const Bytes& bytes) const {
    for (size_t at = 0; at < bytes.size();) {
      const int n = SSL_write(peer.get(), bytes.data() + at, static_cast<int>(bytes.size() - at));
      ASSERT_GT(n, 0);
      at += static_cast<size_t>(n);
    }
  }
  Bytes PeerReads(size_t size) const {
    Bytes got(size);
    size_t at = 0;
    for (int n = 1; at < size && n > 0; at += static_cast<size_t>(std::max(n, 0))) {
      n = SSL_read(peer.get(), got.data() + at, static_cast<int>(size - at));
    }
    got.resize(at);
    return got;
  }

  Connection peer;
  BIO* in = nullptr;   // to the peer
  BIO* out = nullptr;  // from it
  std::unique_ptr<TlsRecords> records;
};

class TlsRecordsTest : public ::testing::TestWithParam<std::tuple<TlsRecords::Side, const char*>> {
 protected:
  Pair Make(uint64_t records_of_a_key = TlsRecords::kRecordsOfAKey) const {
    return Pair(std::get<0>(GetParam()), std::get<1>(GetParam()), records_of_a_key);
  }
};
INSTANTIATE_TEST_SUITE_P(, TlsRecordsTest,
                         ::testing::Combine(::testing::Values(TlsRecords::Side::kClient,
                                                              TlsRecords::Side::kServer),
                                            ::testing::Values(kSmall, kLarge)));

TEST_P(TlsRecordsTest, OpenSslReadsThemAndIsRead) {
  const Pair pair = Make();
  ASSERT_NE(pair.records, nullptr);
  for (const size_t size : kSizes) {
    const Bytes bytes = Random(size, size);
    pair.ToPeer(pair.Seal(bytes));
    EXPECT_TRUE(pair.PeerReads(size) == bytes) << size;
    pair.PeerWrites(bytes);
    const auto got = pair.Open(pair.FromPeer(), size % 2 == 0);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == bytes) << size;
  }
}

TEST_P(TlsRecordsTest, AnyMixOfSizesAndKeysComesThrough) {
  const Pair pair = Make(/*records_of_a_key=*/3);
  std::mt19937_64 random(5);
  for (uint64_t i = 0; i < 300; ++i) {
    const Bytes bytes = Random(1 + random() % (uint64_t{1} << (random() % 17)), i);
    if (random() % 8 == 0) {
      SSL_key_update(pair.peer.get(),
                     random() % 2 == 0 ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    pair.PeerWrites(bytes);
    const auto got = pair.Open(pair.FromPeer(), random() % 2 == 0);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_TRUE(*got == bytes);
    pair.ToPeer(pair.Seal(bytes));
    ASSERT_TRUE(pair.PeerReads(bytes.size()) == bytes);
  }
}

TEST_P(TlsRecordsTest, AKeyUpdateIsAnsweredOnceBeforeTheNextRecord) {
  const Pair pair = Make();
  static_cast<void>(pair.Open(pair.FromPeer()));  // tickets
  for (int i = 0; i < 3; ++i) {
    SSL_key_update(pair.peer.get(), SSL_KEY_UPDATE_REQUESTED);
    SSL_do_handshake(pair.peer.get());
  }
  const auto nothing = pair.Open(pair.FromPeer());
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE(nothing->empty());
  const Bytes first = pair.Seal({'a'}), second = pair.Seal({'b'});
  EXPECT_EQ(first.size(), TlsRecords::kUpdateBytes + 1 + TlsRecords::kOverhead);
  EXPECT_EQ(second.size(), 1 + TlsRecords::kOverhead);
  pair.ToPeer(first);
  pair.ToPeer(second);
  EXPECT_EQ(pair.PeerReads(2).size(), 2u);
}

TEST_P(TlsRecordsTest, TheEndIsTold) {
  const Pair pair = Make();
  Bytes end(TlsRecords::kMostEnd);
  end.resize(pair.records->SealEnd(end.data()));
  pair.ToPeer(end);
  uint8_t byte = 0;
  EXPECT_EQ(SSL_get_error(pair.peer.get(), SSL_read(pair.peer.get(), &byte, 1)),
            SSL_ERROR_ZERO_RETURN);
  SSL_shutdown(pair.peer.get());
  EXPECT_TRUE(absl::IsUnavailable(pair.Open(pair.FromPeer()).status()));
}

// Every byte of head, body and tag counts, wherever the payload would go.
TEST_P(TlsRecordsTest, AChangedByteIsNoByte) {
  for (size_t at = 0; at < 40 + TlsRecords::kOverhead; ++at) {
    const Pair pair = Make();
    static_cast<void>(pair.Open(pair.FromPeer()));
    pair.PeerWrites(Bytes(40, 'x'));
    Bytes wire = pair.FromPeer();
    ASSERT_EQ(wire.size(), 40 + TlsRecords::kOverhead);
    wire[at] ^= static_cast<uint8_t>(1 << at % 8);
    const auto size = TlsRecords::SizeOf(wire);
    if (!size.ok() || *size > wire.size()) continue;  // a head that no record has; or more is due
    Bytes room(at % 2 == 0 ? 64 : 0);
    const auto opened = pair.records->Open(std::span(wire).first(*size), room);
    EXPECT_TRUE(absl::IsInvalidArgument(opened.status())) << at;
    EXPECT_THAT(room, Each(0)) << "what fails is wiped";
    EXPECT_EQ(std::search_n(wire.begin(), wire.end(), 4, 'x'), wire.end());
  }
}

TEST_P(TlsRecordsTest, ARecordThatComesAgainOrTooEarlyIsRefused) {
  for (const bool again : {false, true}) {
    const Pair pair = Make();
    static_cast<void>(pair.Open(pair.FromPeer()));
    pair.PeerWrites({'a'});
    const Bytes first = pair.FromPeer();
    pair.PeerWrites({'b'});
    const Bytes second = pair.FromPeer();
    if (again) {
      ASSERT_TRUE(pair.Open(first).ok());
    }
    EXPECT_TRUE(absl::IsInvalidArgument(pair.Open(again ? first : second).status()));
  }
}

TEST(TlsRecords, HeadsThatNoRecordHas) {
  const auto code = [](Bytes head) { return TlsRecords::SizeOf(head).status().code(); };
  EXPECT_EQ(*TlsRecords::SizeOf(Bytes{23, 3, 3, 0}), 0u);
  EXPECT_EQ(*TlsRecords::SizeOf(Bytes{23, 3, 3, 0x40, 0x11}), TlsRecords::kMostRecord);
  EXPECT_EQ(code({23, 3, 3, 0x40, 0x12}), absl::StatusCode::kInvalidArgument) << "too long";
  EXPECT_EQ(code({23, 3, 3, 0, 16}), absl::StatusCode::kInvalidArgument) << "too short";
  EXPECT_EQ(code({23, 3, 1, 0, 40}), absl::StatusCode::kInvalidArgument) << "another version";
  for (const uint8_t type : {20, 21, 22, 24}) {
    EXPECT_EQ(code({type, 3, 3, 0, 40}), absl::StatusCode::kInvalidArgument) << "in clear";
  }
}

TEST(TlsRecords, OtherSuitesAndSecretsAreLeftToOpenSsl) {
  const Bytes secret(32), longer(48);
  const auto make = [](uint16_t suite, const Bytes& a, const Bytes& b) {
    return TlsRecords::Make(TlsRecords::Side::kClient, suite, a, b) != nullptr;
  };
  EXPECT_TRUE(make(0x1301, secret, secret));
  EXPECT_TRUE(make(0x1302, longer, longer));
  EXPECT_FALSE(make(0x1302, secret, secret));
  EXPECT_FALSE(make(0x1301, secret, {}));
  EXPECT_FALSE(make(0x1303, secret, secret));
}

// Records that no honest peer sends, to be opened.
class Forger {
 public:
  explicit Forger(TlsRecords::Side to)
      : records_(TlsRecords::Make(to, TlsForger::kSuite, forger_.secret(), forger_.secret())) {}
  absl::Status Send(const Bytes& inner) {
    Bytes wire = forger_.Sealed(inner), room(inner.size());
    const auto opened = records_->Open(wire, room);
    if (opened.ok()) payload_.assign(opened->begin(), opened->end());
    if (payload_.empty()) {
      EXPECT_THAT(room, Each(0)) << "what is no payload does not stay";
    }
    return opened.status();
  }
  const Bytes& payload() const { return payload_; }

 private:
  TlsForger forger_;
  std::unique_ptr<TlsRecords> records_;
  Bytes payload_;
};

TEST(TlsRecords, WhatAPeerMaySealAndWhatNot) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kOk = absl::StatusCode::kOk;
  const struct {
    const char* what;
    std::vector<Bytes> records;
    absl::StatusCode says;
  } kCases[] = {
      {"padding behind payload", {{'a', 23, 0, 0, 0}}, kOk},
      {"an empty record", {{23}}, kOk},
      {"padding alone", {{0, 0, 0}}, kInvalid},
      {"an unknown type", {{'a', 99}}, kInvalid},
      {"a change of the cipher", {{1, 20}}, kInvalid},
      {"close_notify", {{1, 0, 21}}, absl::StatusCode::kUnavailable},
      {"user_canceled", {{1, 90, 21}}, kOk},
      {"bad_record_mac", {{2, 20, 21}}, absl::StatusCode::kUnauthenticated},
      {"an alert that nobody knows", {{2, 250, 21}}, absl::StatusCode::kUnauthenticated},
      {"half an alert", {{2, 21}}, kInvalid},
      {"a ticket", {{4, 0, 0, 2, 'x', 'y', 22}}, kOk},
      {"tickets in one record", {{4, 0, 0, 1, 'x', 4, 0, 0, 1, 'y', 22}}, kOk},
      {"a ticket in two", {{4, 0, 0, 22}, {2, 'x', 'y', 22}}, kOk},
      {"a ticket, interrupted", {{4, 0, 0, 22}, {'a', 23}}, kInvalid},
      {"an empty message record", {{22}}, kInvalid},
      {"a long message", {{4, 9, 9, 9, 22}}, kInvalid},
      {"a request for a certificate", {{13, 0, 0, 0, 22}}, kInvalid},
      {"a KeyUpdate", {{24, 0, 0, 1, 0, 22}}, kOk},
      {"a KeyUpdate and more", {{24, 0, 0, 1, 0, 4, 0, 0, 0, 22}}, kInvalid},
      {"a KeyUpdate of 2", {{24, 0, 0, 1, 2, 22}}, kInvalid},
      {"a KeyUpdate without a byte", {{24, 0, 0, 0, 22}}, kInvalid},
      {"empty records without an end", std::vector<Bytes>(33, Bytes{23}), kInvalid},
  };
  for (const auto& c : kCases) {
    Forger forger(TlsRecords::Side::kClient);
    absl::Status last;
    for (const Bytes& record : c.records) last = last.ok() ? forger.Send(record) : last;
    EXPECT_EQ(last.code(), c.says) << c.what << ": " << last;
  }
  Forger padded(TlsRecords::Side::kClient), served(TlsRecords::Side::kServer);
  ASSERT_TRUE(padded.Send({'a', 0, 23, 0, 0}).ok());
  EXPECT_EQ(padded.payload(), (Bytes{'a', 0}));
  EXPECT_EQ(served.Send({4, 0, 0, 0, 22}).code(), kInvalid) << "clients have no tickets to give";
}

// A session over a socket that takes little at once, with OpenSSL on the other end, both by turns
// on one thread.
class TlsSessionTest : public ::testing::TestWithParam<std::tuple<bool, const char*>> {
 protected:
  TlsSessionTest() {
    EXPECT_TRUE(SetUpLog("error", "text").ok());
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends_), 0);
    const int little = 4096;
    for (const int end : ends_) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
    const bool server = std::get<0>(GetParam());
    context_ = server ? *TlsContext::ForServer(Files().server())
                      : *TlsContext::ForClient(Files().anyone(), "localhost");
    session_ = std::make_unique<TlsSession>(*context_, ends_[0]);
    peer_ = Plain(!server, std::get<1>(GetParam()));
    SSL_set_fd(peer_.get(), ends_[1]);
    for (int done = 0; done != 3;) {
      const auto step = session_->Handshake();
      if (!step.ok()) {
        ADD_FAILURE() << step.status();
        break;
      }
      if (step->wait_for == 0) done |= 1;
      if (SSL_do_handshake(peer_.get()) == 1) done |= 2;
    }
  }
  ~TlsSessionTest() override {
    for (const int end : ends_) close(end);
  }

  int ends_[2] = {-1, -1};
  std::shared_ptr<TlsContext> context_;
  std::unique_ptr<TlsSession> session_;
  Connection peer_{nullptr, SSL_free};
};
INSTANTIATE_TEST_SUITE_P(, TlsSessionTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(kSmall, kLarge, kOther)));

TEST_P(TlsSessionTest, SendsByteForByteWhateverTheSocketTakes) {
  for (const size_t size : kSizes) {
    const Bytes bytes = Random(size, size);
    Bytes got(size);
    size_t sent = 0, read = 0;
    while (read < size) {
      if (sent < size) {
        const auto step = session_->Write(std::span(bytes).subspan(sent));
        ASSERT_TRUE(step.ok()) << step.status();
        sent += step->bytes;
      } else {
        ASSERT_TRUE(session_->Flush().ok());
      }
      const int n = SSL_read(peer_.get(), got.data() + read,
                             static_cast<int>(std::min(size - read, size_t{5'000})));
      if (n > 0) read += static_cast<size_t>(n);
    }
    EXPECT_TRUE(got == bytes) << size;
  }
}

TEST_P(TlsSessionTest, ReadsByteForByteInPiecesOfAnySize) {
  std::mt19937_64 random(3);
  for (const size_t size : kSizes) {
    const Bytes bytes = Random(size, size);
    Bytes got(size);
    size_t sent = 0, read = 0;
    while (read < size) {
      if (random() % 64 == 0) SSL_key_update(peer_.get(), SSL_KEY_UPDATE_REQUESTED);
      if (sent < size) {
        const int n = SSL_write(peer_.get(), bytes.data() + sent, static_cast<int>(size - sent));
        if (n > 0) sent += static_cast<size_t>(n);
      }
      const size_t most = std::min(size - read, size_t{1} + random() % 40'000);
      const auto step = session_->Read(std::span(got).subspan(read, most));
      ASSERT_TRUE(step.ok()) << step.status();
      EXPECT_NE(step->bytes > 0, step->wait_for == POLLIN);
      read += step->bytes;
    }
    EXPECT_TRUE(got == bytes) << size;
  }
}

TEST_P(TlsSessionTest, BothSidesHearOfTheEnd) {
  session_->Finish();
  ASSERT_TRUE(session_->Flush().ok());
  uint8_t byte = 0;
  EXPECT_EQ(SSL_get_error(peer_.get(), SSL_read(peer_.get(), &byte, 1)), SSL_ERROR_ZERO_RETURN);
  ASSERT_EQ(SSL_write(peer_.get(), "ab", 2), 2);
  SSL_shutdown(peer_.get());
  Bytes got(8);
  const auto some = session_->Read(got);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->bytes, 2u) << "what came before the end counts";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(absl::IsUnavailable(session_->Read(got).status()));
}

TEST_P(TlsSessionTest, ARecordThatIsCutOffIsNoByte) {
  Bytes got(1000);
  static_cast<void>(session_->Read(got));  // tickets
  std::ranges::fill(got, 0xee);
  const std::string half("\x17\x03\x03\x01\x00half", 9);
  ASSERT_EQ(write(ends_[1], half.data(), half.size()), 9);
  const auto waits = session_->Read(got);
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(waits->wait_for, POLLIN);
  shutdown(ends_[1], SHUT_WR);
  EXPECT_TRUE(absl::IsUnavailable(session_->Read(got).status()));
  EXPECT_THAT(got, Each(0xee));
}

}  // namespace
}  // namespace kvstow::testing
