// Servers whose replies are out of step, or whose payload was damaged on its way. The client never
// reports another page's bytes, or wrong ones, as a hit: on every transport, for every part of a
// page.
#include "tests/adversary/lying_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "client/client.h"

namespace kvstow {
namespace {

using ::testing::Each;

// The part of two pages that a test asks for, and the form in which it comes.
struct Kind {
  const char* name;
  const char* space;
  Payload payload = Payload::kRaw;
  bool summary = false;
  uint32_t first_layer = 0, layer_count = 0, first_token = 0, token_count = 0;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

struct NamedLie {
  const char* name;
  Lie lie;
  bool of_digests = false;  // that an encoded page has not
};

Lie Flip(double where) {
  return [where](Told& told, const Told&) {
    told.payload[static_cast<size_t>(where * static_cast<double>(told.payload.size() - 1))] ^= 4;
  };
}

const NamedLie kLies[] = {
    {"another page in its place", [](Told& told, const Told& other) { told = other; }},
    {"a miss of another page",
     [](Told& told, const Told& other) {
       told = {};
       told.reply.set_key(other.reply.key());
       told.reply.set_status(v1::MISS);
     }},
    {"a page without a name", [](Told& told, const Told&) { told.reply.clear_key(); }},
    {"another page's bytes",
     [](Told& told, const Told& other) {
       const size_t bytes = told.payload.size();
       told.payload = other.payload;
       told.payload.resize(bytes);
     }},
    {"a bit of the first byte", Flip(0)},
    {"a bit in the middle", Flip(0.5)},
    {"a bit of the last byte", Flip(1)},
    {"no digests",
     [](Told& told, const Told&) {
       told.reply.clear_raw_digest(), told.reply.clear_payload_digest();
     },
     true},
    {"digests cut short",
     [](Told& told, const Told&) {
       for (std::string* digest :
            {told.reply.mutable_raw_digest(), told.reply.mutable_payload_digest()}) {
         if (!digest->empty()) digest->pop_back();
       }
     },
     true},
};

class LyingServerTest : public ::testing::TestWithParam<std::tuple<LyingWay, Kind>> {
 protected:
  struct Came {
    std::vector<GetResult> results;
    std::vector<std::vector<uint8_t>> bytes;  // of hits
  };

  void SetUp() override { ASSERT_NO_FATAL_FAILURE(server_.Put(prompt_)); }

  static LyingWay transport() { return std::get<LyingWay>(GetParam()); }
  static const Kind& kind() { return std::get<Kind>(GetParam()); }

  // With a client of its own, which has not learned anything yet.
  Came Fetch(int attempts) {
    ClientOptions options{
        .address = server_.address(), .attempts = attempts, .payload = kind().payload};
    if (transport() != LyingWay::kDirect) options.direct_connections = 0;
    const auto client = Client::Connect(options);
    const auto opened = client->OpenSpace({.name = kind().space, .spec = prompt_.spec});
    EXPECT_TRUE(opened.ok()) << opened.status();
    const size_t page = prompt_.pages[0].size();
    std::unique_ptr<PageBuffer> shared;
    if (transport() == LyingWay::kShared) shared = client->NewBuffer(2 * page);
    std::vector<std::vector<uint8_t>> own(2, std::vector<uint8_t>(page));
    std::vector<PageGet> gets;
    for (size_t p = 0; p < 2; ++p) {
      std::span<uint8_t> out = own[p];
      if (shared != nullptr) out = shared->bytes().subspan(p * page, page);
      gets.push_back({.key = prompt_.keys[p],
                      .out = out,
                      .first_layer = kind().first_layer,
                      .layer_count = kind().layer_count,
                      .first_token = kind().first_token,
                      .token_count = kind().token_count});
    }
    Came came;
    // Until there is a direct connection, pages come over streams.
    const int before = server_.replies(transport());
    const Time deadline = Clock::Real().Now() + std::chrono::seconds(20);
    do {
      auto pending = kind().summary ? client->GetSummaries(kind().space, 0, gets)
                                    : client->Get(kind().space, 0, gets);
      came.results = pending.get();
    } while (server_.replies(transport()) == before && Clock::Real().Now() < deadline);
    for (size_t p = 0; p < 2; ++p) {
      const auto bytes = gets[p].out.first(came.results[p].bytes);
      came.bytes.emplace_back(bytes.begin(), bytes.end());
    }
    return came;
  }

  const Prompt prompt_{SmallSpec(), 2 * 64, 1};
  LyingServer server_;
};

TEST_P(LyingServerTest, NoLieIsAHit) {
  const Came truth = Fetch(/*attempts=*/1);
  ASSERT_THAT(OutcomesOf(truth.results), Each(PageOutcome::kHit)) << truth.results[0].message;
  ASSERT_NE(truth.bytes[0], truth.bytes[1]);
  ASSERT_EQ(server_.replies(transport()), 2);
  const int always = std::numeric_limits<int>::max();
  for (const NamedLie& lie : kLies) {
    SCOPED_TRACE(lie.name);
    if (lie.of_digests && kind().payload == Payload::kEncoded) continue;
    server_.TellLies(lie.lie, {{LyingWay::kStream, always}, {transport(), always}});
    const Came lies = Fetch(/*attempts=*/1);
    EXPECT_THAT(OutcomesOf(lies.results), Each(::testing::Ne(PageOutcome::kHit)));
    EXPECT_GT(server_.lies_told(transport()), 0);

    // Asked once more, elsewhere or without trust, the server tells the truth.
    server_.TellLies(lie.lie, {{transport(), 1}});
    const Came once = Fetch(/*attempts=*/3);
    EXPECT_EQ(server_.lies_told(transport()), 1);
    for (size_t p = 0; p < 2; ++p) {
      ASSERT_EQ(once.results[p].outcome, PageOutcome::kHit) << once.results[p].message;
      EXPECT_EQ(once.bytes[p], truth.bytes[p]);
      EXPECT_EQ(once.results[p].keep, truth.results[p].keep);
    }
  }
}

const Kind kRaw[] = {
    {.name = "WholeExact", .space = "raw"},
    {.name = "LayersOfExact", .space = "raw", .first_layer = 1, .layer_count = 2},
    {.name = "TokensOfExact", .space = "raw", .first_token = 5, .token_count = 10},
    {.name = "WholeLossy", .space = "int8"},
    {.name = "LayersOfLossy", .space = "int8", .first_layer = 1, .layer_count = 2},
    {.name = "TokensOfLossy", .space = "int8", .first_token = 5, .token_count = 10},
    {.name = "KeptTokens", .space = "sparse"},
    {.name = "LayersOfKeptTokens", .space = "sparse", .first_layer = 1, .layer_count = 2}};
const Kind kEncoded[] = {
    {.name = "EncodedExact", .space = "raw", .payload = Payload::kEncoded},
    {.name = "EncodedLossy", .space = "int8", .payload = Payload::kEncoded},
    {.name = "EncodedLayers",
     .space = "int8",
     .payload = Payload::kEncoded,
     .first_layer = 1,
     .layer_count = 2},
    {.name = "EncodedKeptTokens", .space = "sparse", .payload = Payload::kEncoded}};
const Kind kSummaries[] = {{.name = "SummaryOfExact", .space = "raw", .summary = true},
                           {.name = "SummaryOfLossy", .space = "int8", .summary = true}};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<LyingWay, Kind>>& info) {
  return std::get<Kind>(info.param).name;
}
template <size_t n>
auto Kinds(LyingWay transport, const Kind (&kinds)[n]) {
  return ::testing::Combine(::testing::Values(transport), ::testing::ValuesIn(kinds));
}
INSTANTIATE_TEST_SUITE_P(Stream, LyingServerTest, Kinds(LyingWay::kStream, kRaw), NameOf);
INSTANTIATE_TEST_SUITE_P(EncodedStream, LyingServerTest, Kinds(LyingWay::kStream, kEncoded),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Summaries, LyingServerTest, Kinds(LyingWay::kStream, kSummaries), NameOf);
INSTANTIATE_TEST_SUITE_P(Direct, LyingServerTest, Kinds(LyingWay::kDirect, kRaw), NameOf);
INSTANTIATE_TEST_SUITE_P(EncodedDirect, LyingServerTest, Kinds(LyingWay::kDirect, kEncoded),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Shared, LyingServerTest, Kinds(LyingWay::kShared, kRaw), NameOf);

}  // namespace
}  // namespace kvstow
