// Put streams by hand: framing, credit, and what a broken stream leaves behind: nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/digest.h"
#include "tests/service/transports/put_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kColumnBytes = 2 * 4 * 64 * 2;                 // of a page of SmallSpec
constexpr uint64_t kPageWithColumns = 131072 + 8 * kColumnBytes;  // as many as it may have

// One Put stream by hand.
class PutByHand {
 public:
  PutByHand(WireClient& client, const std::string& space)
      : context_(client.Context()), call_(client.kv().Put(context_.get())) {
    call_->Write(OpenPut(space));
  }
  v1::PutResponse Read() {
    v1::PutResponse response;
    EXPECT_TRUE(call_->Read(&response));
    return response;
  }
  bool Write(const v1::PutRequest& request) { return call_->Write(request); }
  // All results that are still to come, and how the call ended.
  grpc::Status End(std::vector<v1::PutResult>* results = nullptr) {
    call_->WritesDone();
    v1::PutResponse response;
    while (call_->Read(&response)) {
      if (results == nullptr) continue;
      results->insert(results->end(), response.results().begin(), response.results().end());
    }
    return call_->Finish();
  }
  void Cancel() { context_->TryCancel(); }
  const grpc::ClientContext& context() const { return *context_; }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<PutCall> call_;
};

v1::PutRequest Chunk(uint64_t page, uint64_t offset, const std::string& data) {
  v1::PutRequest request;
  request.set_page(page);
  request.set_offset(offset);
  request.set_data(data);
  return request;
}

TEST_F(PutTest, ChunksOutOfOrderRefuseTheirPageAlone) {
  const PageIn page = Page("bad", 1);
  const std::string half = page.raw.substr(0, page.raw.size() / 2);
  const struct {
    const char* what;
    v1::PutRequest second;
    const char* says;
  } kCases[] = {
      {"a gap", Chunk(1, half.size() + 1, half), "came where 65536 was due"},
      {"twice", Chunk(1, 0, half), "came where 65536 was due"},
      {"too long", Chunk(1, half.size(), half + "x"), ""},
      {"empty", Chunk(1, half.size(), ""), "is empty"},
  };
  for (const auto& c : kCases) {
    PutByHand stream(*client_, "s");
    EXPECT_GE(stream.Read().credit_bytes(), 2 * page.raw.size());
    ASSERT_TRUE(stream.Write(BeginPage(1, page, half)));
    ASSERT_TRUE(stream.Write(c.second));
    const PageIn good = Page("good", 2);
    ASSERT_TRUE(stream.Write(BeginPage(2, good, good.raw)));
    std::vector<v1::PutResult> results;
    const grpc::Status status = stream.End(&results);
    EXPECT_TRUE(status.ok()) << c.what << ": " << status.error_message();
    ASSERT_EQ(results.size(), 2u) << c.what;
    EXPECT_EQ(results[0].status(), v1::REFUSED) << c.what;
    EXPECT_THAT(results[0].message(), HasSubstr(c.says)) << c.what;
    EXPECT_NE(results[1].status(), v1::REFUSED) << c.what << results[1].message();
    EXPECT_EQ(client_->Get("s", {Ask("bad")}).pages[0].reply.status(), v1::MISS) << c.what;
  }
  ExpectNothingLeft(1);
}

std::string DigestOf(const std::string& raw) {
  const Digest128 digest = Xxh3_128(AsBytes(raw));
  return std::string(AsString(digest.bytes));
}

TEST_F(PutTest, ADigestMayComeWithTheLastChunk) {
  const PageIn page = Page("late", 1);
  const std::string half = page.raw.substr(0, page.raw.size() / 2);
  const std::string rest = page.raw.substr(half.size());
  const std::string good = DigestOf(page.raw), wrong = DigestOf("something else");
  const struct {
    const char* what;
    std::string in_begin, in_first, in_last;
    const char* says;  // "" = it is stored
  } kCases[] = {
      {"another page's", "", "", wrong, "it was damaged on its way"},
      {"of a wrong size", "", "", "short", "of 16 bytes"},
      {"too soon", "", good, "", "with its last chunk"},
      {"twice", good, "", good, "in `begin` or"},
      {"in time", "", "", good, ""},
  };
  for (const auto& c : kCases) {
    PutByHand stream(*client_, "s");
    PageIn begun = page;
    begun.digest = c.in_begin;
    v1::PutRequest first = BeginPage(1, begun, half), last = Chunk(1, half.size(), rest);
    first.set_digest(c.in_first);
    last.set_digest(c.in_last);
    ASSERT_TRUE(stream.Write(first));
    ASSERT_TRUE(stream.Write(last));
    std::vector<v1::PutResult> results;
    const grpc::Status status = stream.End(&results);
    EXPECT_TRUE(status.ok()) << c.what << ": " << status.error_message();
    ASSERT_EQ(results.size(), 1u) << c.what;
    const bool stored = c.says[0] == 0;
    EXPECT_EQ(results[0].status(), stored ? v1::STORED : v1::REFUSED) << c.what;
    EXPECT_THAT(results[0].message(), HasSubstr(c.says)) << c.what;
    EXPECT_EQ(GetBytes("late"), stored ? page.raw : "") << c.what;
  }
  ExpectNothingLeft(1);
}

TEST_F(PutTest, APageThatIsCutShortIsRefused) {
  const PageIn page = Page("cut", 1);
  PutByHand stream(*client_, "s");
  ASSERT_TRUE(stream.Write(BeginPage(1, page, "")));  // `begin` may come before any data
  ASSERT_TRUE(stream.Write(Chunk(1, 0, page.raw.substr(0, 1000))));
  const PageIn next = Page("next", 2);
  ASSERT_TRUE(stream.Write(BeginPage(2, next, next.raw)));
  const PageIn last = Page("last", 3);
  ASSERT_TRUE(stream.Write(BeginPage(3, last, last.raw.substr(0, 10))));
  std::vector<v1::PutResult> results;
  EXPECT_TRUE(stream.End(&results).ok());
  ASSERT_EQ(results.size(), 3u);
  std::sort(results.begin(), results.end(),
            [](const auto& a, const auto& b) { return a.page() < b.page(); });
  EXPECT_THAT(results[0].message(), HasSubstr("page 2 began after 1000 of 131072 bytes"));
  EXPECT_EQ(results[1].status(), v1::STORED);
  EXPECT_THAT(results[2].message(), HasSubstr("the stream ended after 10 of 131072 bytes"));
  ExpectNothingLeft(1);
}

TEST_F(PutTest, NonsenseEndsTheStream) {
  const PageIn page = Page("k", 1);
  const std::string part = page.raw.substr(0, 1000);
  v1::PutRequest open_again = OpenPut("s");
  const struct {
    const char* what;
    std::vector<v1::PutRequest> messages;
    const char* says;
  } kCases[] = {
      {"a chunk without a page", {Chunk(1, 0, part)}, "page 1, which is not being sent"},
      {"a chunk of another page",
       {BeginPage(1, page, part), Chunk(2, 1000, part)},
       "page 2, which"},
      {"a chunk after the last", {BeginPage(1, page, page.raw), Chunk(1, 131072, part)}, "page 1,"},
      {"a page number twice", {BeginPage(1, page, part), BeginPage(1, page, part)}, "must grow"},
      {"page number 0", {BeginPage(0, page, part)}, "numbers start at 1"},
      {"open twice", {open_again}, "open already"},
  };
  for (const auto& c : kCases) {
    PutByHand stream(*client_, "s");
    stream.Read();
    for (const v1::PutRequest& message : c.messages) stream.Write(message);
    const grpc::Status status = stream.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.what;
    EXPECT_THAT(status.error_message(), HasSubstr(c.says)) << c.what;
  }
  ExpectNothingLeft(1);  // the page that was whole before its stream broke
}

TEST_F(PutTest, TheFirstMessageMustOpen) {
  const PageIn page = Page("k", 1);
  v1::PutRequest unknown = OpenPut("s"), with_page = OpenPut("s");
  unknown.mutable_open()->set_payload(static_cast<v1::Payload>(9));
  with_page.mutable_begin()->set_key("k");
  const struct {
    v1::PutRequest first;
    grpc::StatusCode code;
    const char* says;
  } kCases[] = {
      {BeginPage(1, page, page.raw), grpc::StatusCode::INVALID_ARGUMENT, "`open`"},
      {with_page, grpc::StatusCode::INVALID_ARGUMENT, "only that"},
      {OpenPut("nowhere"), grpc::StatusCode::NOT_FOUND,
       "space 'nowhere' is not open: `kvstow spaces` lists"},
      {unknown, grpc::StatusCode::INVALID_ARGUMENT, "payload: 9"},
  };
  for (const auto& c : kCases) {
    const auto context = client_->Context();
    const auto call = client_->kv().Put(context.get());
    call->Write(c.first);
    v1::PutResponse response;
    while (call->Read(&response)) {
    }
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), c.code) << c.says;
    EXPECT_THAT(status.error_message(), HasSubstr(c.says));
  }
  ExpectNothingLeft(0);
}

TEST_F(PutTest, CreditIsALimitAndComesBack) {
  const PageIn page = Page("k", 1);
  PutByHand stream(*client_, "s");
  const uint64_t granted = stream.Read().credit_bytes();
  EXPECT_EQ(granted, options_.limits.window_bytes);
  ASSERT_TRUE(stream.Write(BeginPage(1, page, page.raw)));
  uint64_t back = 0;
  while (back < page.raw.size()) back += stream.Read().credit_bytes();
  EXPECT_EQ(back, page.raw.size());
  // Chunks of a page that was refused cost nothing for long, but sending beyond the grant does.
  PageIn refused = Page("", 1);
  ASSERT_TRUE(stream.Write(BeginPage(2, refused, "")));
  EXPECT_TRUE(stream.End().ok());
}

TEST_F(PutTest, SendingMoreThanWasGrantedEndsTheStream) {
  StopServer();
  options_.limits.window_bytes = 1;  // two pages are granted all the same
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  PutByHand stream(*client_, "s");
  EXPECT_EQ(stream.Read().credit_bytes(), 2 * kPageWithColumns);
  const std::string much(3 << 20, 'x');
  stream.Write(BeginPage(1, Page("k", 1), much));
  const grpc::Status status = stream.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("only 278528 were granted"));
  ExpectNothingLeft(0);
}

TEST_F(PutTest, ACancelledStreamLeavesNothingBehind) {
  const PageIn page = Page("half", 1);
  PutByHand stream(*client_, "s");
  stream.Read();
  ASSERT_TRUE(stream.Write(BeginPage(1, page, page.raw.substr(0, 1000))));
  ASSERT_TRUE(Eventually([&] { return server_->staging().staged_bytes() == page.raw.size(); }));
  EXPECT_EQ(client_->Get("s", {Ask("half")}).pages[0].reply.status(), v1::MISS);
  stream.Cancel();
  EXPECT_EQ(stream.End().error_code(), grpc::StatusCode::CANCELLED);
  ExpectNothingLeft(0);
}

TEST_F(PutTest, AStreamPastItsDeadlineLeavesNothingBehind) {
  const PageIn page = Page("half", 1);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const auto call = client_->kv().Put(&context);
  call->Write(OpenPut("s"));
  call->Write(BeginPage(1, page, page.raw.substr(0, 1000)));
  v1::PutResponse response;
  while (call->Read(&response)) {
  }
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingLeft(0);
}

TEST_F(PutTest, AClientThatReadsNothingIsHeldBackAndLosesNothing) {
  constexpr uint64_t kPages = 20'000;
  PutByHand stream(*client_, "s");
  std::thread writing([&] {
    const PageIn no_key{.key = "", .raw = "x", .tokens = 1};
    for (uint64_t i = 1; i <= kPages; ++i) {
      if (!stream.Write(BeginPage(i, no_key, ""))) break;
    }
  });
  ASSERT_TRUE(
      Eventually([&] { return Metric("kvstow_put_pages_total{result=\"refused\"}") >= 1024; }));
  std::vector<bool> seen(kPages + 1);
  uint64_t results = 0;
  while (results < kPages) {
    const v1::PutResponse response = stream.Read();
    ASSERT_LE(response.results_size(), 1025);
    for (const v1::PutResult& r : response.results()) {
      EXPECT_FALSE(seen.at(r.page())) << "answered twice: " << r.page();
      seen[r.page()] = true;
      ++results;
    }
  }
  writing.join();
  EXPECT_TRUE(stream.End().ok());
}

TEST_F(PutTest, ASilentSenderIsReaped) {
  StopServer();
  options_.staging_ttl = std::chrono::milliseconds(1);
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const PageIn page = Page("slow", 1);
  PutByHand stream(*client_, "s");
  stream.Read();
  ASSERT_TRUE(stream.Write(BeginPage(1, page, page.raw.substr(0, 1000))));
  ASSERT_TRUE(Eventually([&] { return Metric("kvstow_reaped_pages_total") == 1; }));
  EXPECT_EQ(server_->staging().staged_bytes(), 0u);
  ASSERT_TRUE(stream.Write(Chunk(1, 1000, page.raw.substr(1000))));
  std::vector<v1::PutResult> results;
  EXPECT_TRUE(stream.End(&results).ok());
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status(), v1::REFUSED);
  EXPECT_THAT(results[0].message(), HasSubstr("timed out"));
}

std::string Pushback(const grpc::ClientContext& context) {
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto it = trailing.find("grpc-retry-pushback-ms");
  return it == trailing.end() ? "" : std::string(it->second.data(), it->second.size());
}

TEST_F(PutTest, TooManyStreamsAreRefusedAndToldWhenToComeBack) {
  StopServer();
  config_.max_streams = 1;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  PutByHand first(*client_, "s");
  first.Read();
  PutByHand second(*client_, "s");
  EXPECT_EQ(second.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Pushback(second.context()), "100");
  EXPECT_TRUE(first.End().ok());
  EXPECT_EQ(Pushback(first.context()), "");
  EXPECT_EQ(Metric("kvstow_refused_calls_total{reason=\"too_many_streams\"}"), 1);
}

TEST_F(PutTest, WindowsOfAllStreamsFitIntoTheMemoryForThem) {
  constexpr uint64_t kPage = kPageWithColumns;
  StopServer();
  config_.put_bytes = 4 * 12 * kPage;  // a half is for streams, where each byte counts twice
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  {
    PutByHand first(*client_, "s");
    EXPECT_EQ(first.Read().credit_bytes(), 3 * kPage) << "a quarter";
    PutByHand second(*client_, "s");
    EXPECT_EQ(second.Read().credit_bytes(), 9 * kPage / 4) << "of what is left";
    PutByHand third(*client_, "s");
    EXPECT_EQ(third.Read().credit_bytes(), 2 * kPage) << "but two pages";
    PutByHand fourth(*client_, "s");
    EXPECT_EQ(fourth.Read().credit_bytes(), 2 * kPage);
    PutByHand fifth(*client_, "s");
    EXPECT_EQ(fifth.Read().credit_bytes(), 2 * kPage);
    PutByHand refused(*client_, "s");
    const grpc::Status status = refused.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("given to other streams"));
    EXPECT_EQ(Pushback(refused.context()), "100");
    EXPECT_EQ(Metric("kvstow_refused_calls_total{reason=\"put_memory\"}"), 1);
    for (PutByHand* const stream : {&first, &second, &third, &fourth, &fifth}) {
      EXPECT_TRUE(stream->End().ok());
    }
  }
  // A stream is over for the client before the server has let go of it, and of its window.
  ASSERT_TRUE(Eventually([&] { return Metric("kvstow_open_streams{method=\"put\"}") == 0; }));
  PutByHand alone(*client_, "s");
  EXPECT_EQ(alone.Read().credit_bytes(), 3 * kPage) << "all is back";
  EXPECT_TRUE(alone.End().ok());
}

TEST_F(PutTest, OneStreamIsServedHoweverLittleMemoryThereIs) {
  StopServer();
  config_.put_bytes = 1;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  PutByHand stream(*client_, "s");
  EXPECT_EQ(stream.Read().credit_bytes(), kPageWithColumns) << "a page";
  PageIn page = Page("k", 1);
  page.scores.assign(kColumnBytes, 0);
  page.columns.emplace_back().set_name("attn_sum");
  page.columns[0].set_queries(1);
  page.columns[0].set_bytes(kColumnBytes);
  ASSERT_TRUE(stream.Write(BeginPage(1, page, page.raw + page.scores)));
  std::vector<v1::PutResult> results;
  EXPECT_TRUE(stream.End(&results).ok());
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status(), v1::STORED) << results[0].message();
}

}  // namespace
}  // namespace kvstow::testing
