// Damage at rest costs the copies that have it and no other: a page with a good copy left is a hit,
// and one that took a damaged page's name stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "service/pages/page_reader.h"
#include "storage/tiers/memory_tier.h"
#include "tests/client/prompt.h"
#include "tests/service/server_fixture.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

using testing::ServerTest;
using testing::WireClient;

using Bytes = std::vector<uint8_t>;

EncodedPage Encode(const Prompt& prompt, const std::string& recipe) {
  const auto codec = MakeCodec(*ParseRecipe(recipe), prompt.spec);
  EXPECT_OK(codec.status());
  auto encoded = (*codec)->Encode(
      {.raw = prompt.pages[0], .tokens = prompt.spec.page_tokens, .key = prompt.keys[0]});
  EXPECT_OK(encoded.status());
  return *std::move(encoded);
}

// As the service puts it; memory then holds the very bytes of `bodies`.
PageToStore ToStore(const EncodedPage& encoded, const std::vector<std::shared_ptr<Bytes>>& bodies) {
  PageToStore page;
  page.name = {.space = 1, .key = encoded.header.key};
  page.header = encoded.header_bytes;
  page.raw_digest = encoded.header.raw_digest;
  page.tokens = encoded.header.tokens;
  page.whole = encoded.header.exact;
  for (const SegmentInfo& s : encoded.header.segments) {
    page.facts.push_back({.bytes = s.bytes, .gain = s.gain, .digest = s.digest});
  }
  for (const auto& body : bodies) {
    page.bodies.emplace_back(body, std::span<const uint8_t>(*body));
  }
  return page;
}

std::vector<std::shared_ptr<Bytes>> BodiesOf(const EncodedPage& encoded) {
  std::vector<std::shared_ptr<Bytes>> bodies;
  for (const SharedBytes& s : encoded.segments) {
    bodies.push_back(std::make_shared<Bytes>(s.span().begin(), s.span().end()));
  }
  return bodies;
}

class DamagedCopyTest : public ServerTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    config_.scrub_bytes_per_second = 0;
    StartServer();
    Connect();
  }
  void Connect() {
    worker_ = Client::Connect({.address = server_->address()});
    ASSERT_OK(
        worker_->OpenSpace({.name = "s", .spec = prompt_.spec, .recipe = GetParam()}).status());
  }
  // The page, as DURABLE, with one bit of each body in memory flipped.
  void PutAndDamage() {
    const EncodedPage encoded = Encode(prompt_, GetParam());
    const auto bodies = BodiesOf(encoded);
    PageToStore page = ToStore(encoded, bodies);
    page.ack = Ack::kDurable;
    ASSERT_OK(server_->store().Put(std::move(page)).status());
    for (const auto& body : bodies) (*body)[body->size() / 2] ^= 0x10;
  }
  // From a worker that compares digests itself.
  v1::PageReply GetChecked(v1::Payload payload) {
    WireClient wire(server_->address());
    EXPECT_TRUE(wire.FindSpace("s").ok());
    v1::GetRequest request;
    testing::NameSpace("s", *request.mutable_open());
    request.mutable_open()->set_payload(payload);
    request.mutable_open()->set_checked(true);
    request.set_credit_bytes(uint64_t{1} << 40);
    *request.add_pages() = testing::Ask(prompt_.keys[0]);
    const auto context = wire.Context();
    const auto call = wire.kv().Get(context.get());
    call->Write(request);
    call->WritesDone();
    v1::PageReply reply;
    for (v1::GetResponse response; call->Read(&response);) {
      if (response.has_begin()) reply = response.begin();
    }
    EXPECT_TRUE(call->Finish().ok());
    return reply;
  }
  void ExpectHit() {
    Fetch fetch(prompt_);
    const GetResult got = worker_->Get("s", 0, fetch.gets).get()[0];
    EXPECT_EQ(got.outcome, PageOutcome::kHit) << got.message;
    EXPECT_EQ(fetch.buffers[0], prompt_.pages[0]);
  }

  const Prompt prompt_{SmallSpec(), 64, 7};
  std::unique_ptr<Client> worker_;
};

TEST_P(DamagedCopyTest, TheGoodCopyOnDiskIsAHit) {
  PutAndDamage();
  for (const v1::Payload payload : {v1::RAW, v1::ENCODED}) {
    const v1::PageReply reply = GetChecked(payload);
    EXPECT_EQ(reply.status(), v1::HIT) << reply.message();
  }
  ExpectHit();
  EXPECT_EQ(Metric("kvstow_corrupt_pages_total"), 0);
  EXPECT_GT(server_->store().residency().Counters().corrupt_segments, 0u) << "the copy in memory";
  EXPECT_EQ(server_->store().residency().Counters().dropped_pages, 0u);
  StopServer();
  StartServer();
  Connect();
  ExpectHit();
}

TEST_P(DamagedCopyTest, ALeasedPageKeepsItsGoodCopyToo) {
  PutAndDamage();
  const PrefixHit hit = worker_->Lookup("s", prompt_.keys);
  ASSERT_EQ(hit.pages, 1u);
  EXPECT_EQ(GetChecked(v1::RAW).status(), v1::HIT);
  ExpectHit();
  EXPECT_OK(server_->store().residency().CheckInvariants());
}

TEST_P(DamagedCopyTest, WithoutAGoodCopyThePageGoes) {
  PutAndDamage();
  ASSERT_OK(server_->store().cooling().SetBudget(TierId::kDisk, 0));
  Fetch fetch(prompt_);
  EXPECT_EQ(worker_->Get("s", 0, fetch.gets).get()[0].outcome, PageOutcome::kCorrupt);
  EXPECT_EQ(GetChecked(v1::RAW).status(), v1::MISS);
  EXPECT_EQ(server_->store().residency().Usage().pages, 0u);
}

INSTANTIATE_TEST_SUITE_P(Exact, DamagedCopyTest, ::testing::Values("raw", "lossless"));

// Calls something once, when bodies were read and before anybody sees them.
class SlowTier final : public Tier {
 public:
  SlowTier(std::unique_ptr<Tier> inner, std::function<void()>& meanwhile)
      : inner_(std::move(inner)), meanwhile_(meanwhile) {}
  std::string name() const override { return inner_->name(); }
  bool holds_bytes() const override { return true; }
  absl::Status Write(std::span<const SegmentBody> bodies) override { return inner_->Write(bodies); }
  bool verifies() const override { return inner_->verifies(); }
  std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) override {
    auto out = inner_->Read(expected);
    if (meanwhile_) std::exchange(meanwhile_, nullptr)();
    return out;
  }
  absl::Status Erase(std::span<const SegmentId> ids) override { return inner_->Erase(ids); }

 private:
  const std::unique_ptr<Tier> inner_;
  std::function<void()>& meanwhile_;
};

class PutAgainTest : public ::testing::TestWithParam<bool> {
 protected:
  PutAgainTest() {
    TieredStoreOptions options;
    options.budget_bytes = {0, 64 << 20, 0};
    options.background = false;
    TieredStoreParts parts;
    parts.tiers[1] = std::make_unique<SlowTier>(MakeMemoryTier(HostDevice()), meanwhile_);
    store_ = *TieredStore::Open(options, std::move(parts));
    space_.id = 1;
    space_.spec = prompt_.spec;
    EXPECT_OK(store_->SaveSpace({.id = 1, .bytes = SharedBytes::Take(std::string("s"))}));
  }
  // A page whose digests are right and whose bodies are noise: it reads well and does not decode.
  PageToStore Noise() const {
    EncodedPage encoded = good_;
    auto bodies = BodiesOf(encoded);
    for (size_t i = 0; i < bodies.size(); ++i) {
      std::ranges::fill(*bodies[i], 0xa5);
      encoded.header.segments[i].digest = Xxh3(*bodies[i]);
    }
    encoded.header_bytes = SharedBytes::Take(SerializePageHeader(encoded.header));
    return ToStore(encoded, bodies);
  }
  v1::PageReply Get(PageReader& reader, Checks checks) {
    v1::GetPage request;
    request.set_key(prompt_.keys[0]);
    return reader.Fetch(space_, {}, v1::RAW, request, checks).reply;
  }

  const Prompt prompt_{SmallSpec(), 64, 7};
  const EncodedPage good_ = Encode(prompt_, "lossless");
  std::function<void()> meanwhile_;
  std::unique_ptr<TieredStore> store_;
  Space space_;
  const CalibrationStore calibrations_;
  Metrics metrics_{"test"};
};

// A reader found a page bad, slowly: meanwhile it was deleted, and put again well.
TEST_P(PutAgainTest, ThePageThatHasTheNameStays) {
  PageReader reader(*store_, calibrations_, metrics_);
  ASSERT_OK(store_->Put(Noise()).status());
  PageNumber number = 0;
  meanwhile_ = [&] {
    const PageName name{.space = 1, .key = prompt_.keys[0]};
    ASSERT_OK(store_->Delete(name, false));
    ASSERT_OK(store_->Put(ToStore(good_, BodiesOf(good_))).status());
    const absl::string_view keys[] = {name.key};
    number = store_->residency().Lookup(1, keys, /*take_lease=*/GetParam()).pages.at(0).number;
  };
  const v1::PageReply reply = Get(reader, Checks::kReader);
  EXPECT_EQ(reply.status(), v1::HIT) << reply.message();
  const auto now = store_->residency().Find({.space = 1, .key = prompt_.keys[0]});
  ASSERT_OK(now.status());
  EXPECT_EQ(now->number, number);
  EXPECT_EQ(store_->residency().Counters().dropped_pages, 0u);
  EXPECT_OK(store_->residency().CheckInvariants());
}

TEST_F(PutAgainTest, APageThatDoesNotDecodeGoes) {
  PageReader reader(*store_, calibrations_, metrics_);
  ASSERT_OK(store_->Put(Noise()).status());
  EXPECT_EQ(Get(reader, Checks::kReader).status(), v1::CORRUPT);
  EXPECT_EQ(Get(reader, Checks::kStore).status(), v1::MISS);
  EXPECT_OK(store_->residency().CheckInvariants());
}

INSTANTIATE_TEST_SUITE_P(Leased, PutAgainTest, ::testing::Bool());

}  // namespace
}  // namespace kvstow
