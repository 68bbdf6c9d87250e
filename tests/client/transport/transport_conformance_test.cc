// What client/transport/transport.h promises, of each transport by itself, against a real server in
// this process.
#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/connection/direct_lookup.h"
#include "client/connection/space_opening.h"
#include "client/transport/transport.h"
#include "client/transport/transports.h"
#include "tests/client/transport/gpu_fixture.h"
#include "tests/proto/certificates.h"

namespace kvstow {
namespace {

using ::testing::Each;

enum class Memory : uint8_t { kHeap, kShared, kGpu };

struct Way {
  const char* name;
  Memory memory;     // where this transport takes pages from
  bool answers_all;  // it leaves none, whatever happens
  std::unique_ptr<Transport> (*make)(ClientCore& core);
  bool tls = false;  // mutual
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

const Way kWays[] = {
    {"gpu", Memory::kGpu, true,
     [](ClientCore& core) { return MakeGpuTransport(core, MakeStreamTransport(core)); }},
    {"local", Memory::kShared, false, MakeLocalTransport},
    {"direct", Memory::kHeap, false, MakeDirectTransport},
    {"stream", Memory::kHeap, true, MakeStreamTransport},
    {"direct_tls", Memory::kHeap, false, MakeDirectTransport, true},
    {"stream_tls", Memory::kHeap, true, MakeStreamTransport, true},
};

class TransportConformance : public GpuPagesTest, public ::testing::WithParamInterface<Way> {
 protected:
  ~TransportConformance() override { core_->Close(); }

  void SetUp() override {
    if (way_.tls) UseTls();
    Start();
    ClientOptions options{
        .address = server_->address(), .tls = tls_, .timeout = std::chrono::seconds(20)};
    if (way_.memory == Memory::kGpu) options.gpu = gpu_;
    core_ = std::make_unique<ClientCore>(options);
    transport_ = way_.make(*core_);
    OpenSpace();
  }
  void UseTls() {
    const testing::Certificates files(folder_);
    const TlsFiles server = files.mutual_server(), worker = files.worker();
    config_.tls_cert = server.certificate;
    config_.tls_key = server.key;
    config_.tls_client_ca = server.ca;
    tls_ = {.ca = worker.ca, .certificate = worker.certificate, .key = worker.key};
  }
  // The space, and a direct connection that is idle.
  void OpenSpace() {
    const auto info = kvstow::OpenSpace(*core_, {.name = "s", .spec = SmallSpec(), .recipe = "raw"},
                                        Payload::kRaw);
    ASSERT_TRUE(info.ok()) << info.status();
    v1::LookupRequest request;
    request.set_space("s");
    request.set_fingerprint(info->fingerprint);
    for (int i = 0; i < 400; ++i) {
      const auto found = LookupDirect(*core_, core_->nodes.current(), request, core_->Deadline());
      ASSERT_TRUE(found.ok()) << found.status();
      if (found->has_value()) return;
      core_->nodes.current().direct.Warm();
    }
    FAIL() << "the client opens no direct connection";
  }

  // Room for a prompt's pages where the transport takes them.
  struct Room {
    std::vector<std::vector<uint8_t>> heap;
    std::unique_ptr<PageBuffer> shared;
    std::vector<std::span<uint8_t>> pages;  // as the test reads and writes them
    std::vector<std::span<uint8_t>> named;  // as a batch names them
  };
  Room MakeRoom() const {
    Room room;
    const size_t bytes = PageBytes(prompt_.spec, prompt_.spec.page_tokens);
    const size_t n = prompt_.pages.size();
    if (way_.memory == Memory::kShared) {
      room.shared = core_->nodes.current().local.NewBuffer(n * bytes);
      EXPECT_TRUE(room.shared->shared());
      for (size_t p = 0; p < n; ++p)
        room.pages.push_back(room.shared->bytes().subspan(p * bytes, bytes));
    } else {
      room.heap.assign(n, std::vector<uint8_t>(bytes));
      for (auto& page : room.heap) room.pages.emplace_back(page);
    }
    for (const auto& page : room.pages) {
      std::ranges::fill(page, 0xee);
      room.named.push_back(way_.memory == Memory::kGpu ? AsDeviceBytes(page) : page);
    }
    return room;
  }
  std::vector<PageGet> GetsInto(const Room& room) const {
    std::vector<PageGet> gets;
    for (size_t p = 0; p < room.named.size(); ++p) {
      gets.push_back(
          {.key = prompt_.keys[p], .out = room.named[p], .on_gpu = way_.memory == Memory::kGpu});
    }
    return gets;
  }
  std::shared_ptr<GetBatch> NewGet(std::vector<PageGet> gets) {
    auto batch = std::make_shared<GetBatch>("s", std::move(gets), core_->Deadline(),
                                            [this](auto results) { got_ = std::move(results); });
    batch->payload = core_->payloads.Find("s");
    batch->each = [this](size_t page, const GetResult&) { each_.push_back(page); };
    return batch;
  }
  std::shared_ptr<PutBatch> NewPut(const Room& room) {
    std::vector<PagePut> puts = prompt_.Puts();
    for (size_t p = 0; p < puts.size(); ++p) {
      std::ranges::copy(prompt_.pages[p], room.pages[p].begin());
      puts[p].raw = room.named[p];
      puts[p].on_gpu = way_.memory == Memory::kGpu;
    }
    auto batch = std::make_shared<PutBatch>("s", std::move(puts), core_->Deadline(),
                                            [this](auto results) { put_ = std::move(results); });
    batch->payload = core_->payloads.Find("s");
    return batch;
  }

  // Through the transport alone; `next` must come, and once.
  void Move(const std::shared_ptr<GetBatch>& batch) {
    Await([&](Transport::Next next) { transport_->Get(batch, std::move(next)); });
  }
  void Move(const std::shared_ptr<PutBatch>& batch) {
    Await([&](Transport::Next next) { transport_->Put(batch, std::move(next)); });
  }
  template <typename Begin>
  void Await(Begin begin) {
    auto called = std::make_shared<std::promise<void>>();  // a second call throws
    auto future = called->get_future();
    core_->calls.AddBatch();
    begin([this, called] {
      called->set_value();
      core_->calls.RemoveBatch();
    });
    ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  void PutAll() {
    const Room room = MakeRoom();
    const auto batch = NewPut(room);
    Move(batch);
    batch->End();
    ASSERT_THAT(OutcomesOf(put_), Each(PageOutcome::kStored));
  }
  const Way way_ = GetParam();
  TlsOptions tls_;
  const Prompt prompt_{SmallSpec(), 5 * 64, 1};
  std::unique_ptr<ClientCore> core_;
  std::unique_ptr<Transport> transport_;
  std::vector<PutResult> put_;
  std::vector<GetResult> got_;
  std::vector<size_t> each_;  // pages, in the order of their results
};

TEST_P(TransportConformance, TakesPagesWhereItFindsThem) {
  const Room from = MakeRoom();
  const auto put = NewPut(from);
  Move(put);
  EXPECT_TRUE(put->AllAnswered());
  put->End();
  EXPECT_THAT(OutcomesOf(put_), Each(PageOutcome::kStored));
  const Room room = MakeRoom();
  const auto get = NewGet(GetsInto(room));
  Move(get);
  EXPECT_TRUE(get->AllAnswered());
  get->End();
  std::ranges::sort(each_);
  EXPECT_THAT(each_, ::testing::ElementsAre(0, 1, 2, 3, 4)) << "each page once";
  for (size_t p = 0; p < got_.size(); ++p) {
    ASSERT_EQ(got_[p].outcome, PageOutcome::kHit) << got_[p].message;
    EXPECT_TRUE(got_[p].exact);
    EXPECT_TRUE(std::ranges::equal(room.pages[p], prompt_.pages[p])) << "page " << p;
  }
}

TEST_P(TransportConformance, PartsAndMissesAreAnswers) {
  PutAll();
  const Room room = MakeRoom();
  auto gets = GetsInto(room);
  gets[1].first_layer = 3;
  gets[2].key = "another";
  gets[3].first_token = 60;
  const auto get = NewGet(gets);
  Move(get);
  EXPECT_TRUE(get->AllAnswered());
  get->End();
  const uint64_t page = room.pages[0].size();
  EXPECT_EQ(got_[1].bytes, page / 4);
  EXPECT_TRUE(std::ranges::equal(room.pages[1].first(page / 4),
                                 std::span(prompt_.pages[1]).last(page / 4)));
  EXPECT_EQ(got_[2].outcome, PageOutcome::kMiss);
  EXPECT_EQ(got_[3].tokens, 4u);
  for (size_t p : {1, 3}) EXPECT_EQ(room.pages[p][page / 4], 0xee) << "it writes the part alone";
}

TEST_P(TransportConformance, LeavesAnswersAndTheirBuffersAlone) {
  PutAll();
  const Room room = MakeRoom();
  const auto get = NewGet(GetsInto(room));
  get->Answer(2, PageOutcome::kMiss, "of an earlier transport");
  Move(get);
  EXPECT_TRUE(get->AllAnswered());
  get->End();
  EXPECT_EQ(got_[2].message, "of an earlier transport");
  EXPECT_THAT(room.pages[2], Each(0xee));
  EXPECT_TRUE(std::ranges::equal(room.pages[3], prompt_.pages[3]));
}

TEST_P(TransportConformance, SummariesGoOverStreamsAlone) {
  PutAll();
  const Room room = MakeRoom();
  const auto get = NewGet(GetsInto(room));
  get->summaries = true;
  Move(get);
  EXPECT_EQ(get->AllAnswered(), way_.answers_all);
  if (way_.memory == Memory::kGpu) {
    get->End();
    EXPECT_THAT(OutcomesOf(got_), Each(PageOutcome::kNotCompatible)) << "no summary is on a GPU";
  }
}

TEST_P(TransportConformance, NoHitIsOfAnotherSpace) {
  PutAll();
  KvSpec other = SmallSpec();
  other.model = "test/another";
  const auto admin = Connect({.tls = tls_, .shared_bytes = 0, .direct_connections = 0});
  ASSERT_TRUE(admin->DropSpace("s").ok());
  const auto fresh = Connect({.tls = tls_, .shared_bytes = 0, .direct_connections = 0});
  ASSERT_TRUE(fresh->OpenSpace({.name = "s", .spec = other, .recipe = "raw"}).ok());
  ASSERT_THAT(OutcomesOf(fresh->Put("s", Prompt(other, 5 * 64, 1).Puts()).get()),
              Each(PageOutcome::kStored));
  const Room room = MakeRoom();
  const auto get = NewGet(GetsInto(room));
  Move(get);
  EXPECT_EQ(get->AllAnswered(), way_.answers_all);
  get->End();
  EXPECT_THAT(OutcomesOf(got_), ::testing::Not(::testing::Contains(PageOutcome::kHit)));
}

TEST_P(TransportConformance, ADeadServerIsAnAnswerOrTheNextOnesBusiness) {
  PutAll();
  const Room room = MakeRoom();
  server_.reset();
  const auto get = NewGet(GetsInto(room));
  Move(get);
  EXPECT_EQ(get->AllAnswered(), way_.answers_all);
  get->End();
  EXPECT_THAT(OutcomesOf(got_), Each(PageOutcome::kUnavailable));
}

TEST_P(TransportConformance, GoesOnWhenTheClientCloses) {
  PutAll();
  const Room room = MakeRoom();
  const auto get = NewGet(GetsInto(room));
  auto called = std::make_shared<std::promise<void>>();
  auto future = called->get_future();
  core_->calls.AddBatch();
  transport_->Get(get, [this, called] {
    called->set_value();
    core_->calls.RemoveBatch();
  });
  core_->Close();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::ready)
      << "Close() waits for it";
}

TEST_P(TransportConformance, AListGoesOnWithWhatIsLeft) {
  PutAll();
  std::vector<std::unique_ptr<Transport>> order;
  order.push_back(std::make_unique<TransportList>(std::vector<std::unique_ptr<Transport>>()));
  order.push_back(std::move(transport_));
  order.push_back(MakeStreamTransport(*core_));
  transport_ = std::make_unique<TransportList>(std::move(order));
  std::vector<uint8_t> elsewhere(prompt_.pages[1].size());  // where only streams take it
  const Room room = MakeRoom();
  auto gets = GetsInto(room);
  gets[1].out = elsewhere;
  gets[1].on_gpu = false;
  const auto get = NewGet(gets);
  Move(get);
  EXPECT_TRUE(get->AllAnswered());
  get->End();
  EXPECT_THAT(OutcomesOf(got_), Each(PageOutcome::kHit));
  EXPECT_EQ(elsewhere, prompt_.pages[1]);
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TransportList, OfNoneTakesNothing) {
  TransportList none({});
  const auto batch = std::make_shared<GetBatch>("s", std::vector<PageGet>(2), Time(), nullptr);
  bool called = false;
  none.Get(batch, [&] { called = true; });
  EXPECT_TRUE(called);
  EXPECT_EQ(batch->Missing().size(), 2u);
}

}  // namespace
}  // namespace kvstow
