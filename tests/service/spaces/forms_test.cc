// Spaces with a hot and a cold form: which one is served, what the reply says of it, and that a
// page becomes cold once and stays so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "service/spaces/space_recipe.h"
#include "tests/kernels/pages.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kRecipe[] = "hot=int8,cold=kvstow";
constexpr char kHot[] = "affine(bits=8,group=64)";

class FormsTest : public ServerTest {
 protected:
  void SetUp() override {
    // Room for about eight hot pages of 70 KiB.
    config_.host_bytes = 600 << 10;
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", kRecipe, &space_).ok());
  }
  static PageIn Page(uint32_t i) {
    return {.key = "p" + std::to_string(i),
            .raw = RandomPage(SmallSpec(), 64, i),
            .tokens = 64,
            .first_position = 64 * i};
  }
  void PutPages(uint32_t first, uint32_t count, v1::Ack ack = v1::MEMORY) {
    std::vector<PageIn> pages;
    for (uint32_t i = first; i < first + count; ++i) pages.push_back(Page(i));
    for (PageIn& page : pages) page.ack = ack;
    for (const v1::PutResult& r : client_->Put("s", pages).pages) {
      ASSERT_EQ(r.status(), v1::STORED) << r.message();
      EXPECT_EQ(r.recipe(), kHot) << "put makes the hot form";
    }
  }
  PageOut Get(uint32_t i) {
    const auto got = client_->Get("s", {Ask("p" + std::to_string(i))});
    return got.pages.size() == 1 ? got.pages[0] : PageOut{};
  }
  // Squared error of what came, relative to the page as it was put.
  static double ErrorOf(uint32_t i, const std::string& data) {
    return RelativeError(SmallSpec().dtype, AsBytes(Page(i).raw), AsBytes(data));
  }

  static bool IsCold(const PageOut& page) { return page.reply.recipe().find("planes(") == 0; }
  // The page as it comes back from its hot form, or from the cold form made of that.
  static std::vector<uint8_t> Expected(uint32_t i, bool cold) {
    const PageIn page = Page(i);
    const auto decoded = [&](absl::string_view recipe, std::span<const uint8_t> raw) {
      const auto codec = MakeCodec(*ParseRecipe(recipe), SmallSpec());
      const auto encoded = (*codec)->Encode(
          {.raw = raw, .tokens = page.tokens, .first_position = page.first_position});
      std::vector<uint8_t> out(raw.size());
      EXPECT_TRUE(DecodePage(encoded->header, encoded->segments, out).ok());
      return out;
    };
    std::vector<uint8_t> hot = decoded("int8", AsBytes(page.raw));
    return cold ? decoded("kvstow", hot) : hot;
  }

  v1::OpenSpaceResponse space_;
};

// Which pages are cold depends on when the background worker ran: memory holds eight hot pages of
// twenty, so that some are, and each page's reply says which form it is.
TEST_F(FormsTest, PagesBecomeColdAndTheReplySaysSo) {
  EXPECT_EQ(space_.recipe(), kRecipe);
  EXPECT_THAT(space_.pipeline(), HasSubstr("hot=affine(bits=8,group=64),cold=planes("));
  EXPECT_EQ(space_.fidelity(), v1::DENSE);
  EXPECT_EQ(space_.levels(), 3u);
  PutPages(0, 20);
  uint32_t cold = 0;
  for (uint32_t i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    const PageOut got = Get(i);
    ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
    const bool is_cold = IsCold(got);
    cold += is_cold;
    if (!is_cold) {
      EXPECT_EQ(got.reply.recipe(), kHot);
    }
    EXPECT_EQ(got.reply.levels_stored(), is_cold ? 3u : 1u);
    EXPECT_FALSE(got.reply.exact());
    // 32 KiB raw: int8 keeps more than half of it, planes less.
    EXPECT_EQ(got.reply.stored_bytes() < got.data.size() * 2 / 5, is_cold);
    EXPECT_EQ(AsBytes(got.reply.raw_digest()).size(), sizeof(Digest128));
    const double error = ErrorOf(i, got.data);
    EXPECT_GT(error, 0);
    EXPECT_NEAR(got.reply.estimated_error(), error, 0.15 * error + 1e-6);
    EXPECT_EQ(got.data, AsString(Expected(i, is_cold))) << "the cold form is that of the hot one";
    if (!is_cold) continue;  // it may cool at any time
    v1::GetPage ask = Ask("p" + std::to_string(i));
    ask.set_max_error(0.85 * error);
    EXPECT_EQ(client_->Get("s", {ask}).pages[0].reply.status(), v1::MISS) << "it is worse";
    ask.set_max_error(1.15 * error);
    EXPECT_EQ(client_->Get("s", {ask}).pages[0].reply.status(), v1::HIT);
  }
  EXPECT_GT(cold, 0u);
  EXPECT_GT(Metric("kvstow_store_cooled_pages_total"), 0);
  EXPECT_GT(Metric("kvstow_cooling_seconds_count"), 0);
}

TEST_F(FormsTest, ARestartBringsBackEitherFormAndNothingIsMadeTwice) {
  PutPages(0, 12, v1::PROCESS);
  EXPECT_GT(Metric("kvstow_store_cooled_pages_total"), 0);
  std::vector<PageOut> before;
  for (uint32_t i = 0; i < 12; ++i) before.push_back(Get(i));
  StopServer();
  StartServer();
  EXPECT_EQ(server_->store().residency().Usage().pages, 12u);
  const auto expect_as_before = [&] {
    for (uint32_t i = 0; i < 12; ++i) {
      const PageOut got = Get(i);
      ASSERT_EQ(got.reply.status(), v1::HIT) << i;
      EXPECT_EQ(got.data, AsString(Expected(i, IsCold(got)))) << i;
      if (!IsCold(before[i])) continue;
      EXPECT_TRUE(IsCold(got)) << i;
      EXPECT_EQ(got.data, before[i].data) << "coded once";
    }
  };
  expect_as_before();
  PutPages(12, 20, v1::PROCESS);
  expect_as_before();
}

TEST_F(FormsTest, ReadersNeverMissAPageThatIsGettingCold) {
  PutPages(0, 6);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    WireClient client(server_->address());
    while (!stop) {
      for (uint32_t i = 0; i < 6; ++i) {
        const auto got = client.Get("s", {Ask("p" + std::to_string(i))});
        ASSERT_EQ(got.pages[0].reply.status(), v1::HIT) << got.pages[0].reply.message();
      }
    }
  });
  PutPages(6, 30);
  stop = true;
  reader.join();
}

TEST_F(FormsTest, PagesThatAreKeptExactlyHaveOneForm) {
  PageIn page = Page(0);
  page.raw[0] = '\x01';
  page.raw[1] = '\x7e';  // NaN
  const auto put = client_->Put("s", {page});
  ASSERT_EQ(put.pages[0].status(), v1::STORED);
  EXPECT_TRUE(put.pages[0].fell_back());
  PutPages(1, 20);
  const PageOut got = Get(0);
  EXPECT_EQ(got.data, page.raw);
  EXPECT_EQ(got.reply.recipe(), "raw");
  EXPECT_TRUE(got.reply.exact());
}

TEST_F(FormsTest, WhatDiffersFromTheSpaceIsNamed) {
  EXPECT_TRUE(client_->OpenSpace("s", kRecipe).ok());
  for (const char* other : {"int8", "kvstow", "hot=int8,cold=rotated8", "hot=fp8,cold=kvstow"}) {
    const grpc::Status status = client_->OpenSpace("s", other);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << other;
    EXPECT_THAT(status.error_message(), HasSubstr(other));
  }
  EXPECT_EQ(client_->OpenSpace("e", kRecipe, nullptr, v1::EXACT).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(SpaceRecipe, IsOneRecipeOrTwo) {
  const auto one = SpaceRecipe::Parse("kvstow(step=0.9)");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE(one->cold.has_value());
  const auto two = SpaceRecipe::Parse("hot=affine(bits=8,group=32),cold=kvstow-cal(run=3,step=1)");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->hot.pipeline(), "affine(bits=8,group=32)");
  EXPECT_THAT(two->cold->pipeline(), HasSubstr("joint(run=3,step=1"));
  const std::string pipeline = PipelineOf(*two);
  const auto again = SpaceRecipe::Parse(pipeline);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PipelineOf(*again), pipeline);
  for (const char* wrong : {"hot=int8", "cold=int8", "hot=,cold=int8",
                            "hot=int8,cold=", "hot=int8,cold=kvstow,cold=raw", ""}) {
    EXPECT_EQ(SpaceRecipe::Parse(wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

TEST(SpaceRecipe, AutoKeepsItsPromiseFromTheFirstPageOn) {
  const auto cold = [](absl::string_view text, bool normed_keys) {
    const auto recipe = SpaceRecipe::Parse(text, normed_keys);
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    const auto again = SpaceRecipe::Parse(PipelineOf(*recipe));
    EXPECT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(PipelineOf(*again), PipelineOf(*recipe));
    return recipe->cold->text();
  };
  EXPECT_EQ(cold("auto", false), "kvstow(divergence=0.01)");
  EXPECT_EQ(cold("auto(divergence=0.0001)", false), "kvstow(divergence=0.0001)");
  EXPECT_EQ(cold("auto(divergence=0.025)", true), "kvstow(keys=2,divergence=0.025)");
  EXPECT_EQ(cold("auto(divergence=0.025),hot=int8,cold=kvstow", true), "kvstow");
}

}  // namespace
}  // namespace kvstow::testing
