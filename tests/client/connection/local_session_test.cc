// A local session against a server that is played by the test: honest, stuck, or wrong.
#include "client/connection/local_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/page_buffer.h"
#include "kernels/device/host_sharing.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;

constexpr Duration kLong = std::chrono::seconds(20);
constexpr size_t kBytes = 64 * kSharedPageBytes;
constexpr char kFingerprint[] = "sixteen bytes...";

// The server's end of one session.
class FakeServer {
 public:
  FakeServer()
      : path_(::testing::TempDir() + "kvstow-local-" + std::to_string(getpid()) + "-" +
              std::to_string(count_++)),
        listening_(*LocalSocket::Listen(path_)) {}
  ~FakeServer() { unlink(path_.c_str()); }

  // The session that is opened with it.
  std::unique_ptr<LocalSession> Open(Duration timeout = kLong) {
    auto opened = std::async(std::launch::async, [&] {
      return LocalSession::Open({path_, "a token", kBytes, timeout});
    });
    socket_.emplace(*listening_.Accept());
    const v1::LocalRequest hello = Next();
    EXPECT_EQ(hello.hello().token(), "a token");
    EXPECT_EQ(hello.hello().bytes(), kBytes);
    v1::LocalReply welcome;
    welcome.mutable_welcome()->set_bytes(kBytes);
    EXPECT_TRUE(socket_->Send(welcome, memory_.descriptor()).ok());
    auto session = opened.get();
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  v1::LocalRequest Next() {
    v1::LocalRequest request;
    const absl::Status came = socket_->Receive(request, kLong);
    EXPECT_TRUE(came.ok()) << came;
    return request;
  }
  void Send(const v1::LocalReply& reply) { EXPECT_TRUE(socket_->Send(reply).ok()); }
  // A slot of the session at `offset`.
  std::span<uint8_t> Lend(LocalSession& session, uint64_t offset, uint64_t bytes) {
    auto slot = AnswerAllocate(session, offset, bytes);
    EXPECT_TRUE(slot.ok()) << slot.status();
    return slot.value_or(std::span<uint8_t>());
  }
  absl::StatusOr<std::span<uint8_t>> AnswerAllocate(LocalSession& session, uint64_t offset,
                                                    uint64_t bytes) {
    auto slot = std::async(std::launch::async, [&] { return session.Allocate(bytes); });
    const v1::LocalRequest request = Next();
    EXPECT_EQ(request.allocate().bytes(), bytes);
    v1::LocalReply reply;
    reply.mutable_slot()->set_request(request.allocate().request());
    reply.mutable_slot()->mutable_slot()->set_generation(++generation_);
    reply.mutable_slot()->set_offset(offset);
    reply.mutable_slot()->set_bytes(bytes);
    Send(reply);
    return slot.get();
  }
  LocalSocket& socket() { return *socket_; }
  std::span<uint8_t> memory() { return memory_.bytes(); }

 private:
  static inline int count_ = 0;
  const std::string path_;
  const LocalSocket listening_;
  const SharedMemory memory_ = *SharedMemory::Create(kBytes);
  std::optional<LocalSocket> socket_;
  uint32_t generation_ = 0;
};

using Answer = absl::StatusOr<v1::LocalReply>;

struct Asked {
  LocalSession::Page page;
  std::future<Answer> answer;
};
template <typename Request>
Asked Ask(std::span<const uint8_t> bytes) {
  auto promise = std::make_shared<std::promise<Answer>>();
  Asked out{.page = {.request = Request(), .bytes = bytes, .done = nullptr},
            .answer = promise->get_future()};
  out.page.done = [promise](Answer answer) { promise->set_value(std::move(answer)); };
  return out;
}
std::vector<LocalSession::Page> Only(LocalSession::Page page) {
  std::vector<LocalSession::Page> out;
  out.push_back(std::move(page));
  return out;
}
Time In(Duration d) { return Clock::Real().Now() + d; }

TEST(LocalSessionTest, AsksAndIsAnswered) {
  FakeServer server;
  const auto session = server.Open();
  const auto slot = server.Lend(*session, 0, 2 * kSharedPageBytes);
  Asked get = Ask<v1::LocalGetPage>(slot);
  session->Start("space", kFingerprint, 17, Only(std::move(get.page)), In(kLong));
  const v1::LocalRequest request = server.Next();
  EXPECT_EQ(request.get().space(), "space");
  EXPECT_EQ(request.get().fingerprint(), kFingerprint);
  EXPECT_EQ(request.get().lease(), 17u);
  ASSERT_EQ(request.get().pages_size(), 1);
  v1::LocalReply reply;
  reply.mutable_got()->set_page(request.get().pages(0).page().page());
  reply.mutable_got()->mutable_reply()->set_tier("host");
  server.Send(reply);
  const Answer answer = get.answer.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->got().reply().tier(), "host");
}

TEST(LocalSessionTest, NamesWhatCanBeTakenOutOfTheSharingAlone) {
  FakeServer server;
  const auto session = server.Open();
  const auto slot = server.Lend(*session, kSharedPageBytes, 3 * kSharedPageBytes + 100);
  const auto part = [&](size_t offset, size_t bytes) {
    return session->RangeOf(std::span<const uint8_t>(slot.data() + offset, bytes));
  };
  ASSERT_TRUE(part(0, slot.size()).has_value());
  const auto middle = part(kSharedPageBytes, kSharedPageBytes);
  ASSERT_TRUE(middle.has_value());
  EXPECT_EQ(middle->offset(), kSharedPageBytes);
  EXPECT_EQ(middle->bytes(), kSharedPageBytes);
  EXPECT_EQ(middle->slot().generation(), 1u);
  EXPECT_TRUE(part(3 * kSharedPageBytes, 100).has_value()) << "ends with the slot";
  EXPECT_FALSE(part(1, kSharedPageBytes).has_value());
  EXPECT_FALSE(part(0, kSharedPageBytes - 1).has_value());
  EXPECT_FALSE(part(0, slot.size() + 1).has_value());
  EXPECT_FALSE(part(kSharedPageBytes, 0).has_value());
  const std::vector<uint8_t> own(2 * kSharedPageBytes);
  EXPECT_FALSE(session->RangeOf(own).has_value());
  session->Free(slot);
  EXPECT_FALSE(part(0, slot.size()).has_value());
  EXPECT_EQ(server.Next().free().slot().generation(), 1u);
}

// The server took a request, and only finishes it long after the worker gave up.
TEST(LocalSessionTest, ABufferThatCameBackIsTheCallersAlone) {
  FakeServer server;
  const Duration patience = std::chrono::milliseconds(500);
  const auto session = server.Open(patience);
  const auto get_slot = server.Lend(*session, 0, kSharedPageBytes);
  const auto put_slot = server.Lend(*session, kSharedPageBytes, kSharedPageBytes);
  std::ranges::fill(put_slot, 1);
  Asked get = Ask<v1::LocalGetPage>(get_slot);
  Asked put = Ask<v1::LocalPutPage>(put_slot);
  session->Start("s", kFingerprint, 0, Only(std::move(get.page)), In(patience));
  session->Start("s", kFingerprint, 0, Only(std::move(put.page)), In(patience));
  EXPECT_TRUE(absl::IsUnavailable(get.answer.get().status()));
  EXPECT_TRUE(absl::IsUnavailable(put.answer.get().status()));
  EXPECT_FALSE(session->open());

  std::ranges::fill(get_slot, 2);
  EXPECT_EQ(put_slot[0], 1) << "the page to put is as it was";
  std::ranges::fill(put_slot, 2);
  std::ranges::fill(server.memory().first(kSharedPageBytes), 3);  // the late page
  EXPECT_TRUE(std::ranges::all_of(get_slot, [](uint8_t b) { return b == 2; }));
  EXPECT_TRUE(std::ranges::all_of(server.memory().subspan(kSharedPageBytes, kSharedPageBytes),
                                  [](uint8_t b) { return b == 1; }))
      << "the late server stores what was put, or nothing";
}

// The second part of a progressive get keeps the deadline of the first.
TEST(LocalSessionTest, TheFirstDeadlineEndsItWheneverItsRequestBegan) {
  constexpr Duration kForEver = std::chrono::hours(1);
  for (const bool another : {false, true}) {
    FakeServer server;
    const auto session = server.Open(kForEver);
    const auto slot = server.Lend(*session, 0, kSharedPageBytes);
    Asked patient = Ask<v1::LocalGetPage>(slot), get = Ask<v1::LocalGetPage>(slot);
    if (another) {
      session->Start("s", kFingerprint, 0, Only(std::move(patient.page)), In(kForEver));
    }
    session->Start("s", kFingerprint, 0, Only(std::move(get.page)),
                   In(std::chrono::milliseconds(20)));
    ASSERT_EQ(get.answer.wait_for(kLong), std::future_status::ready) << another;
    EXPECT_TRUE(absl::IsUnavailable(get.answer.get().status()));
  }
}

TEST(LocalSessionTest, NoMoreTravelAtOnceThanTheServerCanAnswer) {
  FakeServer server;
  const auto session = server.Open();
  const auto slot = server.Lend(*session, 0, kSharedPageBytes);
  std::vector<LocalSession::Page> pages;
  std::vector<std::future<Answer>> answers;
  for (int i = 0; i < 1000; ++i) {
    Asked get = Ask<v1::LocalGetPage>(slot);
    pages.push_back(std::move(get.page));
    answers.push_back(std::move(get.answer));
  }
  session->Start("s", kFingerprint, 0, std::move(pages), In(kLong));
  std::vector<uint64_t> open;
  size_t most = 0;
  for (size_t answered = 0; answered < answers.size();) {
    // Everything that is sent without an answer; the first of it is then answered.
    v1::LocalRequest request;
    while (server.socket()
               .Receive(request, std::chrono::milliseconds(open.empty() ? 20'000 : 5))
               .ok()) {
      for (const auto& page : request.get().pages()) open.push_back(page.page().page());
    }
    ASSERT_FALSE(open.empty());
    most = std::max(most, open.size());
    for (const uint64_t page : open) {
      v1::LocalReply reply;
      reply.mutable_got()->set_page(page);
      server.Send(reply);
      ++answered;
    }
    open.clear();
  }
  for (auto& answer : answers) EXPECT_TRUE(answer.get().ok());
  EXPECT_EQ(most, 128u);
}

TEST(LocalSessionTest, WrongAnswersEndIt) {
  const auto wrong = [](const char* why, auto change) {
    FakeServer server;
    const auto session = server.Open();
    const auto slot = server.Lend(*session, 0, kSharedPageBytes);
    Asked get = Ask<v1::LocalGetPage>(slot);
    session->Start("s", kFingerprint, 0, Only(std::move(get.page)), In(kLong));
    const uint64_t number = server.Next().get().pages(0).page().page();
    v1::LocalReply reply;
    change(reply, number);
    server.Send(reply);
    const Answer answer = get.answer.get();
    EXPECT_TRUE(absl::IsUnavailable(answer.status())) << why << answer.status();
    EXPECT_FALSE(session->open()) << why;
    EXPECT_FALSE(session->Allocate(1).ok()) << why;
  };
  wrong("another page", [](v1::LocalReply& r, uint64_t n) { r.mutable_got()->set_page(n + 1); });
  wrong("another key", [](v1::LocalReply& r, uint64_t n) {
    r.mutable_got()->set_page(n);
    r.mutable_got()->mutable_reply()->set_key("another");
  });
  wrong("page 0", [](v1::LocalReply& r, uint64_t) { r.mutable_got(); });
  wrong("a put's answer", [](v1::LocalReply& r, uint64_t n) { r.mutable_put()->set_page(n); });
  wrong("a welcome", [](v1::LocalReply& r, uint64_t n) { r.mutable_welcome()->set_bytes(n); });
}

TEST(LocalSessionTest, SlotsOutsideTheMemoryAreRefused) {
  FakeServer server;
  const auto session = server.Open();
  for (const uint64_t offset :
       {kBytes, kBytes - kSharedPageBytes, ~uint64_t{0} - 4095, uint64_t{1}}) {
    const auto slot = server.AnswerAllocate(*session, offset, 2 * kSharedPageBytes);
    EXPECT_TRUE(absl::IsInternal(slot.status())) << offset;
  }
}

TEST(LocalSessionTest, ASlotThatComesTooLateGoesBack) {
  FakeServer server;
  const auto session = server.Open(std::chrono::milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(session->Allocate(100).status()));
  v1::LocalReply late;
  late.mutable_slot()->set_request(server.Next().allocate().request());
  late.mutable_slot()->mutable_slot()->set_generation(9);
  late.mutable_slot()->set_bytes(100);
  server.Send(late);
  EXPECT_EQ(server.Next().free().slot().generation(), 9u);
}

TEST(LocalSessionTest, AServerThatHangsUpIsAnAnswer) {
  FakeServer server;
  const auto session = server.Open();
  const auto slot = server.Lend(*session, 0, kSharedPageBytes);
  Asked get = Ask<v1::LocalGetPage>(slot), late = Ask<v1::LocalGetPage>(slot);
  session->Start("s", kFingerprint, 0, Only(std::move(get.page)), In(kLong));
  server.socket().HangUp();
  EXPECT_TRUE(absl::IsUnavailable(get.answer.get().status()));
  session->Start("s", kFingerprint, 0, Only(std::move(late.page)), In(kLong));
  EXPECT_TRUE(absl::IsUnavailable(late.answer.get().status()));
  session->Free(slot);
}

TEST(LocalSessionTest, AServerThatDoesNotWelcomeIsAnError) {
  const std::string path = ::testing::TempDir() + "kvstow-mute-" + std::to_string(getpid());
  const auto listening = LocalSocket::Listen(path);
  ASSERT_TRUE(listening.ok()) << listening.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      LocalSession::Open({path, "t", kBytes, std::chrono::milliseconds(20)}).status()));
  unlink(path.c_str());
  EXPECT_TRUE(absl::IsUnavailable(LocalSession::Open({path, "t", kBytes, kLong}).status()));
}

// What a session becomes when a server promises `promised` bytes of the GPU and `next` follows.
absl::StatusOr<std::unique_ptr<LocalSession>> OpenWithGpu(
    std::shared_ptr<DeviceSharing> gpu, uint64_t promised,
    const std::function<void(const LocalSocket&)>& next) {
  static int count = 0;
  const std::string path = ::testing::TempDir() + "kvstow-gpu-" + std::to_string(getpid()) + "-" +
                           std::to_string(count++);
  const LocalSocket listening = *LocalSocket::Listen(path);
  auto opened = std::async(std::launch::async, [&] {
    return LocalSession::Open({path, "t", kBytes, kLong, gpu, kBytes});
  });
  const LocalSocket socket = *listening.Accept();
  v1::LocalRequest hello;
  EXPECT_TRUE(socket.Receive(hello, kLong).ok());
  EXPECT_EQ(hello.hello().gpu_bytes(), gpu == nullptr ? 0 : kBytes);
  EXPECT_EQ(hello.hello().gpu_uuid(), gpu == nullptr ? "" : gpu->uuid());
  const SharedMemory memory = *SharedMemory::Create(kBytes);
  v1::LocalReply welcome;
  welcome.mutable_welcome()->set_bytes(kBytes);
  welcome.mutable_welcome()->set_gpu_bytes(promised);
  EXPECT_TRUE(socket.Send(welcome, memory.descriptor()).ok());
  next(socket);
  auto session = opened.get();
  unlink(path.c_str());
  return session;
}

TEST(LocalSessionTest, MemoryOfTheGpuComesBehindTheWelcome) {
  const std::shared_ptr<DeviceSharing> gpu = MakeHostSharing("the test's GPU 0");
  const auto memory = *gpu->Make(kBytes);
  v1::LocalReply reply, other;
  reply.mutable_gpu()->set_bytes(kBytes);
  other.mutable_got()->set_page(1);
  const auto send = [](const v1::LocalReply& what, int descriptor) {
    return [&what, descriptor](const LocalSocket& socket) {
      EXPECT_TRUE(socket.Send(what, descriptor).ok());
    };
  };
  auto session = OpenWithGpu(gpu, kBytes, send(reply, memory->descriptor()));
  ASSERT_TRUE(session.ok()) << session.status();
  GpuStaging* const staging = (*session)->staging();
  ASSERT_NE(staging, nullptr);
  const auto place = staging->Take(100);
  ASSERT_TRUE(place.has_value());
  const std::vector<uint8_t> bytes(100, 7);
  ASSERT_TRUE(gpu->ToDevice(bytes, place->data()).ok());
  std::vector<uint8_t> came(100);
  const auto there = memory->bytes().subspan(staging->RangeOf(*place).offset(), 100);
  ASSERT_TRUE(gpu->ToHost(there, came.data()).ok());
  EXPECT_EQ(came, bytes);

  // None of it: the session is there all the same.
  const auto none = [](const LocalSocket&) {};
  for (auto& without :
       {OpenWithGpu(gpu, 0, none), OpenWithGpu(gpu, 2 * kBytes, send(reply, memory->descriptor())),
        OpenWithGpu(gpu, kBytes, send(reply, -1)), OpenWithGpu(nullptr, 0, none)}) {
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_EQ((*without)->staging(), nullptr);
  }
  // Rules that are broken.
  EXPECT_TRUE(
      absl::IsInternal(OpenWithGpu(gpu, kBytes, send(other, memory->descriptor())).status()));
  EXPECT_TRUE(
      absl::IsInternal(OpenWithGpu(nullptr, kBytes, send(reply, memory->descriptor())).status()));
  EXPECT_TRUE(absl::IsUnavailable(
      OpenWithGpu(gpu, kBytes, [](const LocalSocket& s) { s.HangUp(); }).status()));
}

TEST(GpuStagingTest, RangesDoNotOverlapAndComeBack) {
  const std::shared_ptr<DeviceSharing> gpu = MakeHostSharing("the test's GPU 0");
  GpuStaging staging(gpu, *gpu->Make(8 * kSharedPageBytes));
  const auto offset = [&](const std::optional<std::span<uint8_t>>& range) {
    return range.has_value() ? static_cast<int64_t>(staging.RangeOf(*range).offset()) : -1;
  };
  const auto a = staging.Take(1), b = staging.Take(2 * kSharedPageBytes), c = staging.Take(100);
  EXPECT_EQ(offset(a), 0);
  EXPECT_EQ(offset(b), kSharedPageBytes);
  EXPECT_EQ(offset(c), 3 * kSharedPageBytes);
  EXPECT_EQ(staging.RangeOf(*b).bytes(), 2 * kSharedPageBytes);
  EXPECT_EQ(offset(staging.Take(5 * kSharedPageBytes)), -1);
  const auto rest = staging.Take(4 * kSharedPageBytes);
  EXPECT_EQ(offset(rest), 4 * kSharedPageBytes);
  EXPECT_EQ(offset(staging.Take(1)), -1);
  staging.Give(*b);
  EXPECT_EQ(offset(staging.Take(2 * kSharedPageBytes + 1)), -1);
  EXPECT_EQ(offset(staging.Take(kSharedPageBytes + 1)), kSharedPageBytes);
  staging.Give(*a);
  EXPECT_EQ(offset(staging.Take(7)), 0);
  staging.Give(*rest);
  EXPECT_EQ(offset(staging.Take(4 * kSharedPageBytes)), 4 * kSharedPageBytes);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{8 * kSharedPageBytes + 1}, ~uint64_t{0}}) {
    EXPECT_FALSE(staging.Take(bytes).has_value());
  }
}

TEST(PageBufferTest, IsOwnMemoryWithoutASession) {
  PageBuffer buffer(10'000);
  EXPECT_EQ(buffer.bytes().size(), 10'000u);
  EXPECT_FALSE(buffer.shared());
  std::ranges::fill(buffer.bytes(), 1);
  EXPECT_TRUE(PageBuffer(0).bytes().empty());
}

}  // namespace
}  // namespace kvstow
