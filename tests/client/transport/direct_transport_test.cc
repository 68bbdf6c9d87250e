// Direct connections to a peer that the test plays, well or badly, beside a gRPC server that is
// honest: whatever the peer does, pages are right or missing, and calls end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "client/client.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "tests/client/fake_server.h"

namespace kvstow {
namespace {

using std::chrono::milliseconds;
using testing::Each;

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

class DirectCallTest : public testing::Test {
 protected:
  // The peer's answer to a request whose payload has been taken; false: it hangs up.
  using Peer = std::function<bool(const DirectSocket&, const v1::DirectRequest&)>;

  ~DirectCallTest() override {
    client_.reset();
    listening_.HangUp();
    if (accepting_.joinable()) accepting_.join();
  }

  void Connect(Peer peer, milliseconds timeout = milliseconds(20'000)) {
    peer_ = std::move(peer);
    accepting_ = std::thread([this] {
      std::vector<std::thread> serving;
      for (;;) {
        auto socket = listening_.Accept();
        if (!socket.ok()) break;
        ++accepted_;
        serving.emplace_back(
            [this, s = std::make_shared<DirectSocket>(*std::move(socket))] { Serve(*s); });
      }
      for (std::thread& thread : serving) thread.join();
    });
    server_->faults().direct_port = listening_.port();
    client_ = Client::Connect({.address = server_->address(), .timeout = timeout});
    // OpenSpace waits for a connection, but only for a moment: on a busy machine that is not
    // enough.
    int after = 0;
    for (int i = 0; i < 400 && after < 5; ++i) {
      ASSERT_TRUE(client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"}).ok());
      after += accepted_ > 0 ? 1 : 0;
    }
    ASSERT_GT(accepted_, 0) << "the client opens no direct connection";
  }
  void Serve(const DirectSocket& socket) {
    v1::DirectRequest request;
    uint64_t bytes = 0;
    while (socket.ReceiveFrame(request, bytes, Soon()).ok() && socket.Skip(bytes, Soon()).ok()) {
      ++requests_;
      if (!peer_(socket, request)) break;
    }
    socket.HangUp();
  }
  // The page of the prompt with this key.
  std::vector<uint8_t> PageOf(const std::string& key) const {
    for (size_t i = 0; i < prompt_.keys.size(); ++i) {
      if (prompt_.keys[i] == key) return prompt_.pages[i];
    }
    return {};
  }
  // The answer to a get, with bytes that `damage` may change.
  bool AnswerGet(const DirectSocket& socket, const v1::DirectRequest& request,
                 const std::function<void(v1::PageReply&, std::vector<uint8_t>&)>& damage) const {
    for (const v1::GetPage& page : request.get().pages()) {
      std::vector<uint8_t> bytes = PageOf(page.key());
      v1::DirectReply reply;
      v1::PageReply& got = *reply.mutable_got();
      got.set_key(page.key());
      got.set_status(v1::HIT);
      got.set_tokens(64);
      got.set_payload_bytes(bytes.size());
      got.set_exact(true);
      got.set_raw_digest(std::string(AsString(Xxh3_128(bytes).bytes)));
      damage(got, bytes);
      const SharedBytes payload[] = {SharedBytes::Take(std::move(bytes))};
      if (!socket.Send(reply, payload, 0, Soon()).ok()) return false;
    }
    return true;
  }
  // Over a stream.
  void PutAll() {
    const auto other = Client::Connect({.address = server_->address(), .direct_connections = 0});
    ASSERT_THAT(OutcomesOf(other->Put("s", prompt_.Puts()).get()), Each(PageOutcome::kStored));
    server_->faults().streams = 0;
  }
  void ExpectRightPages() {
    Fetch fetch(prompt_);
    EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kHit));
    EXPECT_EQ(fetch.buffers, prompt_.pages);
  }

  const Prompt prompt_{SmallSpec(), 64 * 4, 1};
  const std::unique_ptr<FakeServer> server_ = StartFakeServer("127.0.0.1:0");
  const DirectSocket listening_ = *DirectSocket::Listen("127.0.0.1", 0);
  std::unique_ptr<Client> client_;
  std::atomic<int> requests_ = 0, accepted_ = 0;

 private:
  Peer peer_;
  std::thread accepting_;
};

TEST_F(DirectCallTest, AnHonestPeerNeedsNoStream) {
  Connect([this](const auto& socket, const auto& request) {
    EXPECT_TRUE(request.get().checked());
    return AnswerGet(socket, request, [](auto&, auto&) {});
  });
  for (int call = 0; call < 3; ++call) ExpectRightPages();
  EXPECT_EQ(server_->faults().streams, 0);
  EXPECT_EQ(requests_, 3);
}

TEST_F(DirectCallTest, ADamagedPageIsAskedForOverAStream) {
  Connect([this](const auto& socket, const auto& request) {
    return AnswerGet(socket, request, [](auto&, auto& bytes) { bytes[bytes.size() / 2] ^= 1; });
  });
  PutAll();
  ExpectRightPages();
  EXPECT_EQ(server_->faults().streams, 1);
  EXPECT_EQ(requests_, 1);
}

TEST_F(DirectCallTest, APeerThatLiesIsLeft) {
  const std::vector<std::function<void(v1::PageReply&, std::vector<uint8_t>&)>> lies = {
      [](auto& got, auto&) { got.set_payload_bytes(got.payload_bytes() + 1); },
      [](auto& got, auto& bytes) { bytes.pop_back(), got.set_payload_bytes(bytes.size() + 1); },
      [](auto& got, auto&) { got.mutable_kept()->set_bytes(got.payload_bytes() + 1); }};
  std::atomic<size_t> lie = 0;
  Connect([&](const auto& socket, const auto& request) {
    return AnswerGet(socket, request, lies[lie]);
  });
  PutAll();
  for (lie = 0; lie < lies.size(); ++lie) {
    SCOPED_TRACE(lie);
    ExpectRightPages();
    ExpectRightPages();  // without a connection, or over the next one
  }
}

TEST_F(DirectCallTest, APeerThatHangsUpHalfWayIsLeft) {
  Connect([](const auto& socket, const auto& request) {
    v1::DirectReply reply;
    reply.mutable_got()->set_key(request.get().pages(0).key());
    reply.mutable_got()->set_status(v1::HIT);
    reply.mutable_got()->set_tokens(64);
    reply.mutable_got()->set_payload_bytes(1000);
    (void)socket.Send(reply, {}, 1000, Soon());
    (void)socket.SendBytes(std::vector<uint8_t>(10), Soon());
    return false;
  });
  PutAll();
  ExpectRightPages();
}

TEST_F(DirectCallTest, WhatIsRefusedGoesOverAStreamAndTheConnectionStays) {
  Connect([](const auto& socket, const auto&) {
    v1::DirectReply reply;
    reply.mutable_refused()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
    return socket.Send(reply, {}, 0, Soon()).ok();
  });
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()), Each(PageOutcome::kStored));
  ExpectRightPages();
  EXPECT_EQ(server_->faults().streams, 2);
  EXPECT_GE(requests_, 2);
}

TEST_F(DirectCallTest, LookupsGoThereAndElsewhereWhenTheyAreRefusedOrNotUnderstood) {
  std::atomic<int> way = 0;
  Connect([&](const auto& socket, const v1::DirectRequest& request) {
    v1::LookupRequest asked;
    EXPECT_TRUE(asked.ParseFromString(request.lookup()));
    EXPECT_EQ(asked.keys_size(), 4);
    v1::LookupResponse found;
    found.set_pages(3);
    v1::DirectReply reply;
    if (way == 0) reply.set_looked_up(found.SerializeAsString());
    if (way == 1) reply.mutable_refused()->set_message("no");
    if (way == 2) reply.set_looked_up("\xff\xff");
    return socket.Send(reply, {}, 0, Soon()).ok();
  });
  PutAll();
  EXPECT_EQ(client_->Lookup("s", prompt_.keys).pages, 3u);
  for (way = 1; way < 3; ++way) EXPECT_EQ(client_->Lookup("s", prompt_.keys).pages, 4u) << way;
  EXPECT_EQ(requests_, 3);
}

TEST_F(DirectCallTest, AnswersToPutsAreTheirs) {
  Connect([](const auto& socket, const v1::DirectRequest& request) {
    EXPECT_TRUE(request.put().page().digest().empty()) << "it is behind the page";
    v1::DirectReply reply;
    reply.mutable_put()->set_status(v1::CONFLICT);
    return socket.Send(reply, {}, 0, Soon()).ok();
  });
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()), Each(PageOutcome::kConflict));
  EXPECT_EQ(server_->faults().streams, 0);
}

TEST_F(DirectCallTest, ACallEndsAtItsDeadline) {
  std::atomic<bool> stop = false;
  Connect(
      [&](const auto& socket, const auto&) {
        while (!stop && socket.Quiet()) std::this_thread::yield();
        return false;
      },
      milliseconds(300));
  Fetch fetch(prompt_);
  const Time start = Clock::Real().Now();
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kUnavailable));
  EXPECT_LT(Clock::Real().Now() - start, std::chrono::seconds(10));
  stop = true;
}

TEST_F(DirectCallTest, AClientThatGoesEndsWhatWaits) {
  Connect([](const auto& socket, const auto&) {
    while (socket.Quiet()) std::this_thread::yield();
    return false;
  });
  Fetch fetch(prompt_);
  auto results = client_->Get("s", 0, fetch.gets);
  client_.reset();
  EXPECT_THAT(OutcomesOf(results.get()), Each(PageOutcome::kUnavailable));
}

}  // namespace
}  // namespace kvstow
