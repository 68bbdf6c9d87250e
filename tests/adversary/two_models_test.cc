// Two models under one name: a server that restarted, or whose space was dropped, has another
// model's pages under the keys that a worker asks for. On every transport they are no hit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/adversary/health_probe.h"
#include "tests/client/transport/gpu_fixture.h"

namespace kvstow {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

KvSpec SpecOf(const std::string& revision) {
  KvSpec spec = SmallSpec();
  spec.revision = revision;
  return spec;
}

// Fetches a prompt on one of the transports.
class Fetching {
 public:
  Fetching(const ClientWay& way, Client& client, const Prompt& prompt, uint8_t fill)
      : way_(way), prompt_(prompt) {
    const size_t page = prompt.pages[0].size();
    if (way.shared) buffer_ = client.NewBuffer(page * prompt.pages.size());
    for (size_t p = 0; p < prompt.pages.size(); ++p) {
      own_.emplace_back(page, fill);
      std::span<uint8_t> room = way.shared ? buffer_->bytes().subspan(p * page, page) : own_[p];
      std::ranges::fill(room, fill);
      rooms_.push_back(room);
      if (way.on_gpu) room = AsDeviceBytes(own_[p]);
      gets_.push_back({.key = prompt.keys[p], .out = room, .on_gpu = way.on_gpu});
    }
  }
  std::vector<GetResult> From(Client& client, const std::string& space) {
    return client.Get(space, 0, gets_).get();
  }
  bool Has(size_t page, const Prompt& prompt) const {
    return std::ranges::equal(rooms_[page], prompt.pages[page]);
  }

 private:
  const ClientWay& way_;
  const Prompt& prompt_;
  std::unique_ptr<PageBuffer> buffer_;
  std::vector<std::vector<uint8_t>> own_;
  std::vector<std::span<uint8_t>> rooms_;
  std::vector<PageGet> gets_;
};

class TwoModelsTest : public GpuPagesTest, public ::testing::WithParamInterface<ClientWay> {
 protected:
  // Whole pages, so that buffers fit them.
  const Prompt a_{SpecOf("a"), 4 * 64, 1};
  Prompt b_{SpecOf("b"), 4 * 64, 2};

  void SetUp() override {
    Start();
    b_.keys = a_.keys;
  }
  void Restart() {
    server_.reset();
    Start();
  }
  std::unique_ptr<Client> ConnectWay() { return ConnectBy(GetParam()); }
  static absl::Status OpenAs(Client& client, const Prompt& prompt) {
    return client.OpenSpace({.name = "llama", .spec = prompt.spec, .recipe = "raw"}).status();
  }
  void ExpectNothingOfA(Client& client) {
    Fetching fetching(GetParam(), client, a_, 0xee);
    for (const GetResult& r : fetching.From(client, "llama")) {
      EXPECT_EQ(r.outcome, PageOutcome::kNotCompatible) << r.message;
      EXPECT_THAT(r.message, HasSubstr("revision: b here, a asked"));
    }
    const PrefixHit hit = client.Lookup("llama", a_.keys);
    EXPECT_EQ(hit.pages, 0u);
    EXPECT_THAT(std::string(hit.status.message()), HasSubstr("revision: b here, a asked"));
    EXPECT_THAT(OutcomesOf(client.Put("llama", a_.Puts()).get()),
                Each(PageOutcome::kNotCompatible));
    EXPECT_FALSE(client.Delete("llama", a_.keys).ok());
    EXPECT_FALSE(client.Pin("llama", a_.keys, true).ok());
    EXPECT_FALSE(client.DropSpace("llama").ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(client.FindSpace("llama").status()));
  }
};

TEST_P(TwoModelsTest, AnotherModelOfTheNameIsNoHit) {
  const auto a = ConnectWay();
  ASSERT_TRUE(OpenAs(*a, a_).ok());
  ASSERT_THAT(OutcomesOf(a->Put("llama", a_.Puts()).get()), Each(PageOutcome::kStored));
  Fetching before(GetParam(), *a, a_, 0xee);
  ASSERT_THAT(OutcomesOf(before.From(*a, "llama")), Each(PageOutcome::kHit));
  EXPECT_TRUE(before.Has(0, a_));

  Restart();  // of a server without a disk: it has forgotten all of it
  const auto b = ConnectWay();
  ASSERT_TRUE(OpenAs(*b, b_).ok());
  ASSERT_THAT(OutcomesOf(b->Put("llama", b_.Puts()).get()), Each(PageOutcome::kStored));
  ExpectNothingOfA(*a);

  Fetching after(GetParam(), *b, b_, 0xee);
  ASSERT_THAT(OutcomesOf(after.From(*b, "llama")), Each(PageOutcome::kHit));
  for (size_t p = 0; p < b_.pages.size(); ++p) EXPECT_TRUE(after.Has(p, b_)) << p;
}

TEST_P(TwoModelsTest, AServerThatForgotTheSpaceGetsItAnew) {
  const auto a = ConnectWay();
  ASSERT_TRUE(OpenAs(*a, a_).ok());
  ASSERT_THAT(OutcomesOf(a->Put("llama", a_.Puts()).get()), Each(PageOutcome::kStored));
  Restart();
  Fetching gone(GetParam(), *a, a_, 0xee);
  EXPECT_THAT(OutcomesOf(gone.From(*a, "llama")), Each(PageOutcome::kMiss));
  EXPECT_TRUE(a->Lookup("llama", a_.keys).status.ok());
  EXPECT_THAT(OutcomesOf(a->Put("llama", a_.Puts()).get()), Each(PageOutcome::kStored));
  Fetching back(GetParam(), *a, a_, 0xee);
  EXPECT_THAT(OutcomesOf(back.From(*a, "llama")), Each(PageOutcome::kHit));
  for (size_t p = 0; p < a_.pages.size(); ++p) EXPECT_TRUE(back.Has(p, a_)) << p;
}

TEST_P(TwoModelsTest, ADroppedSpaceTakesItsPagesAlong) {
  const auto a = ConnectWay(), other = ConnectWay();
  ASSERT_TRUE(OpenAs(*a, a_).ok());
  ASSERT_TRUE(OpenAs(*other, a_).ok());
  ASSERT_THAT(OutcomesOf(a->Put("llama", a_.Puts()).get()), Each(PageOutcome::kStored));
  ASSERT_NE(a->Lookup("llama", a_.keys).lease, 0u);
  const auto dropped = other->DropSpace("llama");
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(*dropped, a_.pages.size());
  EXPECT_EQ(server_->store().residency().Usage().pages, 0u);
  Fetching gone(GetParam(), *a, a_, 0xee);
  EXPECT_THAT(OutcomesOf(gone.From(*a, "llama")), Each(PageOutcome::kMiss)) << "opened anew";
  ASSERT_TRUE(a->DropSpace("llama").ok());
  ASSERT_TRUE(OpenAs(*other, b_).ok());
  ASSERT_THAT(OutcomesOf(other->Put("llama", b_.Puts()).get()), Each(PageOutcome::kStored));
  ExpectNothingOfA(*a);
}

TEST_P(TwoModelsTest, ANameThatWasNeverOpenedIsWhatItWasAtItsFirstUse) {
  ASSERT_TRUE(OpenAs(*Connect(), a_).ok());
  const auto by_name = ConnectWay();
  EXPECT_THAT(OutcomesOf(by_name->Put("llama", a_.Puts()).get()), Each(PageOutcome::kStored));
  Fetching there(GetParam(), *by_name, a_, 0xee);
  EXPECT_THAT(OutcomesOf(there.From(*by_name, "llama")), Each(PageOutcome::kHit));
  Restart();
  const auto b = Connect();
  ASSERT_TRUE(OpenAs(*b, b_).ok());
  ASSERT_THAT(OutcomesOf(b->Put("llama", b_.Puts()).get()), Each(PageOutcome::kStored));
  ExpectNothingOfA(*by_name);
}

INSTANTIATE_TEST_SUITE_P(Transports, TwoModelsTest, ::testing::ValuesIn(kClientWays),
                         [](const auto& info) { return info.param.name; });

class SessionsTest : public GpuPagesTest {
 protected:
  static SpaceOptions Private(int i) {
    return {.name = absl::StrCat("session/", i),
            .spec = SmallSpec(),
            .recipe = "raw",
            .is_private = true};
  }
};

TEST_F(SessionsTest, SpacesOfSessionsThatEndedMakeRoom) {
  config_.max_spaces = 4;
  config_.disk_path = (folder_ / "disk").string();
  config_.disk_bytes = 64 << 20;
  Start();
  const Prompt prompt(SmallSpec(), 64, 1);
  {
    const testing::HealthProbe health(server_->http_address());
    const auto client = Connect();
    ASSERT_TRUE(client->OpenSpace(Private(0)).ok());
    ASSERT_THAT(OutcomesOf(client->Put("session/0", prompt.Puts()).get()),
                Each(PageOutcome::kStored));
    for (int i = 1; i < 20; ++i) {
      const auto opened = client->OpenSpace(Private(i));
      ASSERT_TRUE(opened.ok()) << i << ": " << opened.status();
    }
    EXPECT_EQ(client->Lookup("session/0", prompt.keys).pages, 1u) << "it is not empty";
    for (int i = 20; i < 23; ++i) {
      ASSERT_TRUE(client->OpenSpace(Private(i)).ok());
      ASSERT_THAT(OutcomesOf(client->Put(absl::StrCat("session/", i), prompt.Puts()).get()),
                  Each(PageOutcome::kStored));
    }
    EXPECT_TRUE(absl::IsResourceExhausted(client->OpenSpace(Private(23)).status()));
  }
  server_.reset();
  Start();
  const auto client = Connect();
  EXPECT_TRUE(absl::IsResourceExhausted(client->OpenSpace(Private(23)).status()))
      << "after a restart too: none of them is empty";
  ASSERT_TRUE(client->DropSpace("session/21").ok());
  EXPECT_TRUE(client->OpenSpace(Private(23)).ok());
  server_.reset();
  Start();
  const auto later = Connect();
  EXPECT_TRUE(absl::IsNotFound(later->FindSpace("session/21").status())) << "dropped for good";
  EXPECT_EQ(later->Lookup("session/0", prompt.keys).pages, 1u);
}

}  // namespace
}  // namespace kvstow
