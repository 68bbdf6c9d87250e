// Tiers with a target of bits, through the server: what replies say of pages that have cooled, and
// what Ages tells of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/pages/age_table.h"
#include "tests/kernels/pages.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kTokens = 64;

class AgeTest : public ServerTest {
 protected:
  void Start(double host_bits, double disk_bits) {
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    config_.host_bits = host_bits;
    config_.disk_bits = disk_bits;
    StartServer();
  }
  void PutPages(const std::string& space, const std::string& recipe, uint32_t count) {
    ASSERT_TRUE(client_->OpenSpace(space, recipe).ok());
    std::vector<PageIn> pages;
    for (uint32_t i = 0; i < count; ++i) {
      pages.push_back({.key = "p" + std::to_string(i),
                       .raw = RandomPage(SmallSpec(), kTokens, i),
                       .tokens = kTokens,
                       .first_position = kTokens * i});
    }
    for (const v1::PutResult& r : client_->Put(space, pages).pages) {
      ASSERT_EQ(r.status(), v1::STORED) << r.message();
    }
  }
  v1::PageReply Reply(const std::string& space, v1::GetPage ask) {
    return client_->Get(space, {std::move(ask)}).pages[0].reply;
  }
  v1::AgesResponse Ages(const std::string& space = "") {
    v1::AgesRequest request;
    request.set_space(space);
    v1::AgesResponse response;
    EXPECT_TRUE(client_->admin().Ages(client_->Context().get(), request, &response).ok());
    return response;
  }
  void EmptyHost() {
    v1::EvictRequest evict;
    evict.set_tier("host");
    v1::EvictResponse response;
    ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), evict, &response).ok());
  }
  static double BitsPerValue(const v1::AgeUsage& row) {
    return 8.0 * static_cast<double>(row.encoded_bytes()) / static_cast<double>(row.values());
  }
};

TEST_F(AgeTest, PagesThatCoolToDiskKeepTheDisksBitsAndRepliesSaySo) {
  Start(0, 4.6);
  PutPages("s", "rotated8", 4);
  const v1::PageReply before = Reply("s", Ask("p1"));
  ASSERT_EQ(Ages().rows_size(), 1);
  EXPECT_EQ(Ages().rows(0).tier(), "host");
  EXPECT_EQ(Ages().rows(0).levels(), 3);
  EmptyHost();
  ASSERT_EQ(Ages("s").rows_size(), 1);
  const v1::AgeUsage row = Ages("s").rows(0);
  EXPECT_EQ(row.tier(), "disk");
  EXPECT_EQ(row.idle_from_ms(), 0u);
  EXPECT_EQ(row.idle_below_ms(), 60'000u);
  EXPECT_EQ(row.pages(), 4u);
  EXPECT_EQ(row.tokens(), 4 * kTokens);
  EXPECT_EQ(row.levels(), 2);
  EXPECT_LE(BitsPerValue(row), 4.6);
  EXPECT_GT(BitsPerValue(row), 4.2);

  v1::GetPage all = Ask("p0");
  all.set_min_levels(3);
  EXPECT_EQ(Reply("s", all).status(), v1::MISS) << "before anything is read";
  const v1::PageReply after = Reply("s", Ask("p1"));
  EXPECT_EQ(after.status(), v1::HIT);
  EXPECT_EQ(after.tier(), "disk");
  EXPECT_EQ(after.levels(), 2u);
  EXPECT_EQ(after.levels_stored(), 3u);
  EXPECT_LT(after.stored_bytes(), before.stored_bytes());
  EXPECT_GT(after.estimated_error(), 10 * before.estimated_error());
}

TEST_F(AgeTest, ExactPagesAreUntouched) {
  Start(2, 1);
  PutPages("exact", "raw", 2);
  PutPages("s", "rotated8", 2);
  EmptyHost();
  EXPECT_EQ(client_->Get("exact", {Ask("p1")}).pages[0].data, RandomPage(SmallSpec(), kTokens, 1));
  EXPECT_TRUE(Reply("exact", Ask("p0")).exact());
  EXPECT_EQ(Reply("s", Ask("p0")).levels(), 1u) << "the base stays, however low the target";
  const v1::AgesResponse exact = Ages("exact");
  ASSERT_EQ(exact.rows_size(), 1);
  EXPECT_GT(BitsPerValue(exact.rows(0)), 16);
  EXPECT_EQ(exact.pages(), 2u);
  v1::AgesRequest unknown;
  unknown.set_space("nowhere");
  v1::AgesResponse response;
  EXPECT_EQ(client_->admin().Ages(client_->Context().get(), unknown, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// One space with an F16 spec; the facts are made up.
TEST(AgeTable, RowsAreByTierAndAgeAndASampleIsScaledUp) {
  Calibrations calibrations("");
  Spaces spaces(
      {.default_recipe = "int8"}, calibrations, [] { return SpaceId{1}; },
      [](const SpaceRecord&) { return absl::OkStatus(); });
  ASSERT_TRUE(
      spaces.Open(Caller{}, {.name = "s", .spec = SmallSpec(), .recipe = "", .fidelity = {}}).ok());
  const auto page = [](TierId tier, Duration idle, SpaceId space = 1) {
    PageSample sample{.page = {.stored_bytes = 1000, .tokens = 16, .tier = tier},
                      .space = space,
                      .raw_bytes = 4000,
                      .idle = idle};
    return sample;
  };
  using std::chrono::hours, std::chrono::seconds;
  const std::vector<PageSample> sample = {
      page(TierId::kDisk, hours(24)), page(TierId::kHost, seconds(59)),
      page(TierId::kHost, seconds(0)), page(TierId::kHost, seconds(60)),
      page(TierId::kHost, seconds(0), 9)};
  v1::AgesResponse ages;
  TellAges(sample, 50, spaces, ages);
  EXPECT_EQ(ages.pages(), 50u);
  EXPECT_EQ(ages.sampled_pages(), 5u);
  ASSERT_EQ(ages.rows_size(), 3) << "a page of an unknown space is left out";
  EXPECT_EQ(ages.rows(0).tier(), "host");
  EXPECT_EQ(ages.rows(0).pages(), 20u);
  EXPECT_EQ(ages.rows(0).tokens(), 320u);
  EXPECT_EQ(ages.rows(0).values(), 40'000u);
  EXPECT_EQ(ages.rows(0).encoded_bytes(), 20'000u);
  EXPECT_EQ(ages.rows(1).idle_from_ms(), 60'000u);
  EXPECT_EQ(ages.rows(1).idle_below_ms(), 600'000u);
  EXPECT_EQ(ages.rows(2).tier(), "disk");
  EXPECT_EQ(ages.rows(2).idle_from_ms(), 86'400'000u);
  EXPECT_EQ(ages.rows(2).idle_below_ms(), 0u);
}

}  // namespace
}  // namespace kvstow::testing
