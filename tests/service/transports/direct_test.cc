// Direct connections as a worker sees them that speaks the protocol by hand, well or badly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/recipe/recipe.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "tests/service/bare_server.h"
#include "tests/service/encoded_pages.h"
#include "tests/service/transports/put_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPageBytes = 256;  // of BareServer
constexpr Duration kLong = std::chrono::seconds(20);

Time Soon() { return Clock::Real().Now() + kLong; }
SharedBytes Bytes(absl::string_view text) { return SharedBytes::CopyOf(AsBytes(text)); }

std::string PageOf(uint32_t seed) { return RandomPage(BareServer::Spec(), 4, seed); }
std::string DigestOf(absl::string_view raw) {
  return std::string(AsString(Xxh3_128(AsBytes(raw)).bytes));
}

v1::DirectRequest PutOf(const std::string& key, const std::string& raw,
                        const std::string& space = "exact") {
  v1::DirectRequest request;
  v1::DirectPut& put = *request.mutable_put();
  NameSpace(space, put);
  put.set_payload(v1::RAW);
  put.mutable_page()->set_key(key);
  put.mutable_page()->set_tokens(4);
  put.mutable_page()->set_payload_bytes(raw.size());
  return request;
}

v1::DirectRequest GetOf(const std::string& key, const std::string& space = "exact") {
  v1::DirectRequest request;
  v1::DirectGet& get = *request.mutable_get();
  NameSpace(space, get);
  get.set_payload(v1::RAW);
  get.set_checked(true);
  get.add_pages()->set_key(key);
  return request;
}

// One connection to a server without sockets, served by a thread.
class DirectTest : public ::testing::Test {
 protected:
  ~DirectTest() override { HangUp(); }

  // Before the first call.
  Duration patience_ = kLong;
  BareServer server_{{.get_bytes = 4 * kPageBytes,
                      .put_bytes = 4 * kPageBytes,  // a half of it for connections
                      .patience = Duration::zero()}};

  DirectSocket& socket() {
    if (ours_.has_value()) return *ours_;
    auto pair = *DirectSocket::Pair();
    ours_.emplace(std::move(pair.first));
    theirs_.emplace(std::move(pair.second));
    serving_ = std::thread([this] {
      DirectParts parts = server_.Direct();
      DirectRequests requests(parts, *theirs_, patience_);
      do {
        ended_ = theirs_->WaitForFrame(Soon());
        if (ended_.ok()) ended_ = requests.ServeOne();
      } while (ended_.ok());
      theirs_->HangUp();
    });
    return *ours_;
  }
  // Why the server's end ended; it does so by itself, or because we hang up.
  absl::Status Ended(bool by_itself = true) {
    if (!by_itself) ours_->HangUp();
    serving_.join();
    ours_.reset(), theirs_.reset();
    return ended_;
  }
  void HangUp() {
    if (ours_.has_value()) (void)Ended(/*by_itself=*/false);
  }

  // A page, and the digest behind it.
  v1::DirectReply Put(const v1::DirectRequest& request, const std::string& raw,
                      std::optional<std::string> digest = std::nullopt) {
    const SharedBytes parts[] = {Bytes(raw), Bytes(digest.value_or(DigestOf(raw)))};
    const std::span<const SharedBytes> sent(parts, request.put().page().digest().empty() ? 2 : 1);
    EXPECT_TRUE(socket().Send(request, sent, 0, Soon()).ok());
    return Answer().first;
  }
  std::pair<v1::DirectReply, std::string> Get(const v1::DirectRequest& request) {
    EXPECT_TRUE(socket().Send(request, {}, 0, Soon()).ok());
    return Answer();
  }
  std::pair<v1::DirectReply, std::string> Answer() {
    std::pair<v1::DirectReply, std::string> out;
    uint64_t bytes = 0;
    absl::Status status = socket().ReceiveFrame(out.first, bytes, Soon());
    out.second.resize(bytes);
    if (status.ok()) {
      status = socket().Receive({reinterpret_cast<uint8_t*>(out.second.data()), bytes}, Soon());
    }
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  void ExpectNothingStaged() {
    EXPECT_EQ(server_.staging().open_tickets(), 0u);
    EXPECT_EQ(server_.staging().staged_bytes(), 0u);
  }

 private:
  std::optional<DirectSocket> ours_, theirs_;
  absl::Status ended_;
  std::thread serving_;
};

TEST_F(DirectTest, APageCountsAmongWhatComesInUntilItIsStored) {
  uint64_t while_stored = 0;
  server_.faults().before_write = [&] { while_stored = server_.admission().put_bytes(); };
  const std::string page = PageOf(1);
  EXPECT_EQ(Put(PutOf("k", page), page).put().status(), v1::STORED);
  EXPECT_EQ(while_stored, 2 * kPageBytes) << "as it came, and as it is coded";
  HangUp();
  EXPECT_EQ(server_.admission().put_bytes(), 0u);
}

TEST_F(DirectTest, APageCountsAmongWhatGoesOutUntilItIsSent) {
  const std::string page = PageOf(1);
  ASSERT_EQ(Put(PutOf("k", page), page).put().status(), v1::STORED);
  {
    const auto others = server_.admission().gets().Try(3 * kPageBytes);
    const v1::DirectReply reply = Get(GetOf("k")).first;
    EXPECT_EQ(reply.refused().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_EQ(Get(GetOf("k")).second, page) << "the connection goes on";
  HangUp();
  EXPECT_EQ(server_.admission().get_bytes(), 0u);
}

TEST_F(DirectTest, PagesGoInAndComeBack) {
  const std::string raw = PageOf(1);
  EXPECT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED);
  EXPECT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::ALREADY_THERE);
  EXPECT_EQ(Put(PutOf("k", raw), PageOf(2)).put().status(), v1::CONFLICT);
  v1::DirectRequest ahead = PutOf("k2", raw);
  ahead.mutable_put()->mutable_page()->set_digest(DigestOf(raw));
  EXPECT_EQ(Put(ahead, raw).put().status(), v1::STORED);
  EXPECT_EQ(Put(ahead, raw).put().status(), v1::ALREADY_THERE);
  v1::DirectRequest both = GetOf("k");
  both.mutable_get()->add_pages()->set_key("nobody");
  both.mutable_get()->add_pages()->set_key("k2");
  const auto [first, bytes] = Get(both);
  EXPECT_EQ(first.got().status(), v1::HIT);
  EXPECT_TRUE(first.got().exact());
  EXPECT_EQ(first.got().raw_digest(), DigestOf(raw));
  EXPECT_EQ(bytes, raw);
  EXPECT_EQ(Answer().first.got().status(), v1::MISS);
  EXPECT_EQ(Answer().second, raw);
  ExpectNothingStaged();
}

TEST_F(DirectTest, EveryReplyHasItsKeyAndADigest) {
  const std::string raw = PageOf(1);
  for (const char* space : {"exact", "s"}) {
    EXPECT_EQ(Put(PutOf("k", raw, space), raw).put().status(), v1::STORED);
    v1::DirectRequest whole = GetOf("k", space), layer = whole, tokens = whole, encoded = whole;
    layer.mutable_get()->mutable_pages(0)->set_layer_count(1);
    tokens.mutable_get()->mutable_pages(0)->set_first_token(1);
    encoded.mutable_get()->set_payload(v1::ENCODED);
    for (const v1::DirectRequest& request : {whole, layer, tokens, encoded, GetOf("no", space)}) {
      const auto [reply, bytes] = Get(request);
      ExpectProven(request.get().pages(0), request.get().payload(), {reply.got(), bytes});
    }
  }
}

TEST_F(DirectTest, AnotherSpaceOfTheNameIsRefused) {
  const std::string raw = PageOf(1);
  ASSERT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED);
  v1::DirectRequest get = GetOf("k"), put = PutOf("other", raw);
  for (const std::string& wrong : {std::string(16, 'x'), std::string()}) {
    get.mutable_get()->set_fingerprint(wrong);
    put.mutable_put()->set_fingerprint(wrong);
    const auto code =
        wrong.empty() ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition;
    EXPECT_EQ(Get(get).first.refused().code(), static_cast<int>(code));
    EXPECT_EQ(Put(put, raw).refused().code(), static_cast<int>(code));
  }
  EXPECT_EQ(Get(GetOf("other")).first.got().status(), v1::MISS);
  EXPECT_EQ(Get(GetOf("k")).second, raw) << "the connection goes on";
}

TEST_F(DirectTest, KeysAreLookedUp) {
  const std::string raw = PageOf(1);
  ASSERT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED);
  v1::LookupRequest lookup;
  NameSpace("exact", lookup);
  lookup.add_keys("k"), lookup.add_keys("nobody");
  lookup.set_lease(true);
  v1::DirectRequest request;
  request.set_lookup(lookup.SerializeAsString());
  v1::LookupResponse found;
  ASSERT_TRUE(found.ParseFromString(Get(request).first.looked_up()));
  EXPECT_EQ(found.pages(), 1u);
  EXPECT_NE(found.lease(), 0u);
  NameSpace("nowhere", lookup);
  request.set_lookup(lookup.SerializeAsString());
  EXPECT_EQ(Get(request).first.refused().code(), static_cast<int>(absl::StatusCode::kNotFound));
  request.set_lookup("\xff\xff");
  EXPECT_TRUE(Get(request).first.has_refused());
  EXPECT_EQ(Get(GetOf("k")).second, raw) << "the connection goes on";
}

TEST_F(DirectTest, LossyPagesComeDecodedOrEncoded) {
  const std::string raw = PageOf(1);
  ASSERT_EQ(Put(PutOf("k", raw, "s"), raw).put().status(), v1::STORED);
  EXPECT_EQ(Get(GetOf("k", "s")).second.size(), raw.size());
  v1::DirectRequest encoded = GetOf("k", "s");
  encoded.mutable_get()->set_payload(v1::ENCODED);
  const auto payload = Get(encoded).second;
  const auto parsed = ParseEncodedPayload(AsBytes(payload));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->header.key, "k");
  // It goes in as it came out, into the space that makes such pages.
  v1::DirectRequest put = PutOf("k", payload, "s");
  put.mutable_put()->set_payload(v1::ENCODED);
  EXPECT_EQ(Put(put, payload, DigestOf(raw)).put().status(), v1::ALREADY_THERE);
}

TEST_F(DirectTest, NothingIsExactThatWasNotChecked) {
  const std::string p = PageOf(1), q = PageOf(2);
  const auto codec = MakeCodec(*ParseRecipe("raw"), BareServer::Spec());
  EncodedPage lie = *(*codec)->Encode({.raw = AsBytes(p), .tokens = 4, .key = "k"});
  lie.header.raw_digest = Xxh3_128(AsBytes(q));
  lie.header_bytes = SharedBytes::Take(SerializePageHeader(lie.header));
  const std::string payload = PayloadOf(lie);
  v1::DirectRequest put = PutOf("k", payload);
  put.mutable_put()->set_payload(v1::ENCODED);
  const v1::DirectReply reply = Put(put, payload, DigestOf(q));
  EXPECT_EQ(reply.put().status(), v1::REFUSED);
  EXPECT_THAT(reply.put().message(), HasSubstr("raw digest"));
  EXPECT_EQ(Put(PutOf("k", q), q).put().status(), v1::STORED);
  EXPECT_EQ(Get(GetOf("k")).second, q);
}

// The worker has a digest of a whole page, and of nothing else: also not of a part that is all of
// it.
TEST_F(DirectTest, WhatTheWorkerCannotCheckIsChecked) {
  const std::string raw = PageOf(1);
  ASSERT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED);
  server_.faults().damage_reads = true;
  const auto [whole, bytes] = Get(GetOf("k"));
  EXPECT_EQ(whole.got().status(), v1::HIT);
  EXPECT_NE(bytes, raw);
  const auto set_part = {+[](v1::GetPage& page) { page.set_layer_count(2); },
                         +[](v1::GetPage& page) { page.set_token_count(4); },
                         +[](v1::GetPage& page) { page.set_first_layer(1); }};
  for (const auto& set : set_part) {
    ASSERT_NE(Put(PutOf("k", raw), raw).put().status(), v1::REFUSED);
    v1::DirectRequest part = GetOf("k");
    set(*part.mutable_get()->mutable_pages(0));
    EXPECT_NE(Get(part).first.got().status(), v1::HIT);
  }
}

TEST_F(DirectTest, APageThatIsNotWhatItsDigestSaysIsRefused) {
  const std::string raw = PageOf(1);
  const v1::DirectReply reply = Put(PutOf("k", raw), raw, DigestOf("another"));
  EXPECT_EQ(reply.put().status(), v1::REFUSED);
  EXPECT_THAT(reply.put().message(), HasSubstr("damaged on its way"));
  EXPECT_EQ(Get(GetOf("k")).first.got().status(), v1::MISS);
}

TEST_F(DirectTest, WhatIsWrongWithOnePageIsItsAnswer) {
  const std::string raw = PageOf(1), longer = raw + raw;
  EXPECT_THAT(Put(PutOf("k", longer), longer).put().message(), HasSubstr("payload_bytes is 512"));
  EXPECT_THAT(Put(PutOf("", raw), raw).put().message(), HasSubstr("key has 0 bytes"));
  EXPECT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED) << "the connection goes on";
}

TEST_F(DirectTest, WhatCannotBeServedIsRefusedAndTheConnectionGoesOn) {
  const std::string raw = PageOf(1);
  EXPECT_THAT(Put(PutOf("k", raw, "nowhere"), raw).refused().message(), HasSubstr("nowhere"));
  EXPECT_EQ(Get(GetOf("k", "nowhere")).first.refused().code(),
            static_cast<int>(absl::StatusCode::kNotFound));
  v1::DirectRequest summary = GetOf("k");
  summary.mutable_get()->set_payload(v1::SUMMARY);
  EXPECT_THAT(Get(summary).first.refused().message(), HasSubstr("over a stream"));
  EXPECT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED);
}

TEST_F(DirectTest, WithoutRoomForAPageItIsRefused) {
  const std::string raw = PageOf(1);
  auto others = server_.admission().TakePut(kPageBytes);
  EXPECT_EQ(Put(PutOf("k", raw), raw).refused().code(),
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  others = absl::CancelledError();
  EXPECT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED) << "the connection goes on";
  ExpectNothingStaged();
}

TEST_F(DirectTest, BrokenFramesEndTheConnection) {
  const std::string raw = PageOf(1);
  v1::DirectRequest much = GetOf("k");
  while (much.get().pages_size() <= static_cast<int>(kMaxDirectPages))
    *much.mutable_get()->add_pages() = much.get().pages(0);
  v1::DirectRequest huge = PutOf("k", raw, "nowhere");
  huge.mutable_put()->mutable_page()->set_payload_bytes(uint64_t{1} << 60);
  const struct {
    v1::DirectRequest request;
    uint64_t payload;
    const char* says;
  } frames[] = {{{}, 0, "neither a get nor a put"},
                {GetOf("k"), 5, "neither a get nor a put"},
                {PutOf("k", raw), 5, "in a frame of 5"},
                {much, 0, "65 pages"},
                {GetOf(std::string(65, 'k')), 0, "key has 65 bytes"},
                {huge, (uint64_t{1} << 60) + 16, "nowhere"}};
  for (const auto& frame : frames) {
    SCOPED_TRACE(frame.says);
    ASSERT_TRUE(socket().Send(frame.request, {}, frame.payload, Soon()).ok());
    EXPECT_THAT(Ended().message(), HasSubstr(frame.says));
    ExpectNothingStaged();
  }
  const std::string noise = "GET / HTTP/1.1\r\nHost: kvstow\r\n\r\n";
  ASSERT_TRUE(socket().SendBytes(AsBytes(noise), Soon()).ok());
  EXPECT_THAT(Ended().message(), HasSubstr("another protocol"));
}

TEST_F(DirectTest, APageThatStopsHalfWayLeavesNothing) {
  patience_ = std::chrono::milliseconds(20);
  const std::string raw = PageOf(1);
  ASSERT_TRUE(socket().Send(PutOf("k", raw), {}, raw.size() + sizeof(Digest128), Soon()).ok());
  ASSERT_TRUE(socket().SendBytes(AsBytes(raw).first(100), Soon()).ok());
  EXPECT_EQ(Ended().code(), absl::StatusCode::kDeadlineExceeded) << "it stalled";
  ExpectNothingStaged();
  ASSERT_TRUE(socket().Send(PutOf("k", raw), {}, raw.size() + sizeof(Digest128), Soon()).ok());
  EXPECT_EQ(Ended(/*by_itself=*/false).code(), absl::StatusCode::kUnavailable) << "it went";
  ExpectNothingStaged();
  EXPECT_EQ(server_.store().residency().Usage().pages, 0u);
}

// As of a peer that has no ticket yet: what it began is of no use.
TEST_F(DirectTest, AFrameMustBeHereByThen) {
  const auto [ours, theirs] = *DirectSocket::Pair();
  DirectParts parts = server_.Direct();
  DirectRequests requests(parts, theirs, kLong);
  ASSERT_TRUE(ours.SendBytes(AsBytes("K"), Soon()).ok());
  const Time before = Clock::Real().Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(requests.ServeOne(before)));
}

// Frames that are cut, flipped, or noise: whatever comes, the server takes the next connection.
TEST_F(DirectTest, TwoThousandHostileConnections) {
  patience_ = std::chrono::milliseconds(1);
  std::mt19937 random(7);
  const std::string raw = PageOf(1);
  ASSERT_EQ(Put(PutOf("k", raw), raw).put().status(), v1::STORED);
  HangUp();
  for (int round = 0; round < 2000; ++round) {
    const v1::DirectRequest request = round % 2 == 0 ? PutOf("k2", raw) : GetOf("k");
    const std::string message = request.SerializeAsString();
    const uint64_t payload = round % 2 == 0 ? raw.size() + sizeof(Digest128) : 0;
    std::string bytes = "KVD1";
    const auto length = static_cast<uint32_t>(message.size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes.append(reinterpret_cast<const char*>(&payload), sizeof(payload));
    bytes += message + raw;
    for (uint32_t flips = random() % 4; flips > 0; --flips)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    bytes.resize(random() % (bytes.size() + 1));
    (void)socket().SendBytes(AsBytes(bytes), Soon());
    HangUp();
    ExpectNothingStaged();
  }
  patience_ = kLong;
  EXPECT_EQ(Get(GetOf("k")).second, raw);
}

// A server with its port.
class DirectServerTest : public PutTest {
 protected:
  DirectSocket Connect() {
    v1::OpenDirectResponse where;
    const grpc::Status asked = client_->kv().OpenDirect(client_->Context().get(), {}, &where);
    EXPECT_TRUE(asked.ok()) << asked.error_message();
    return *DirectSocket::Connect("127.0.0.1", static_cast<int>(where.port()), Soon());
  }
  static v1::DirectReply Ask(const DirectSocket& socket, const std::string& key) {
    v1::DirectReply reply;
    uint64_t bytes = 0;
    EXPECT_TRUE(socket.Send(GetOf(key, "s"), {}, 0, Soon()).ok());
    EXPECT_TRUE(socket.ReceiveFrame(reply, bytes, Soon()).ok());
    EXPECT_TRUE(socket.Skip(bytes, Soon()).ok());
    return reply;
  }
};

TEST_F(DirectServerTest, PagesOfStreamsComeOverDirectConnections) {
  client_->Put("s", {Page("k", 1)});
  const DirectSocket one = Connect(), another = Connect();
  EXPECT_EQ(Ask(one, "k").got().status(), v1::HIT);
  EXPECT_EQ(Ask(another, "k").got().status(), v1::HIT);
  EXPECT_EQ(Ask(one, "no").got().status(), v1::MISS);
  EXPECT_EQ(Metric("kvstow_direct_pages_total{method=\"get\"}"), 3);
  EXPECT_EQ(Metric("kvstow_direct_connections"), 2);
  another.HangUp();
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_direct_connections") == 1; }));
}

TEST_F(DirectServerTest, AServerThatStopsHangsUp) {
  const DirectSocket socket = Connect();
  EXPECT_EQ(Ask(socket, "k").got().status(), v1::MISS);
  StopServer();
  EXPECT_FALSE(socket.Quiet());
}

TEST_F(DirectServerTest, NoneAreTakenWhereTheyAreOff) {
  StopServer();
  config_.direct_listen = "off";
  StartServer();
  v1::OpenDirectResponse where;
  const grpc::Status asked = client_->kv().OpenDirect(client_->Context().get(), {}, &where);
  EXPECT_EQ(asked.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(asked.error_message(), HasSubstr("--direct-listen"));
}

TEST_F(DirectServerTest, APortThatIsTakenIsNamed) {
  v1::OpenDirectResponse where;
  ASSERT_TRUE(client_->kv().OpenDirect(client_->Context().get(), {}, &where).ok());
  Config config = config_;
  config.direct_listen = absl::StrCat("127.0.0.1:", where.port());
  config.disk_path.clear();
  const auto second = Server::Start(config, options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("direct-listen"));
}

}  // namespace
}  // namespace kvstow::testing
