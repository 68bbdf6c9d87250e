// Pages in memory of the GPU that a worker and the server share; a stand-in on the host plays the
// GPU. Whatever codes a page, what is stored and what is read are the same.
#include "service/transports/local_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/presets.h"
#include "kernels/device/host_sharing.h"
#include "kernels/recipe/recipe.h"
#include "tests/kernels/device/host_as_gpu.h"
#include "tests/service/server_fixture.h"
#include "tests/service/transports/local_worker.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGpuBytes = 4 << 20;
constexpr char kUuid[] = "the test's GPU 0";  // 16 bytes

class LocalGpuTest : public ServerTest {
 protected:
  struct GpuWorker {
    Worker worker;
    v1::LocalWelcome welcome;
    std::shared_ptr<SharedDeviceMemory> gpu;  // null: none was given
  };

  ~LocalGpuTest() override {  // before the GPU
    client_.reset();
    server_.reset();
  }
  void SetUp() override {
    config_.local_socket = (folder_ / "local").string();
    config_.local_bytes = 8 << 20;
    config_.local_gpu_bytes = 2 * kGpuBytes;
    config_.device = "auto";
    options_.gpu = &gpu_;
    options_.gpu_sharing = sharing_.get();
    StartServer();
  }

  std::unique_ptr<GpuWorker> NewWorker(const std::string& uuid = kUuid,
                                       uint64_t gpu_bytes = kGpuBytes) {
    v1::OpenLocalResponse out;
    EXPECT_TRUE(client_->kv().OpenLocal(client_->Context().get(), {}, &out).ok());
    LocalSocket socket = *LocalSocket::Connect(config_.local_socket);
    v1::LocalRequest hello;
    hello.mutable_hello()->set_token(out.token());
    hello.mutable_hello()->set_bytes(1 << 20);
    hello.mutable_hello()->set_gpu_bytes(gpu_bytes);
    hello.mutable_hello()->set_gpu_uuid(uuid);
    EXPECT_TRUE(socket.Send(hello).ok());
    v1::LocalReply welcome, gpu;
    int descriptor = -1;
    EXPECT_TRUE(socket.Receive(welcome, kSoon, &descriptor).ok());
    auto memory = SharedMemory::Map(descriptor);
    EXPECT_TRUE(memory.ok());
    std::shared_ptr<SharedDeviceMemory> shared;
    if (welcome.welcome().gpu_bytes() > 0) {
      EXPECT_TRUE(socket.Receive(gpu, kSoon, &descriptor).ok());
      EXPECT_EQ(gpu.gpu().bytes(), welcome.welcome().gpu_bytes());
      shared = *sharing_->Map(descriptor, gpu.gpu().bytes());
    }
    return std::make_unique<GpuWorker>(
        GpuWorker{{std::move(socket), *std::move(memory)}, welcome.welcome(), std::move(shared)});
  }

  PageIn Page(const std::string& key, uint32_t seed, uint32_t tokens = 64) {
    return {.key = key, .raw = RandomPage(SmallSpec(), tokens, seed), .tokens = tokens};
  }
  v1::PutResult Put(GpuWorker& w, const std::string& space, const PageIn& page,
                    uint64_t offset = 0) {
    EXPECT_TRUE(sharing_->ToDevice(AsBytes(page.raw), w.gpu->bytes().data() + offset).ok());
    return w.worker.Call(GpuPutOf(space, page, offset)).put();
  }
  static v1::LocalRequest GpuPutOf(const std::string& space, const PageIn& page, uint64_t offset) {
    v1::LocalRequest request = PutOf({}, page);
    NameSpace(space, *request.mutable_put());
    v1::LocalPutPage& put = *request.mutable_put()->mutable_pages(0);
    put.clear_from();
    put.mutable_gpu_from()->set_offset(offset);
    put.mutable_gpu_from()->set_bytes(page.raw.size());
    return request;
  }
  static v1::LocalRequest GpuGetOf(const std::string& space, const v1::GetPage& page,
                                   uint64_t offset, uint64_t bytes) {
    v1::LocalRequest request;
    NameSpace(space, *request.mutable_get());
    v1::LocalGetPage& get = *request.mutable_get()->add_pages();
    *get.mutable_page() = page;
    get.mutable_gpu_to()->set_offset(offset);
    get.mutable_gpu_to()->set_bytes(bytes);
    return request;
  }
  // What came of a Get, and its bytes.
  PageOut Get(GpuWorker& w, const std::string& space, const v1::GetPage& page) {
    constexpr uint64_t kAt = 2 << 20, kRoom = 256 << 10;
    const v1::LocalReply reply = w.worker.Call(GpuGetOf(space, page, kAt, kRoom));
    PageOut out{.reply = reply.got().reply(), .data = {}};
    out.data.resize(out.reply.payload_bytes() - out.reply.kept().bytes());
    auto* const to = reinterpret_cast<uint8_t*>(out.data.data());
    EXPECT_TRUE(sharing_->ToHost(w.gpu->bytes().subspan(kAt, out.data.size()), to).ok());
    EXPECT_EQ(out.reply.key(), page.key());
    const std::string& kept = reply.got().kept();
    EXPECT_EQ(out.reply.payload_digest(),
              kept.empty() ? "" : AsString(Xxh3_128(AsBytes(kept)).bytes))
        << "of the host's part";
    return out;
  }
  double Coded(const char* method, const char* coder) const {
    const double n = Metric(absl::StrCat("kvstow_local_gpu_pages_total{coder=\"", coder,
                                         "\",method=\"", method, "\"}"));
    return std::max(n, 0.0);
  }

  FailingGpu gpu_;
  const std::unique_ptr<DeviceSharing> sharing_ = MakeHostSharing(kUuid);
};

TEST_F(LocalGpuTest, PagesOfEveryRecipeAreWhatStreamsMakeOfThem) {
  const auto w = NewWorker();
  ASSERT_NE(w->gpu, nullptr) << w->welcome.gpu_message();
  int served = 0;
  for (const Preset& preset : CodecPresets()) {
    const std::string recipe(preset.name), a = "a-" + recipe, b = "b-" + recipe;
    if (!client_->OpenSpace(a, recipe).ok()) continue;  // needs what is not here
    SCOPED_TRACE(recipe);
    ASSERT_TRUE(client_->OpenSpace(b, recipe).ok());
    ++served;
    for (const uint32_t tokens : {64u, 17u}) {
      const PageIn page = Page(absl::StrCat("k", tokens), tokens, tokens);
      const v1::PutResult ours = Put(*w, a, page), theirs = client_->Put(b, {page}).pages.at(0);
      ASSERT_EQ(ours.status(), v1::STORED) << ours.message();
      EXPECT_EQ(ours.stored_bytes(), theirs.stored_bytes());
      EXPECT_EQ(client_->Get(a, {Ask(page.key)}, 0, v1::ENCODED).pages.at(0).data,
                client_->Get(b, {Ask(page.key)}, 0, v1::ENCODED).pages.at(0).data);
      EXPECT_EQ(Put(*w, a, page).status(), v1::ALREADY_THERE);
      v1::GetPage whole = Ask(page.key), base = whole, layers = whole, tail = whole;
      base.set_max_levels(1);
      layers.set_first_layer(1);
      layers.set_layer_count(2);
      tail.set_first_token(5);
      for (const v1::GetPage& part : {whole, base, layers, tail}) {
        const PageOut got = Get(*w, a, part);
        const PageOut streamed = client_->Get(b, {part}).pages.at(0);
        ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
        const uint64_t kept = streamed.reply.kept().bytes();
        EXPECT_EQ(got.data, streamed.data.substr(0, streamed.data.size() - kept));
        EXPECT_EQ(got.reply.levels(), streamed.reply.levels());
        EXPECT_EQ(got.reply.kept().bytes(), kept);
      }
    }
  }
  EXPECT_GE(served, 30);
  // The GPU coded what is the GPU's, and the CPU the rest.
  EXPECT_GE(Coded("put", "gpu"), 14 * 2);
  EXPECT_GE(Coded("get", "gpu"), 14 * 2 * 2);
  EXPECT_GT(Coded("put", "cpu"), 0);
  EXPECT_GT(Coded("get", "cpu"), 0);
}

TEST_F(LocalGpuTest, AHotFormBecomesColdAndNaNStaysExact) {
  const auto w = NewWorker();
  ASSERT_TRUE(client_->OpenSpace("s", "hot=int8,cold=kvstow").ok());
  PageIn page = Page("k", 1);
  EXPECT_EQ(Put(*w, "s", page).status(), v1::STORED);
  EXPECT_EQ(Coded("put", "gpu"), 1);
  page = Page("nan", 2);
  page.raw[1] = page.raw[0] = static_cast<char>(0x7f);
  const v1::PutResult exact = Put(*w, "s", page);
  EXPECT_EQ(exact.status(), v1::STORED);
  EXPECT_TRUE(exact.fell_back());
  EXPECT_EQ(Coded("put", "cpu"), 1);
  EXPECT_EQ(Get(*w, "s", Ask("nan")).data, page.raw);
}

// Not even a GPU that calls a good page damaged changes an answer.
TEST_F(LocalGpuTest, WhatTheGpuFailsWithTheCpuDoes) {
  const auto w = NewWorker();
  ASSERT_TRUE(client_->OpenSpace("s", "int8").ok());
  const PageIn first = Page("k1", 1), second = Page("k2", 2);
  EXPECT_EQ(Put(*w, "s", first).status(), v1::STORED);
  const PageOut before = Get(*w, "s", Ask("k1"));
  gpu_.fails = true;
  EXPECT_EQ(Put(*w, "s", second).status(), v1::STORED);
  const PageOut after = Get(*w, "s", Ask("k1"));
  EXPECT_EQ(after.reply.status(), v1::HIT);
  EXPECT_EQ(after.data, before.data);
  EXPECT_EQ(Coded("put", "cpu"), 1);
  EXPECT_EQ(Coded("get", "cpu"), 1);
  EXPECT_EQ(Metric("kvstow_corrupt_pages_total"), 0);
}

TEST_F(LocalGpuTest, WithoutAGpuInCommonThereIsASessionAndAReason) {
  const auto other = NewWorker("another GPU here");
  EXPECT_EQ(other->gpu, nullptr);
  EXPECT_THAT(other->welcome.gpu_message(), HasSubstr("the server on "));
  EXPECT_NE(other->worker.Allocate(4096).bytes(), 0u) << "the host's memory is there";
  ASSERT_TRUE(client_->OpenSpace("s", "int8").ok());
  const PageIn page = Page("k", 1);
  const v1::LocalReply got = other->worker.Call(GpuGetOf("s", Ask("k"), 0, 4096));
  EXPECT_EQ(got.got().reply().status(), v1::NOT_COMPATIBLE);
  EXPECT_THAT(got.got().reply().message(), HasSubstr("no memory on the GPU"));
  EXPECT_EQ(other->worker.Call(GpuPutOf("s", page, 0)).put().status(), v1::REFUSED);

  StopServer();
  config_.local_gpu_bytes = 0;
  StartServer();
  const auto none = NewWorker();
  EXPECT_EQ(none->gpu, nullptr);
  EXPECT_THAT(none->welcome.gpu_message(), HasSubstr("--local-gpu-bytes"));
}

TEST_F(LocalGpuTest, AllSessionsShareOneBudget) {
  auto first = NewWorker();
  const auto second = NewWorker(kUuid, std::numeric_limits<uint64_t>::max());
  ASSERT_NE(second->gpu, nullptr);
  EXPECT_EQ(second->gpu->bytes().size(), kGpuBytes) << "what was left";
  EXPECT_EQ(Metric("kvstow_local_gpu_bytes"), 2 * kGpuBytes);
  const auto third = NewWorker();
  EXPECT_EQ(third->gpu, nullptr);
  EXPECT_THAT(third->welcome.gpu_message(), HasSubstr("none is left"));
  first.reset();
  EXPECT_TRUE(Eventually([&] { return Metric("kvstow_local_gpu_bytes") == kGpuBytes; }));
  EXPECT_NE(NewWorker()->gpu, nullptr);
}

TEST_F(LocalGpuTest, RangesOutsideTheMemoryAreRefused) {
  const auto w = NewWorker();
  ASSERT_TRUE(client_->OpenSpace("s", "int8").ok());
  const PageIn page = Page("k", 1);
  ASSERT_EQ(Put(*w, "s", page).status(), v1::STORED);
  const struct {
    uint64_t offset, bytes;
    const char* why;
  } kRanges[] = {
      {kGpuBytes, 4096, "no part of"},
      {kGpuBytes - 4096, 8192, "no part of"},
      {~uint64_t{0} - 4095, 8192, "no part of"},
      {0, ~uint64_t{0}, "no part of"},
      {0, 0, "no part of"},
      {100, 4096, "multiple"},
      {0, 4096, "the buffer 4096"},
  };
  for (const auto& r : kRanges) {
    const v1::LocalReply got = w->worker.Call(GpuGetOf("s", Ask("k"), r.offset, r.bytes));
    EXPECT_EQ(got.got().reply().status(), v1::NOT_COMPATIBLE);
    EXPECT_THAT(got.got().reply().message(), HasSubstr(r.why));
  }
  for (const uint64_t offset : {uint64_t{kGpuBytes}, ~uint64_t{0} - 4095, uint64_t{1}}) {
    EXPECT_EQ(w->worker.Call(GpuPutOf("s", page, offset)).put().status(), v1::REFUSED);
  }
  v1::LocalRequest longer = GpuPutOf("s", page, 0);
  longer.mutable_put()->mutable_pages(0)->mutable_gpu_from()->set_bytes(page.raw.size() + 1);
  EXPECT_THAT(w->worker.Call(longer).put().message(), HasSubstr("payload_bytes"));
}

// The memory is the worker's to write to at any time; what is exact stays what its digest says.
TEST_F(LocalGpuTest, WritingToAPageWhileItIsPutHarmsNobody) {
  const auto w = NewWorker();
  const PageIn page = Page("k", 1);
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    std::mt19937 random(2);
    while (!stop) {
      const auto byte = static_cast<uint8_t>(random());
      (void)sharing_->ToDevice({&byte, 1}, w->gpu->bytes().data() + random() % page.raw.size());
    }
  });
  for (const char* recipe : {"raw", "lossless", "int8", "kivi4", "rotated8", "kvstow"}) {
    SCOPED_TRACE(recipe);
    ASSERT_TRUE(client_->OpenSpace(recipe, recipe).ok());
    for (int i = 0; i < 5; ++i) {
      PageIn one = page;
      one.key = absl::StrCat("k", i);
      EXPECT_EQ(Put(*w, recipe, one).status(), v1::STORED);
      const PageOut got = client_->Get(recipe, {Ask(one.key)}).pages.at(0);
      EXPECT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
      if (!got.reply.exact()) continue;
      EXPECT_EQ(AsString(Xxh3_128(AsBytes(got.data)).bytes), got.reply.raw_digest());
    }
  }
  stop = true;
  scribbler.join();
}

// Writes to the worker's memory as soon as it has been read once.
class ChangingSharing final : public DeviceSharing {
 public:
  explicit ChangingSharing(DeviceSharing& sharing) : sharing_(sharing) {}
  std::span<uint8_t> watched;  // shared memory that a worker has

  std::string uuid() const override { return sharing_.uuid(); }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) override {
    return sharing_.Make(bytes);
  }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) override {
    return sharing_.Map(descriptor, bytes);
  }
  absl::StatusOr<bool> Passed(void* event) override { return sharing_.Passed(event); }
  absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) override {
    return Changed(sharing_.Copy(from, to), from);
  }
  absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) override {
    return Changed(sharing_.ToHost(from, to), from);
  }
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) override {
    return sharing_.ToDevice(from, to);
  }

 private:
  absl::Status Changed(absl::Status read, std::span<const uint8_t> from) {
    const bool ours =
        from.data() >= watched.data() && from.data() < watched.data() + watched.size();
    const std::vector<uint8_t> other(from.size(), 0x11);
    if (ours) read.Update(sharing_.ToDevice(other, watched.data()));
    return read;
  }

  DeviceSharing& sharing_;
};

TEST_F(LocalGpuTest, DigestAndCodesAreOfOneReadOfTheWorkersMemory) {
  ChangingSharing changing(*sharing_);
  LocalGpu gpu(gpu_, changing, kGpuBytes);
  const auto memory = gpu.Share(kGpuBytes, kUuid);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const KvSpec spec = SmallSpec();
  Space space{.spec = spec};
  space.codec = *MakeCodec(*ParseRecipe("int8"), spec);
  const PageIn page = Page("k", 1);
  ASSERT_TRUE(changing.ToDevice(AsBytes(page.raw), (*memory)->bytes().data()).ok());
  auto on_gpu = GpuPage::At(gpu, space, *memory, 0, page.raw.size());
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  changing.watched = (*memory)->bytes();
  const auto raw = on_gpu->Take();
  ASSERT_TRUE(raw.ok()) << raw.status();
  const PageToEncode to_encode{
      .raw = raw->span(), .tokens = page.tokens, .raw_digest = Xxh3_128(raw->span())};
  const auto coded = on_gpu->Encode(to_encode);
  ASSERT_TRUE(coded.ok()) << coded.status();
  EXPECT_TRUE(on_gpu->coded_there());
  const auto want = space.codec->Encode(to_encode);
  ASSERT_TRUE(want.ok());
  EXPECT_EQ(coded->header_bytes.span().size(), want->header_bytes.span().size());
  for (size_t i = 0; i < want->segments.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(coded->segments[i].span(), want->segments[i].span())) << i;
  }
}

TEST_F(LocalGpuTest, TheServerStopsWithMemoryShared) {
  const auto w = NewWorker();
  StopServer();
  EXPECT_EQ(sharing_->ToDevice(AsBytes("still there"), w->gpu->bytes().data()), absl::OkStatus());
}

}  // namespace
}  // namespace kvstow::testing
