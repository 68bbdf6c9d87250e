// Servers that break, stall or lie: a miss within the deadline, and recovery afterwards.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/connection/attempts.h"
#include "proto/wire/chunk.h"
#include "tests/client/fake_server.h"

namespace kvstow {
namespace {

using std::chrono::milliseconds;

// A TCP port that takes connections (the kernel does) and never says a word; or nothing at all.
class Socket {
 public:
  explicit Socket(bool listening) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    if (listening) {
      EXPECT_EQ(listen(fd_, 16), 0);
    }
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  }
  ~Socket() { close(fd_); }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

void ExpectMissesWithin(const std::string& address, milliseconds timeout, milliseconds limit) {
  const auto client = Client::Connect({.address = address, .timeout = timeout});
  const Prompt prompt(SmallSpec(), 64 * 4, 1);
  const auto took = [&](auto&& call) {
    const Time start = Clock::Real().Now();
    call();
    EXPECT_LT(Clock::Real().Now() - start, limit);
  };
  took([&] { EXPECT_FALSE(client->Lookup("s", prompt.keys).status.ok()); });
  took([&] {
    EXPECT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
                testing::Each(PageOutcome::kUnavailable));
  });
  took([&] {
    Fetch fetch(SmallSpec(), prompt.keys);
    const auto results = client->Get("s", 0, fetch.gets).get();
    EXPECT_THAT(OutcomesOf(results), testing::Each(PageOutcome::kUnavailable));
    EXPECT_THAT(results[0].message, testing::HasSubstr(address));
  });
}

TEST(ClientFault, ADeadServerIsAMiss) {
  const Socket nobody(/*listening=*/false);
  ExpectMissesWithin(nobody.address(), milliseconds(10'000), milliseconds(5'000));
}

TEST(ClientFault, AServerThatNeverAnswersIsAMissAtTheDeadline) {
  const Socket silent(/*listening=*/true);
  ExpectMissesWithin(silent.address(), milliseconds(300), milliseconds(2'000));
}

TEST(ClientFault, BadOptionsAreReportedByEveryCall) {
  for (const ClientOptions& bad :
       {ClientOptions{.address = "http://x"}, ClientOptions{.address = "x"},
        ClientOptions{.timeout = milliseconds(0)}, ClientOptions{.chunk_bytes = 5 << 20},
        ClientOptions{.attempts = 0}, ClientOptions{.get_window_bytes = 1}}) {
    const auto client = Client::Connect(bad);
    const Prompt prompt(SmallSpec(), 64, 1);
    EXPECT_TRUE(absl::IsInvalidArgument(client->FindSpace("s").status()));
    EXPECT_TRUE(absl::IsInvalidArgument(client->Lookup("s", prompt.keys).status));
    EXPECT_FALSE(client->Put("s", prompt.Puts()).get()[0].message.empty());
    Fetch fetch(SmallSpec(), prompt.keys);
    EXPECT_FALSE(client->Get("s", 0, fetch.gets).get()[0].message.empty());
  }
}

class FaultyServer : public testing::Test {
 protected:
  void SetUp() override {
    client_ = Client::Connect({.address = server_->address(), .timeout = milliseconds(1'000)});
    ASSERT_TRUE(client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"}).ok());
  }
  std::unique_ptr<FakeServer> server_ = StartFakeServer("127.0.0.1:0");
  std::unique_ptr<Client> client_;
  const Prompt prompt_{SmallSpec(), 64 * 6, 1};
};

TEST_F(FaultyServer, ABrokenPutGoesOnWithThePagesThatHaveNoAnswer) {
  server_->faults().break_after_pages = 3;
  const auto results = client_->Put("s", prompt_.Puts()).get();
  // The page whose answer was lost with the stream was stored before it was sent again.
  EXPECT_THAT(OutcomesOf(results),
              testing::Each(testing::AnyOf(PageOutcome::kStored, PageOutcome::kAlreadyThere)));
  EXPECT_EQ(server_->faults().streams, 2);
  Fetch fetch(SmallSpec(), prompt_.keys);
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()), testing::Each(PageOutcome::kHit));
  EXPECT_EQ(fetch.buffers, prompt_.pages);
}

// The Lookup fails when some of its time is gone. Opening the space again has only the rest.
TEST_F(FaultyServer, OneDeadlineIsThatOfAllPartsOfACall) {
  const auto patient =
      Client::Connect({.address = server_->address(), .timeout = milliseconds(10'000)});
  server_->faults().other_space_at_ms = 9'700;
  EXPECT_TRUE(absl::IsNotFound(patient->Lookup("s", prompt_.keys).status));
  EXPECT_LE(server_->faults().open_had_ms, 9'800);
}

TEST_F(FaultyServer, ALookupThatNoMessageHoldsSaysWhatToDo) {
  const std::vector<std::string> keys(65'536, std::string(64, 'k'));
  const absl::Status status = client_->Lookup("s", keys).status;
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("name fewer keys in a call"));
  EXPECT_TRUE(client_->Lookup("s", std::span(keys).first(60'000)).status.ok());
}

TEST_F(FaultyServer, AStalledStreamEndsAtTheDeadlineAndTheNextOneWorks) {
  server_->faults().stall = true;
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kUnavailable));
  Fetch fetch(SmallSpec(), prompt_.keys);
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()),
              testing::Each(PageOutcome::kUnavailable));
  EXPECT_EQ(server_->faults().streams, 2) << "a deadline is not tried again";
  server_->faults().stall = false;
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
}

TEST_F(FaultyServer, WhoIsRefusedForNowComesBackAsLateAsTheServerAsks) {
  server_->faults().pushback_ms = 30;
  server_->faults().refusals = 2;
  const Time start = Clock::Real().Now();
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  EXPECT_GE(Clock::Real().Now() - start, milliseconds(30 + 60)) << "the second wait is longer";
  EXPECT_EQ(server_->faults().streams, 3);
  server_->faults().refusals = 1;
  Fetch fetch(SmallSpec(), prompt_.keys);
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()), testing::Each(PageOutcome::kHit));
  EXPECT_EQ(server_->faults().streams, 5);
}

TEST_F(FaultyServer, AWaitBeyondTheDeadlineIsNotBegun) {
  server_->faults().pushback_ms = 3'600'000;
  server_->faults().refusals = 1;
  const auto results = client_->Put("s", prompt_.Puts()).get();
  EXPECT_THAT(OutcomesOf(results), testing::Each(PageOutcome::kUnavailable));
  EXPECT_THAT(results[0].message, testing::HasSubstr("too much at once"));
  EXPECT_EQ(server_->faults().streams, 1);
}

TEST(ClientAttempts, WaitAsLongAsAskedAndARandomPartLonger) {
  const Time later = Clock::Real().Now() + milliseconds(3'600'000);
  absl::Status refused = absl::ResourceExhaustedError("busy");
  EXPECT_FALSE(Attempts(6, later).Next(refused, false).has_value()) << "without a pushback";
  const auto ask = [&](absl::string_view pushback) {
    refused.SetPayload(kPushbackKey, absl::Cord(pushback));
  };
  ask("2000");
  std::set<Duration> first_waits;
  for (int call = 0; call < 100; ++call) {
    Attempts attempts(3, later);
    const auto first = attempts.Next(refused, false), second = attempts.Next(refused, false);
    ASSERT_TRUE(first.has_value() && second.has_value());
    EXPECT_GE(*first, milliseconds(2000));
    EXPECT_LE(*first, milliseconds(3000));
    EXPECT_GE(*second, milliseconds(2000));
    EXPECT_FALSE(attempts.Next(refused, false).has_value()) << "three attempts";
    first_waits.insert(*first);
  }
  EXPECT_GT(first_waits.size(), 10u) << "clients that are refused together come back apart";
  EXPECT_FALSE(Attempts(6, Clock::Real().Now() + milliseconds(1000)).Next(refused, false));
  for (const char* never : {"-1", "soon", ""}) {
    ask(never);
    EXPECT_FALSE(Attempts(6, later).Next(refused, false).has_value()) << never;
  }
}

TEST_F(FaultyServer, ADestroyedClientDoesNotWaitForAStalledServer) {
  server_->faults().stall = true;
  auto client =
      Client::Connect({.address = server_->address(), .timeout = milliseconds(3'600'000)});
  auto put = client->Put("s", prompt_.Puts());
  client.reset();
  EXPECT_THAT(OutcomesOf(put.get()), testing::Each(PageOutcome::kUnavailable));
}

TEST_F(FaultyServer, BytesThatChangedOnTheWayAreCorrupt) {
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  server_->faults().flip_a_bit = true;
  server_->faults().streams = 0;
  Fetch fetch(SmallSpec(), prompt_.keys);
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()),
              testing::Each(PageOutcome::kCorrupt));
  EXPECT_EQ(server_->faults().streams, 2) << "they are asked for once more";
}

// The server leaves it to us to check what lies in its memory, until we find something.
TEST_F(FaultyServer, APageThatIsDamagedIsAskedForAgainAndCheckedByTheServer) {
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  server_->faults().bad_memory = true;
  Fetch fetch(prompt_);
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()), testing::Each(PageOutcome::kHit));
  EXPECT_EQ(fetch.buffers, prompt_.pages);
}

// Nothing is wrong with the server: the pages after it take no attempt, and no wait.
TEST_F(FaultyServer, APageThatDoesNotFitItsBufferCostsAStreamAndNoAttempt) {
  const auto client =
      Client::Connect({.address = server_->address(), .attempts = 1, .direct_connections = 0});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"}).ok());
  ASSERT_THAT(OutcomesOf(client->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  server_->faults().streams = 0;
  Fetch fetch(prompt_);
  for (const size_t page : {1, 3, 5}) {
    fetch.gets[page].out = fetch.gets[page].out.first(fetch.buffers[page].size() / 2);
  }
  const auto results = client->Get("s", 0, fetch.gets).get();
  for (size_t page = 0; page < results.size(); ++page) {
    EXPECT_EQ(results[page].outcome,
              page % 2 == 1 ? PageOutcome::kNotCompatible : PageOutcome::kHit)
        << results[page].message;
  }
  EXPECT_EQ(server_->faults().streams, 3);
}

TEST_F(FaultyServer, AServerThatBreaksTheProtocolIsNotBelievedNorTriedAgain) {
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  server_->faults().shift_chunks = true;
  server_->faults().streams = 0;
  Fetch fetch(SmallSpec(), prompt_.keys);
  const auto results = client_->Get("s", 0, fetch.gets).get();
  EXPECT_THAT(OutcomesOf(results), testing::Each(PageOutcome::kUnavailable));
  EXPECT_THAT(results[0].message, testing::HasSubstr("offset 1"));
  EXPECT_EQ(server_->faults().streams, 1);
}

TEST_F(FaultyServer, AListOfMoreTokensThanThereAreIsNotBelieved) {
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  server_->faults().lie_about_kept = true;
  Fetch fetch(SmallSpec(), prompt_.keys);
  const auto results = client_->Get("s", 0, fetch.gets).get();
  EXPECT_THAT(OutcomesOf(results), testing::Each(PageOutcome::kUnavailable));
  EXPECT_THAT(results[0].message, testing::HasSubstr("more tokens than the page has"));
}

TEST_F(FaultyServer, StreamedAnswersComeInOrder) {
  std::vector<size_t> sizes;
  const absl::Status status = client_->CallStreaming(
      "/kvstow.v1.Admin/Verify", "", [&](absl::string_view m) { sizes.push_back(m.size()); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sizes.size(), 3u);
  EXPECT_TRUE(client_->Call("/kvstow.v1.Admin/Status", "").ok());
  EXPECT_EQ(client_->Call("/kvstow.v1.Admin/Nothing", "").status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(FaultyServer, CallbacksMayCallTheClientAgain) {
  std::promise<uint32_t> found;
  client_->PutAsync("s", prompt_.Puts(), [&](std::vector<PutResult>) {
    found.set_value(client_->Lookup("s", prompt_.keys).pages);
  });
  EXPECT_EQ(found.get_future().get(), 6u);
}

}  // namespace
}  // namespace kvstow
