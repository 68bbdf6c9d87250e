// Pages that only the remote tier has, over every transport: while it is slow, they hold nothing
// that a page that is here needs.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "tests/service/remote/remote_node.h"

namespace kvstow::testing {
namespace {

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

class FarPagesTest : public ServerTest {
 protected:
  ~FarPagesTest() override {
    remote_.Release();  // what waits for it goes first
    StopServer();
  }
  void SetUp() override {
    {
      Node sender(remote_);
      sender.Open("raw");
      sender.PutAll();
    }
    // Memory for one page at a time.
    config_.get_bytes = 2 * PageBytes(SmallSpec(), SmallSpec().page_tokens);
    options_.open_remote = [this] {
      return std::make_unique<SharedRemote>(remote_, &record_reads_);
    };
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
    ASSERT_EQ(client_->Put("s", {near_}).pages.at(0).status(), v1::STORED);
    // From now on a page takes a record and its segments, and nothing that has less time.
    ASSERT_TRUE(Eventually([&] {
      return client_->Get("s", {Ask(Node::KeyOf(kPages - 1))}).pages.at(0).reply.status() ==
             v1::HIT;
    }));
  }
  // The remote store keeps its answers back. Returns when it is asked for a page.
  void HoldWhile(const std::function<void()>& ask) {
    const int before = record_reads_;
    remote_.Hold();
    ask();
    ASSERT_TRUE(Eventually([&] { return record_reads_ > before; }));
  }
  DirectSocket Connect() {
    v1::OpenDirectResponse direct;
    EXPECT_TRUE(client_->kv().OpenDirect(client_->Context().get(), {}, &direct).ok());
    return *DirectSocket::Connect("127.0.0.1", static_cast<int>(direct.port()), Soon());
  }
  static void Send(const DirectSocket& socket, const std::string& key) {
    v1::DirectRequest request;
    NameSpace("s", *request.mutable_get());
    request.mutable_get()->set_payload(v1::RAW);
    *request.mutable_get()->add_pages() = Ask(key);
    EXPECT_TRUE(socket.Send(request, {}, 0, Soon()).ok());
  }
  static PageOut Receive(const DirectSocket& socket) {
    v1::DirectReply reply;
    PageOut out;
    uint64_t bytes = 0;
    EXPECT_TRUE(socket.ReceiveFrame(reply, bytes, Soon()).ok());
    out.data.resize(bytes);
    EXPECT_TRUE(socket.Receive({reinterpret_cast<uint8_t*>(out.data.data()), bytes}, Soon()).ok());
    out.reply = reply.got();
    return out;
  }

  const PageIn near_{.key = "near", .raw = RandomPage(SmallSpec(), 64, 99), .tokens = 64};
  MemoryRemoteStore remote_;
  std::atomic<int> record_reads_ = 0;
};

void ExpectFar(const PageOut& page, int i) {
  EXPECT_EQ(page.reply.status(), v1::HIT) << page.reply.message();
  EXPECT_EQ(page.reply.tier(), "remote");
  EXPECT_TRUE(page.data == Node::PageAt(i).raw);
}

TEST_F(FarPagesTest, OnAStreamTheyHoldNothingWhileTheyWait) {
  std::future<PageOut> far;
  HoldWhile([&] {
    far = std::async(std::launch::async,
                     [&] { return client_->Get("s", {Ask(Node::KeyOf(0))}).pages.at(0); });
  });
  EXPECT_EQ(Metric("kvstow_get_bytes"), 0);
  EXPECT_TRUE(client_->Get("s", {Ask("near")}).pages.at(0).data == near_.raw);
  EXPECT_EQ(far.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  remote_.Release();
  ExpectFar(far.get(), 0);
}

TEST_F(FarPagesTest, OnADirectConnectionTheyHoldNothingWhileTheyWait) {
  const DirectSocket far = Connect(), near = Connect();
  HoldWhile([&] { Send(far, Node::KeyOf(0)); });
  Send(near, "near");
  EXPECT_TRUE(Receive(near).data == near_.raw);
  EXPECT_TRUE(far.Quiet());
  remote_.Release();
  ExpectFar(Receive(far), 0);
}

TEST_F(FarPagesTest, ComeInTheOrderInWhichTheyWereAskedFor) {
  const auto got = client_->Get(
      "s", {Ask(Node::KeyOf(0), 1), Ask("near", 2), Ask("nowhere", 3), Ask(Node::KeyOf(1), 4),
            Ask("nowhere", 5), Ask(Node::KeyOf(0), 6), Ask("near", 7)});
  ASSERT_EQ(got.pages.size(), 7u) << got.status.error_message();
  ExpectFar(got.pages[0], 0);
  ExpectFar(got.pages[3], 1);
  EXPECT_TRUE(got.pages[1].data == near_.raw);
  EXPECT_TRUE(got.pages[6].data == near_.raw);
  EXPECT_EQ(got.pages[2].reply.status(), v1::MISS);
  EXPECT_EQ(got.pages[4].reply.status(), v1::MISS);
  EXPECT_TRUE(got.pages[5].data == Node::PageAt(0).raw);
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_get_bytes") == 0; }));
}

}  // namespace
}  // namespace kvstow::testing
