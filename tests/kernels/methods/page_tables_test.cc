#include "kernels/methods/page_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/digest.h"

namespace kvstow {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;

constexpr uint32_t kLevels = 4, kTokens = 256;

// Gaussian coefficients, spread as their rows say, but for factors and means.
struct Page {
  PlaneLayout layout;
  std::vector<int32_t> q;
  std::vector<uint8_t> energies = std::vector<uint8_t>(kTokens, kPlaneEnergies / 2);
};

Page MakePage(double factor, double mean, size_t width = 200) {
  std::mt19937 random(3);
  Page page;
  page.layout.levels = kLevels;
  page.layout.tokens_per_stream = kTokens;
  page.layout.classed = true;
  for (size_t i = 0; i < width; ++i) {
    const auto row = static_cast<int16_t>(16 - static_cast<int>(i % 20));
    page.layout.rows.push_back(row);
    const double sigma = std::exp2((row - kPlaneUnitRow) / 4.0 + kLevels - 1);
    std::normal_distribution<double> normal(sigma * mean, sigma * factor);
    for (uint32_t t = 0; t < kTokens; ++t) {
      const double c = normal(random);
      const auto magnitude = static_cast<int32_t>(std::abs(c) + 1 - kPlaneDeadZone);
      page.q.push_back(c < 0 ? -magnitude : magnitude);
    }
  }
  return page;
}

PageTables Fit(const Page& page) {
  return PageTablesFit(UniversalPlaneTables(), kLevels)
      .Fit(page.layout, page.q, OrderByClass(page.energies, kTokens));
}

size_t Bytes(const Page& page, const PageTables& tables) {
  PlaneLayout layout = page.layout;
  Adapt(tables, layout);
  const PlaneCoder coder(layout, UniversalPlaneTables(), PlaneLookups::Universal());
  std::string out;
  PutPageTables(tables, out);
  size_t sum = out.size();
  for (const std::string& body : coder.Encode(page.q, page.energies, kTokens)) sum += body.size();
  return sum;
}

TEST(PageTables, AreEmptyWhereThePageIsAsCalibrated) {
  const PageTables tables = Fit(MakePage(1, 0));
  EXPECT_THAT(tables.rows, IsEmpty());
  EXPECT_THAT(tables.tilts, IsEmpty());
}

TEST(PageTables, FindSpreadsThatTheCalibrationDoesNotKnow) {
  const Page page = MakePage(2, 0);  // an octave of amplitude is 4 rows
  const PageTables tables = Fit(page);
  ASSERT_EQ(tables.rows.size(), 200u);
  EXPECT_THAT(tables.rows, Each(AllOf(Ge(2), Le(6))));
  EXPECT_LT(Bytes(page, tables) * 100, Bytes(page, {}) * 95);
}

TEST(PageTables, FindSignsThatAreNotEven) {
  const Page page = MakePage(0.7, 0.8);
  const PageTables tables = Fit(page);
  ASSERT_EQ(tables.tilts.size(), 200u);
  EXPECT_THAT(tables.tilts, Each(Ge(1)));
  PageTables no_tilts = tables;
  no_tilts.tilts.clear(), no_tilts.tilts_spread = 0;
  EXPECT_LT(Bytes(page, tables) * 100, Bytes(page, no_tilts) * 95);
}

TEST(PageTables, ComeBack) {
  for (const Page& page : {MakePage(1, 0), MakePage(2, 0), MakePage(0.7, 0.8)}) {
    const PageTables tables = Fit(page);
    std::string out;
    PutPageTables(tables, out);
    const size_t size = out.size();
    out += "behind";
    std::span<const uint8_t> bytes = AsBytes(out);
    const auto back = GetPageTables(bytes, page.layout.rows.size());
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->rows, tables.rows);
    EXPECT_EQ(back->tilts, tables.tilts);
    EXPECT_EQ(bytes.size(), 6u);
    for (size_t cut = 0; cut < size; ++cut) {
      std::span<const uint8_t> part = AsBytes(out).first(cut);
      EXPECT_EQ(GetPageTables(part, page.layout.rows.size()).status().code(),
                absl::StatusCode::kDataLoss);
    }
  }
  const std::string wrong(1, '\x0b');  // a spread of 11
  std::span<const uint8_t> bytes = AsBytes(wrong);
  EXPECT_EQ(GetPageTables(bytes, 3).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvstow
