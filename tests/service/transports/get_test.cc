// Get streams: the right bytes, honest replies, and no more than the client will take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "tests/kernels/pages.h"
#include "tests/service/transports/get_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(GetTest, PagesComeBackInOrderAndExact) {
  std::vector<v1::GetPage> ask;
  for (size_t i = 0; i < pages_.size(); ++i) ask.push_back(Ask(pages_[i].key, 100 - i));
  const auto got = client_->Get("s", ask);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  ASSERT_EQ(got.pages.size(), pages_.size());
  for (size_t i = 0; i < pages_.size(); ++i) {
    const v1::PageReply& reply = got.pages[i].reply;
    EXPECT_EQ(reply.status(), v1::HIT) << reply.message();
    EXPECT_EQ(got.pages[i].data, pages_[i].raw) << "page " << i;
    EXPECT_EQ(reply.payload_bytes(), pages_[i].raw.size());
    EXPECT_EQ(reply.tokens(), pages_[i].tokens);
    EXPECT_EQ(reply.first_position(), pages_[i].first_position);
    EXPECT_EQ(reply.tier(), "host");
    EXPECT_EQ(reply.recipe(), "raw");
    EXPECT_TRUE(reply.exact());
    EXPECT_EQ(reply.levels(), 1u);
    EXPECT_EQ(reply.levels_stored(), 1u);
    EXPECT_EQ(reply.estimated_error(), 0);
    const Digest128 digest = Xxh3_128(AsBytes(pages_[i].raw));
    EXPECT_EQ(reply.raw_digest(), AsString(digest.bytes));
  }
}

TEST_F(GetTest, ALossyPageSaysSo) {
  const auto got = client_->Get("lossy", {Ask("p0")});
  const v1::PageReply& reply = got.pages[0].reply;
  ASSERT_EQ(reply.status(), v1::HIT) << reply.message();
  const double error =
      RelativeError(DType::kF16, AsBytes(pages_[0].raw), AsBytes(got.pages[0].data));
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 1e-3);
  EXPECT_FALSE(reply.exact());
  EXPECT_EQ(reply.recipe(), "affine(bits=8,group=64)");
  EXPECT_LT(reply.stored_bytes(), pages_[0].raw.size());
  EXPECT_NEAR(reply.estimated_error(), error, error) << "the estimate is of the right size";
}

TEST_F(GetTest, TokensAndLayersAreThatPartOfThePage) {
  const KvSpec spec = SmallSpec();
  for (const char* space : {"s", "lossy"}) {
    const std::string whole = client_->Get(space, {Ask("p9")}).pages[0].data;
    for (uint32_t first = 0; first < 17; first += 4) {
      v1::GetPage ask = Ask("p9");
      ask.set_first_layer(1);
      ask.set_layer_count(2);
      ask.set_first_token(first);
      ask.set_token_count(first == 16 ? 0 : 3);
      const PageOut got = client_->Get(space, {ask}).pages[0];
      ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
      const uint32_t count = first == 16 ? 1 : 3;
      EXPECT_EQ(got.reply.tokens(), count);
      EXPECT_EQ(got.reply.first_position(), 64 * 9 + first);
      std::vector<uint8_t> part(2 * LayerBytes(spec, count));
      CopyTokens(spec, 2, 17, AsBytes(whole).subspan(LayerBytes(spec, 17)), {first, count}, part);
      EXPECT_EQ(got.data, AsString(part)) << space << ", tokens from " << first;
    }
  }
  v1::GetPage wrong = Ask("p9");
  wrong.set_first_token(16);
  wrong.set_token_count(2);
  const auto got = client_->Get("s", {wrong});
  EXPECT_EQ(got.pages[0].reply.status(), v1::NOT_COMPATIBLE);
  EXPECT_THAT(got.pages[0].reply.message(), HasSubstr("tokens 16 to 18 were asked for"));
}

TEST_F(GetTest, EachPageHasAnOutcomeOfItsOwn) {
  v1::GetPage deep = Ask("p1"), layers = Ask("p1");
  deep.set_min_levels(2);
  layers.set_first_layer(3);
  layers.set_layer_count(2);
  const auto got = client_->Get("s", {Ask("nothing"), Ask("p0"), deep, Ask(""), layers, Ask("p2")});
  ASSERT_EQ(got.pages.size(), 6u) << got.status.error_message();
  EXPECT_EQ(got.pages[0].reply.status(), v1::MISS);
  EXPECT_EQ(got.pages[1].data, pages_[0].raw);
  EXPECT_EQ(got.pages[2].reply.status(), v1::MISS);
  EXPECT_THAT(got.pages[2].reply.message(), HasSubstr("has 1 levels, at least 2"));
  EXPECT_EQ(got.pages[3].reply.status(), v1::MISS);
  EXPECT_EQ(got.pages[4].reply.status(), v1::NOT_COMPATIBLE);
  EXPECT_THAT(got.pages[4].reply.message(), HasSubstr("the space has 4"));
  EXPECT_EQ(got.pages[5].data, pages_[2].raw);
}

TEST_F(GetTest, LayersAreAPartOfThePage) {
  const size_t layer = kPageBytes / 4;
  for (const auto& [first, count] : {std::pair{0u, 1u}, {1u, 2u}, {3u, 1u}, {2u, 0u}, {0u, 4u}}) {
    v1::GetPage ask = Ask("p0");
    ask.set_first_layer(first);
    ask.set_layer_count(count);
    const auto got = client_->Get("s", {ask});
    const size_t end = count == 0 ? 4 : first + count;
    EXPECT_EQ(got.pages[0].data, pages_[0].raw.substr(first * layer, (end - first) * layer))
        << "layers from " << first << ", " << count;
  }
}

TEST_F(GetTest, EncodedPayloadDecodesWithTheKernelsLibrary) {
  const auto got = client_->Get("lossy", {Ask("p0")}, 0, v1::ENCODED);
  ASSERT_EQ(got.pages[0].reply.status(), v1::HIT) << got.pages[0].reply.message();
  EXPECT_LT(got.pages[0].data.size(), pages_[0].raw.size());
  ByteReader in(AsBytes(got.pages[0].data));
  const auto header_bytes = in.Get<uint32_t>();
  const auto count = in.Get<uint32_t>();
  std::vector<uint16_t> indices;
  for (uint32_t i = 0; i < count; ++i) indices.push_back(in.Get<uint16_t>());
  const auto header = ParsePageHeader(in.GetBytes(header_bytes));
  ASSERT_TRUE(header.ok()) << header.status();
  std::vector<SharedBytes> segments;
  for (const uint16_t i : indices) {
    segments.push_back(SharedBytes::CopyOf(in.GetBytes(header->segments.at(i).bytes)));
  }
  EXPECT_TRUE(in.ok());
  EXPECT_EQ(in.remaining(), 0u);
  std::string out(kPageBytes, '\0');
  ASSERT_TRUE(
      DecodePage(*header, segments, {reinterpret_cast<uint8_t*>(out.data()), out.size()}).ok());
  EXPECT_EQ(out, client_->Get("lossy", {Ask("p0")}).pages[0].data);
}

TEST_F(GetTest, CreditBoundsWhatIsSent) {
  const auto context = client_->Context();
  const auto call = client_->kv().Get(context.get());
  v1::GetRequest request;
  NameSpace("s", *request.mutable_open());
  *request.add_pages() = Ask("p0", 1);
  *request.add_pages() = Ask("nothing", 2);
  call->Write(request);
  v1::GetResponse response;
  std::string data;
  for (const uint64_t credit : {uint64_t{1}, uint64_t{999}, uint64_t{kPageBytes - 1000}}) {
    v1::GetRequest more;
    more.set_credit_bytes(credit);
    call->Write(more);
    ASSERT_TRUE(call->Read(&response));
    EXPECT_EQ(response.has_begin(), data.empty());
    EXPECT_EQ(response.data().size(), credit);
    EXPECT_EQ(response.offset(), data.size());
    data += response.data();
  }
  EXPECT_EQ(data, pages_[0].raw);
  v1::GetRequest more;
  more.set_credit_bytes(1);
  call->Write(more);
  ASSERT_TRUE(call->Read(&response));
  EXPECT_EQ(response.page(), 2u);
  EXPECT_EQ(response.begin().status(), v1::MISS) << "a miss needs credit, and costs none";
  call->WritesDone();
  EXPECT_FALSE(call->Read(&response));
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(GetTest, ClosingWithoutCreditIsAnErrorNotAHang) {
  const auto context = client_->Context();
  const auto call = client_->kv().Get(context.get());
  v1::GetRequest request;
  NameSpace("s", *request.mutable_open());
  *request.add_pages() = Ask("p0");
  request.set_credit_bytes(1000);
  call->Write(request);
  call->WritesDone();
  v1::GetResponse response;
  size_t bytes = 0;
  while (call->Read(&response)) bytes += response.data().size();
  EXPECT_EQ(bytes, 1000u);
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("credit_bytes"));
}

TEST_F(GetTest, NonsenseEndsTheStream) {
  v1::GetRequest not_open, nowhere, unknown, open, many, long_key;
  *not_open.add_pages() = Ask("p0");
  NameSpace("nowhere", *nowhere.mutable_open());
  NameSpace("s", *unknown.mutable_open());
  unknown.mutable_open()->set_payload(static_cast<v1::Payload>(9));
  NameSpace("s", *open.mutable_open());
  for (int i = 0; i < 65537; ++i) many.add_pages();
  *long_key.add_pages() = Ask(std::string(65, 'k'), 7);
  const struct {
    std::vector<v1::GetRequest> messages;
    grpc::StatusCode code;
    const char* says;
  } kCases[] = {
      {{not_open}, grpc::StatusCode::INVALID_ARGUMENT, "has `open`"},
      {{open, open}, grpc::StatusCode::INVALID_ARGUMENT, "has `open`"},
      {{nowhere}, grpc::StatusCode::NOT_FOUND, "`kvstow spaces` lists"},
      {{unknown}, grpc::StatusCode::INVALID_ARGUMENT, "payload: 9"},
      {{open, many}, grpc::StatusCode::INVALID_ARGUMENT, "ask for fewer"},
      {{open, long_key}, grpc::StatusCode::INVALID_ARGUMENT, "page 7: key has 65 bytes"},
  };
  for (const auto& c : kCases) {
    const auto context = client_->Context();
    const auto call = client_->kv().Get(context.get());
    for (const v1::GetRequest& message : c.messages) call->Write(message);
    v1::GetResponse response;
    while (call->Read(&response)) {
    }
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), c.code) << c.says;
    EXPECT_THAT(status.error_message(), HasSubstr(c.says));
  }
}

TEST_F(GetTest, PagesComeOneByOneWhenThereIsNoMemoryToReadAhead) {
  StopServer();
  config_.get_bytes = 0;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  ASSERT_TRUE(client_->Put("s", pages_).status.ok());
  std::vector<v1::GetPage> asked;
  for (const PageIn& page : pages_) asked.push_back(Ask(page.key));
  for (int time = 0; time < 2; ++time) {
    const auto got = client_->Get("s", asked);
    ASSERT_EQ(got.pages.size(), pages_.size());
    for (size_t i = 0; i < pages_.size(); ++i) EXPECT_EQ(got.pages[i].data, pages_[i].raw);
  }
}

TEST_F(GetTest, ALeaseLetsPagesBeFetchedUntilItEnds) {
  const v1::LookupResponse found = client_->Lookup("s", Keys(), true);
  EXPECT_EQ(found.pages(), 10u);
  EXPECT_EQ(found.tokens(), 9 * 64 + 17u);
  ASSERT_NE(found.lease(), 0u);
  EXPECT_EQ(found.lease_ttl_ms(), 10'000u);
  ASSERT_EQ(found.info_size(), 10);
  EXPECT_EQ(found.info(0).tier(), "host");
  EXPECT_EQ(found.info(0).levels(), 1u);
  EXPECT_GT(found.info(9).stored_bytes(), 0u);
  EXPECT_EQ(found.info(9).tokens(), 17u);
  EXPECT_EQ(client_->Get("s", {Ask("p0")}, found.lease()).pages[0].reply.status(), v1::HIT);

  v1::ReleaseRequest release;
  release.set_lease(found.lease());
  v1::ReleaseResponse released;
  ASSERT_TRUE(client_->kv().Release(client_->Context().get(), release, &released).ok());
  EXPECT_TRUE(released.found());
  const auto got = client_->Get("s", {Ask("p0"), Ask("p1")}, found.lease());
  for (const PageOut& page : got.pages) {
    EXPECT_EQ(page.reply.status(), v1::EXPIRED);
    EXPECT_THAT(page.reply.message(), HasSubstr("look the pages up again"));
  }
  EXPECT_EQ(server_->store().residency().Usage().leases, 0u);
}

TEST_F(GetTest, LookupStopsAtTheFirstGap) {
  v1::DeleteRequest request;
  NameSpace("s", request);
  request.add_keys("p3");
  request.add_keys("nothing");
  v1::DeleteResponse deleted;
  ASSERT_TRUE(client_->kv().Delete(client_->Context().get(), request, &deleted).ok());
  EXPECT_EQ(deleted.status(0), v1::HIT);
  EXPECT_EQ(deleted.status(1), v1::MISS);
  const v1::LookupResponse found = client_->Lookup("s", Keys(), false);
  EXPECT_EQ(found.pages(), 3u);
  EXPECT_EQ(found.lease(), 0u);
}

TEST_F(GetTest, ALeasedPageIsNotDeletedWithoutForce) {
  ASSERT_NE(client_->Lookup("s", {"p0"}, true).lease(), 0u);
  v1::DeleteRequest request;
  NameSpace("s", request);
  request.add_keys("p0");
  v1::DeleteResponse deleted;
  ASSERT_TRUE(client_->kv().Delete(client_->Context().get(), request, &deleted).ok());
  EXPECT_EQ(deleted.status(0), v1::REFUSED);
  request.set_force(true);
  deleted.Clear();
  ASSERT_TRUE(client_->kv().Delete(client_->Context().get(), request, &deleted).ok());
  EXPECT_EQ(deleted.status(0), v1::HIT);
}

TEST_F(GetTest, ACancelledStreamEndsAndLeavesNothingBehind) {
  auto context = client_->Context();
  {
    const auto call = client_->kv().Get(context.get());
    v1::GetRequest request;
    NameSpace("s", *request.mutable_open());
    for (int i = 0; i < 2000; ++i) *request.add_pages() = Ask("p" + std::to_string(i % 9));
    request.set_credit_bytes(uint64_t{1} << 40);
    call->Write(request);
    v1::GetResponse response;
    ASSERT_TRUE(call->Read(&response));
    context->TryCancel();
    while (call->Read(&response)) {
    }
    EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_open_streams{method=\"get\"}") == 0; }));
  EXPECT_EQ(client_->Get("s", {Ask("p0")}).pages[0].data, pages_[0].raw);
}

// A page that is fetched in parts is used once: a part that says so does not count again.
class UseTest : public ServerTest, public ::testing::WithParamInterface<bool> {};

TEST_P(UseTest, AnotherPartOfAPageIsNoUseOfIt) {
  const bool again = GetParam();
  config_.eviction_policy = "lru";
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  for (const char* key : {"old", "new"}) {
    const PageIn page = {.key = key, .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
    ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  }
  v1::GetPage ask = Ask("old");
  ask.set_first_layer(1);
  ask.set_again(again);
  ASSERT_EQ(client_->Get("s", {ask}).pages[0].reply.status(), v1::HIT);
  v1::EvictRequest evict;
  evict.set_tier("host");
  evict.set_to_bytes(kPageBytes + kPageBytes / 2);
  v1::EvictResponse response;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), evict, &response).ok());
  const auto status = [&](const char* key) {
    return client_->Get("s", {Ask(key)}).pages[0].reply.status();
  };
  EXPECT_EQ(status("old"), again ? v1::MISS : v1::HIT);
  EXPECT_EQ(status("new"), again ? v1::HIT : v1::MISS);
}

INSTANTIATE_TEST_SUITE_P(Again, UseTest, ::testing::Bool());

TEST_F(GetTest, MetricsTellWhatHappened) {
  client_->Get("s", {Ask("p0"), Ask("nothing")});
  client_->Lookup("s", {"p0", "p1", "nothing"}, false);
  EXPECT_EQ(Metric("kvstow_get_pages_total{result=\"hit\",tier=\"host\"}"), 1);
  EXPECT_EQ(Metric("kvstow_get_pages_total{result=\"miss\",tier=\"\"}"), 1);
  EXPECT_EQ(Metric("kvstow_get_payload_bytes_total"), kPageBytes);
  EXPECT_EQ(Metric("kvstow_lookup_keys_total"), 3);
  EXPECT_EQ(Metric("kvstow_lookup_hit_keys_total"), 2);
  EXPECT_EQ(Metric("kvstow_put_pages_total{result=\"stored\"}"), 20);
  EXPECT_EQ(Metric("kvstow_pages"), 20);
  EXPECT_EQ(Metric("kvstow_store_puts_total"), 20);
  EXPECT_GT(Metric("kvstow_tier_encoded_bytes{tier=\"host\"}"), 10 * kPageBytes);
}

}  // namespace
}  // namespace kvstow::testing
