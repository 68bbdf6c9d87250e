// Local sessions as a worker sees them that speaks the protocol by hand, well or badly.
#include "service/transports/local_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/shared_memory.h"
#include "kernels/codec/presets.h"
#include "kernels/recipe/recipe.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/local_socket.h"
#include "tests/service/bare_server.h"
#include "tests/service/server_fixture.h"
#include "tests/service/transports/local_worker.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSessionBytes = 4 << 20;

class LocalSessionsTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.local_socket = (folder_ / "local").string();
    config_.local_bytes = 2 * kSessionBytes;
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  }
  std::string Token() {
    v1::OpenLocalResponse out;
    const grpc::Status status =
        client_->kv().OpenLocal(client_->Context().get(), v1::OpenLocalRequest(), &out);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(out.socket(), config_.local_socket);
    EXPECT_EQ(out.token().size(), 16u);
    return out.token();
  }
  LocalSocket Connect() { return *LocalSocket::Connect(config_.local_socket); }
  std::unique_ptr<Worker> NewWorker(const std::string& token, uint64_t bytes = kSessionBytes) {
    LocalSocket socket = Connect();
    v1::LocalRequest hello;
    hello.mutable_hello()->set_token(token);
    hello.mutable_hello()->set_bytes(bytes);
    if (!socket.Send(hello).ok()) return nullptr;  // hung up on already
    v1::LocalReply welcome;
    int descriptor = -1;
    if (!socket.Receive(welcome, kSoon, &descriptor).ok()) return nullptr;
    auto memory = SharedMemory::Map(descriptor);
    EXPECT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(memory->bytes().size(), welcome.welcome().bytes());
    return std::make_unique<Worker>(Worker{std::move(socket), *std::move(memory)});
  }
  std::unique_ptr<Worker> NewWorker() { return NewWorker(Token()); }
  PageIn Page(const std::string& key, uint32_t seed, uint32_t tokens = 64) {
    return {.key = key, .raw = RandomPage(SmallSpec(), tokens, seed), .tokens = tokens};
  }
  static void Fill(std::span<uint8_t> slot, const std::string& raw) {
    std::ranges::copy(AsBytes(raw), slot.begin());
  }
  void ExpectNoSessions() {
    EXPECT_TRUE(Eventually([&] { return Metric("kvstow_local_bytes") == 0; }));
    EXPECT_EQ(Metric("kvstow_local_sessions"), 0);
  }
};

TEST_F(LocalSessionsTest, PagesGoInAndOutOfSlots) {
  const auto worker = NewWorker();
  const PageIn page = Page("k", 1);
  const v1::LocalSlot from = worker->Allocate(page.raw.size());
  const v1::LocalSlot to = worker->Allocate(page.raw.size());
  Fill(worker->Bytes(from), page.raw);
  const v1::LocalReply put = worker->Call(PutOf(from, page));
  EXPECT_EQ(put.put().page(), 3u);
  EXPECT_EQ(put.put().status(), v1::STORED) << put.put().message();
  // What is stored is a copy.
  std::ranges::fill(worker->Bytes(from), 0);
  const v1::LocalReply got = worker->Call(GetOf(to, "k"));
  EXPECT_EQ(got.got().page(), 5u);
  EXPECT_EQ(got.got().reply().status(), v1::HIT) << got.got().reply().message();
  EXPECT_EQ(got.got().reply().payload_bytes(), page.raw.size());
  EXPECT_TRUE(got.got().reply().exact());
  EXPECT_EQ(AsString(worker->Bytes(to)), page.raw);
  // The same as over a stream.
  EXPECT_EQ(client_->Get("s", {Ask("k")}).pages[0].data, page.raw);
  EXPECT_EQ(Metric("kvstow_local_pages_total{method=\"get\"}"), 1);
  EXPECT_EQ(Metric("kvstow_local_pages_total{method=\"put\"}"), 1);
}

// The digest is of the slot's bytes, then of the list of kept tokens.
TEST_F(LocalSessionsTest, EveryAnswerHasItsKeyAndADigest) {
  const auto worker = NewWorker();
  const PageIn page = Page("k", 1);
  const v1::LocalSlot slot = worker->Allocate(page.raw.size());
  const std::string sparse = "key_diversity|budget(keep=0.25)|affine(bits=8,group=64)";
  for (const auto& [space, recipe] :
       {std::pair{"s", "raw"}, std::pair{"lossy", "int8"}, std::pair{"sparse", sparse.c_str()}}) {
    SCOPED_TRACE(space);
    const bool drops = recipe == sparse;
    const auto fidelity = drops ? v1::SPARSE : v1::FIDELITY_UNSPECIFIED;
    ASSERT_TRUE(client_->OpenSpace(space, recipe, nullptr, fidelity).ok());
    ASSERT_EQ(client_->Put(space, {page}).pages[0].status(), v1::STORED);
    v1::LocalRequest whole = GetOf(slot, "k");
    NameSpace(space, *whole.mutable_get());
    v1::LocalRequest layers = whole, tokens = whole, none = whole;
    layers.mutable_get()->mutable_pages(0)->mutable_page()->set_layer_count(2);
    tokens.mutable_get()->mutable_pages(0)->mutable_page()->set_first_token(5);
    none.mutable_get()->mutable_pages(0)->mutable_page()->set_key("none");
    for (const v1::LocalRequest& request : {whole, layers, tokens}) {
      const PageOut got = worker->Get(slot, request);
      EXPECT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
      EXPECT_EQ(got.reply.kept().bytes() > 0, drops);
    }
    EXPECT_EQ(worker->Get(slot, none).reply.status(), v1::MISS);
  }
  v1::LocalRequest nowhere = GetOf(slot, "k");
  NameSpace("nowhere", *nowhere.mutable_get());
  EXPECT_EQ(worker->Get(slot, nowhere).reply.status(), v1::NOT_COMPATIBLE);
}

TEST_F(LocalSessionsTest, WhatIsWrongWithAPageIsItsAnswer) {
  const auto worker = NewWorker();
  const PageIn page = Page("k", 1);
  const v1::LocalSlot slot = worker->Allocate(page.raw.size());
  const v1::LocalSlot small = worker->Allocate(4096);
  Fill(worker->Bytes(slot), page.raw);
  EXPECT_EQ(worker->Call(GetOf(slot, "none")).got().reply().status(), v1::MISS);
  ASSERT_EQ(worker->Call(PutOf(slot, page)).put().status(), v1::STORED);
  const v1::LocalReply tight = worker->Call(GetOf(small, "k"));
  EXPECT_EQ(tight.got().reply().status(), v1::NOT_COMPATIBLE);
  EXPECT_THAT(tight.got().reply().message(), HasSubstr("the buffer 4096"));

  const auto refused = [&](auto change, const char* why) {
    v1::LocalRequest request = PutOf(slot, page);
    change(*request.mutable_put()->mutable_pages(0));
    const v1::PutResult result = worker->Call(request).put();
    EXPECT_EQ(result.status(), v1::REFUSED) << why;
    EXPECT_THAT(result.message(), HasSubstr(why));
  };
  refused([](v1::LocalPutPage& p) { p.mutable_page()->set_tokens(63); }, "payload_bytes");
  refused([](v1::LocalPutPage& p) { p.mutable_from()->set_bytes(5); }, "payload_bytes");
  refused([](v1::LocalPutPage& p) { p.mutable_from()->set_offset(4096); }, "are not in slot");
  refused([](v1::LocalPutPage& p) { p.mutable_page()->set_key(""); }, "key");
  refused([](v1::LocalPutPage& p) { p.mutable_page()->add_columns()->set_name("attn_sum"); },
          "stream");
  refused([](v1::LocalPutPage& p) { p.mutable_from()->mutable_slot()->set_index(99); },
          "never lent");
  v1::LocalRequest nowhere = GetOf(slot, "k");
  NameSpace("nowhere", *nowhere.mutable_get());
  EXPECT_THAT(worker->Call(nowhere).got().reply().message(), HasSubstr("nowhere"));

  v1::LocalRequest other_get = GetOf(slot, "k"), other_put = PutOf(slot, page);
  other_get.mutable_get()->set_fingerprint(std::string(16, 'x'));
  other_put.mutable_put()->set_fingerprint(std::string(16, 'x'));
  EXPECT_EQ(worker->Call(other_get).got().reply().status(), v1::NOT_COMPATIBLE);
  EXPECT_EQ(worker->Call(other_put).put().status(), v1::NOT_COMPATIBLE);

  // Threads of the session share its messages: one may answer the get before another frees the
  // slot.
  worker->Free(slot.slot());
  v1::LocalReply freed;
  EXPECT_TRUE(Eventually([&] {
    freed = worker->Call(GetOf(slot, "k"));
    return freed.got().reply().status() == v1::NOT_COMPATIBLE;
  }));
  EXPECT_THAT(freed.got().reply().message(), HasSubstr("was freed"));
}

TEST_F(LocalSessionsTest, ATokenOpensOneSession) {
  const std::string token = Token();
  const auto first = NewWorker(token);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(NewWorker(token), nullptr);
  EXPECT_EQ(NewWorker(std::string(16, 'x')), nullptr);
  EXPECT_EQ(NewWorker(""), nullptr);
  EXPECT_EQ(Metric("kvstow_local_sessions"), 1);
}

TEST_F(LocalSessionsTest, AllSessionsShareOneBudget) {
  auto first = NewWorker(Token(), kSessionBytes);
  auto second = NewWorker(Token(), std::numeric_limits<uint64_t>::max());
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->memory.bytes().size(), kSessionBytes) << "what was left";
  EXPECT_EQ(NewWorker(Token(), 1), nullptr);
  first.reset();
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_local_bytes") == kSessionBytes; }));
  EXPECT_NE(NewWorker(Token(), 1), nullptr);
}

TEST_F(LocalSessionsTest, AWorkerThatDiesLeavesNothing) {
  for (int i = 0; i < 20; ++i) {
    // Those before may still be ending: there is memory for all.
    const auto worker = NewWorker(Token(), 64 * kSharedPageBytes);
    ASSERT_NE(worker, nullptr) << i;
    const PageIn page = Page("k" + std::to_string(i), i);
    const v1::LocalSlot slot = worker->Allocate(page.raw.size());
    Fill(worker->Bytes(slot), page.raw);
    // It is gone before the answer.
    ASSERT_TRUE(worker->socket.Send(PutOf(slot, page)).ok());
  }
  ExpectNoSessions();
}

TEST_F(LocalSessionsTest, MalformedMessagesEndTheirSessionAlone) {
  const auto good = NewWorker();
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const auto bad = NewWorker(Token(), kSharedPageBytes);
    ASSERT_NE(bad, nullptr) << i;
    // Hellos again, requests without pages, too many pages, long keys, answers: what parses, but
    // not here.
    v1::LocalRequest request;
    switch (random() % 5) {
      case 0:
        request.mutable_hello()->set_token("again");
        break;
      case 1:
        NameSpace("s", *request.mutable_get());
        break;
      case 2:
        for (size_t p = 0; p <= kMaxLocalPages; ++p) request.mutable_put()->add_pages();
        break;
      case 3:
        request = GetOf(v1::LocalSlot(), std::string(65, 'k'));
        break;
      default:
        request.mutable_free()->mutable_slot()->set_index(static_cast<uint32_t>(random()));
    }
    ASSERT_TRUE(bad->socket.Send(request).ok());
    v1::LocalReply reply;
    EXPECT_TRUE(absl::IsUnavailable(bad->socket.Receive(reply, kSoon))) << "it hangs up";
  }
  EXPECT_EQ(good->Call(GetOf(good->Allocate(4096), "none")).got().reply().status(), v1::MISS);
}

TEST_F(LocalSessionsTest, ConnectionsThatNeverBeginAreClosed) {
  std::vector<LocalSocket> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect());
  // Those beyond the most there may be are hung up on at once.
  v1::LocalReply reply;
  EXPECT_TRUE(absl::IsUnavailable(silent.back().Receive(reply, kSoon)));
  silent.clear();
  EXPECT_TRUE(Eventually([&] { return NewWorker() != nullptr; }));
}

// It asks for more than its socket has room to answer, and reads only then.
TEST_F(LocalSessionsTest, AWorkerThatPausesGetsAllItsAnswers) {
  const auto worker = NewWorker();
  v1::LocalRequest request = GetOf(worker->Allocate(4096), "none");
  const v1::LocalReply answer = worker->Call(request);
  const auto [full, other] = *LocalSocket::Pair();
  int room = 0;
  while (full.Send(answer).ok()) ++room;
  while (request.get().pages_size() < 64) {
    *request.mutable_get()->add_pages() = request.get().pages(0);
  }
  const int messages = room / 64 + 2;
  for (int i = 0; i < messages; ++i) ASSERT_TRUE(worker->socket.Send(request).ok());
  EXPECT_TRUE(
      Eventually([&] { return Metric("kvstow_local_pages_total{method=\"get\"}") > 1 + room; }));
  for (int i = 0; i < messages * 64; ++i) {
    v1::LocalReply reply;
    ASSERT_TRUE(worker->socket.Receive(reply, kSoon).ok()) << "answer " << i << " of " << room;
    EXPECT_EQ(reply.got().reply().status(), v1::MISS);
  }
}

TEST(LocalSessionsAloneTest, AWorkerThatDoesNotReadIsHungUpOn) {
  BareServer bare;
  const std::string path = ::testing::TempDir() + "kvstow-unread-" + std::to_string(getpid());
  const auto sessions = LocalSessions::Start(
      {.socket = path, .bytes = kSessionBytes, .patience = std::chrono::milliseconds(10)},
      bare.Local());
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  const auto socket = LocalSocket::Connect(path);
  ASSERT_TRUE(socket.ok()) << socket.status();
  v1::LocalRequest request;
  request.mutable_hello()->set_token((*sessions)->NewToken(std::make_shared<const Caller>()));
  request.mutable_hello()->set_bytes(kSessionBytes);
  ASSERT_TRUE(socket->Send(request).ok());
  ASSERT_TRUE(Eventually([&] { return (*sessions)->bytes() > 0; }));
  request.mutable_allocate()->set_bytes(1);
  // Its requests fill the socket as well, until some are taken.
  EXPECT_TRUE(Eventually([&] {
    for (int i = 0; i < 1000; ++i) (void)socket->Send(request);
    return (*sessions)->bytes() == 0;
  }));
  EXPECT_EQ((*sessions)->sessions(), 0u);
}

// The memory is the worker's to write to at any time. What it does to a page that is being coded is
// its own loss: nothing else is.
TEST_F(LocalSessionsTest, WritingToAPageWhileItIsPutHarmsNobody) {
  const auto worker = NewWorker();
  PageIn page = Page("k", 1);
  const v1::LocalSlot slot = worker->Allocate(page.raw.size());
  const v1::LocalSlot to = worker->Allocate(page.raw.size());
  Fill(worker->Bytes(slot), page.raw);
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    std::mt19937 random(2);
    volatile uint8_t* const bytes = worker->Bytes(slot).data();
    while (!stop) bytes[random() % page.raw.size()] = static_cast<uint8_t>(random());
  });
  int spaces = 0;
  for (const Preset& preset : CodecPresets()) {
    const std::string space = absl::StrCat("x", preset.name);
    if (!client_->OpenSpace(space, std::string(preset.name)).ok()) continue;  // needs a calibration
    ++spaces;
    for (int i = 0; i < 3; ++i) {
      page.key = "k" + std::to_string(i);
      v1::LocalRequest put = PutOf(slot, page), get = GetOf(to, page.key);
      NameSpace(space, *put.mutable_put());
      NameSpace(space, *get.mutable_get());
      const v1::PageStatus status = worker->Call(put).put().status();
      EXPECT_TRUE(status == v1::STORED || status == v1::REFUSED)
          << preset.name << ": " << v1::PageStatus_Name(status);
      const v1::PageStatus read = worker->Call(get).got().reply().status();
      EXPECT_TRUE(read == v1::HIT || read == v1::CORRUPT || read == v1::MISS)
          << preset.name << ": " << v1::PageStatus_Name(read);
    }
  }
  stop = true;
  scribbler.join();
  EXPECT_GT(spaces, 20);
}

TEST_F(LocalSessionsTest, TheServerStopsWithSessionsOpen) {
  const auto worker = NewWorker();
  StopServer();
  v1::LocalReply reply;
  EXPECT_TRUE(absl::IsUnavailable(worker->socket.Receive(reply, kSoon)));
  EXPECT_NE(access(config_.local_socket.c_str(), F_OK), 0) << "the socket is gone";
}

TEST_F(LocalSessionsTest, ASocketThatASecondServerWantsIsRefusedByName) {
  Config second = config_;
  second.listen = "127.0.0.1:0";
  second.http_listen = "off";
  const auto server = Server::Start(second, options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(server.status())) << server.status();
  EXPECT_THAT(server.status().message(), HasSubstr(config_.local_socket));
}

TEST_F(ServerTest, WithoutALocalSocketThereAreNoLocalSessions) {
  StartServer();
  v1::OpenLocalResponse out;
  EXPECT_EQ(client_->kv().OpenLocal(client_->Context().get(), {}, &out).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace kvstow::testing
