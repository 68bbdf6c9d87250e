#include "service/ops/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "service/ops/html.h"
#include "service/ops/page_files.h"
#include "service/ops/plot.h"
#include "service/ops/status_charts.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMinuteMs = 60'000;
constexpr char kAttack[] = "\"'><script>alert(1)</script>";

TEST(StatusPage, TextFromOutsideIsEscapedWhereverItStands) {
  StatusFacts facts;
  facts.status.set_version(kAttack);
  facts.status.set_device(kAttack);
  (*facts.status.mutable_config())[kAttack] = kAttack;
  v1::SpaceUsage& space = *facts.usage.add_spaces();
  space.set_space(kAttack);
  space.set_recipe(kAttack);
  space.mutable_spec()->set_model(kAttack);
  space.set_encoded_bytes(1);
  space.set_lookup_hit_keys(1);
  facts.tenants.add_tenants()->set_tenant(kAttack);
  for (v1::CallUsage* call : {facts.activity.add_slow(), facts.activity.add_failing()}) {
    call->set_method(kAttack);
    call->set_space(kAttack);
    call->set_code(kAttack);
  }
  const std::string parts = StatusParts(facts);
  EXPECT_THAT(parts, Not(HasSubstr("<script")));
  EXPECT_THAT(parts, Not(HasSubstr("\"'>")));
  EXPECT_THAT(parts, HasSubstr("&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(StatusPage(parts), HasSubstr(parts));
}

TEST(StatusPage, AnEmptyServerHasAPageToo) {
  const std::string parts = StatusParts({});
  EXPECT_THAT(parts, HasSubstr("No pages yet."));
  EXPECT_THAT(parts, HasSubstr("No prompt has come back yet."));
  EXPECT_THAT(parts, Not(HasSubstr("nan")));
  EXPECT_THAT(parts, Not(HasSubstr("inf")));
}

TEST(StatusPage, TenantsAreThereOnceOneHasAName) {
  StatusFacts facts;
  facts.tenants.add_tenants()->set_encoded_bytes(5);
  EXPECT_THAT(StatusParts(facts), Not(HasSubstr("Top tenants")));
  v1::TenantUsage& tenant = *facts.tenants.add_tenants();
  tenant.set_tenant("blue");
  tenant.set_pages(1234);
  tenant.set_refused(77);
  const std::string parts = StatusParts(facts);
  EXPECT_THAT(parts, HasSubstr("Top tenants"));
  EXPECT_THAT(parts, HasSubstr(">(none)<"));
  EXPECT_THAT(parts, HasSubstr(">blue<"));
  EXPECT_THAT(parts, HasSubstr(">77<"));
}

TEST(StatusPage, EightSpacesWithMostAreThere) {
  StatusFacts facts;
  for (int i = 0; i < 20; ++i) {
    v1::SpaceUsage& space = *facts.usage.add_spaces();
    space.set_space(absl::StrCat("s", 100 + i));
    space.set_encoded_bytes(1000 + i);
  }
  const std::string parts = StatusParts(facts);
  EXPECT_LT(parts.find(">s119<"), parts.find(">s118<"));
  EXPECT_THAT(parts, HasSubstr(">s112<"));
  EXPECT_THAT(parts, Not(HasSubstr(">s111<")));
}

v1::WorkInterval& AddMinute(uint64_t ended_ago_ms, v1::ActivityResponse& activity) {
  v1::WorkInterval& out = *activity.add_intervals();
  out.set_ended_ago_ms(ended_ago_ms);
  out.set_length_ms(kMinuteMs);
  return out;
}

TEST(StatusCharts, WorkOfTheLastHourIsASum) {
  v1::ActivityResponse activity;
  AddMinute(2 * 60 * kMinuteMs, activity).set_lookup_keys(1);
  AddMinute(60 * kMinuteMs, activity).set_lookup_keys(10);
  AddMinute(0, activity).set_lookup_keys(100);
  EXPECT_EQ(WorkWithin(activity, 60 * kMinuteMs).lookup_keys(), 110u);
  EXPECT_EQ(WorkWithin(activity, 60 * kMinuteMs).length_ms(), 2 * kMinuteMs);
}

TEST(StatusCharts, AMinuteWithoutLookUpsIsAGapInTheHitRate) {
  v1::ActivityResponse activity;
  for (const uint64_t ago : {3, 2, 1, 0}) {
    v1::WorkInterval& minute = AddMinute(ago * kMinuteMs, activity);
    if (ago == 2) continue;
    minute.set_lookup_keys(4);
    minute.set_lookup_hit_keys(3);
  }
  const std::string part = HitRatePart(activity);
  // The fourth from the end of twenty minutes, and the last two, which are joined.
  EXPECT_THAT(part, HasSubstr("class=\"line get\" d=\"M800 250H850\""));
  EXPECT_THAT(part, HasSubstr("class=\"line get\" d=\"M900 250H950V250H1000\""));
  EXPECT_THAT(part, HasSubstr("75.0 % of 4 pages"));
  EXPECT_THAT(part, HasSubstr("20 min ago"));
}

TEST(StatusCharts, SixHoursAreJoinedToWhatAPlotCanShow) {
  v1::ActivityResponse activity;
  for (uint64_t ago = 360; ago-- > 0;) {
    AddMinute(ago * kMinuteMs, activity).set_get_payload_bytes(60 << 20);
  }
  const std::string part = BandwidthPart(activity);
  size_t hovers = 0;
  for (size_t at = part.find("class=\"hover\""); at != std::string::npos;
       at = part.find("class=\"hover\"", at + 1)) {
    ++hovers;
  }
  EXPECT_EQ(hovers, 120u);
  EXPECT_THAT(part, HasSubstr("6 h ago"));
  EXPECT_THAT(part, HasSubstr(": 1.00 MiB/s out, 0 B/s in"));
}

TEST(StatusCharts, TheCurveCountsStoredBytes) {
  v1::UsageResponse usage;
  usage.add_tiers()->set_budget_bytes(uint64_t{1} << 30);
  usage.set_raw_bytes(400);
  usage.set_encoded_bytes(100);
  usage.mutable_reuse()->set_references(1000);
  usage.mutable_reuse()->set_infinite_hit_rate(0.9);
  for (const auto& [gib, rate] : {std::pair{3, 0.25}, {5, 0.5}, {9, 0.75}}) {
    v1::ReusePoint& point = *usage.mutable_reuse()->add_curve();
    point.set_raw_bytes(uint64_t(gib) << 30);
    point.set_hit_rate(rate);
  }
  const std::string part = ReusePart(usage);
  EXPECT_THAT(part, HasSubstr("<td class=\"n\">now</td><td class=\"n\">25.0 %</td>"));  // 4 GiB raw
  EXPECT_THAT(part, HasSubstr("<td class=\"n\">2x</td><td class=\"n\">50.0 %</td>"));
  EXPECT_THAT(part, HasSubstr("<td class=\"n\">4x</td><td class=\"n\">75.0 %</td>"));
  EXPECT_THAT(part, HasSubstr("90.0 %"));
}

TEST(Html, NumbersAreForPeople) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1'234'567), "1,234,567");
  EXPECT_EQ(RateText(1 << 20, 0.5), "2.00 MiB/s");
  EXPECT_EQ(RateText(1 << 20, 0), "0 B/s");
  EXPECT_EQ(ShareText(1, 3), "33.3 %");
  EXPECT_EQ(ShareText(0, 0), "-");
  EXPECT_EQ(RatioText(382, 100), "3.82x");
  EXPECT_EQ(RatioText(1, 0), "-");
  EXPECT_EQ(MillisText(0), "-");
  EXPECT_EQ(MillisText(0.42), "0.42 ms");
  EXPECT_EQ(MillisText(999), "999 ms");
  EXPECT_EQ(MillisText(1210), "1.21 s");
  EXPECT_EQ(AgeText(59'999), "59 s");
  EXPECT_EQ(AgeText(125 * kMinuteMs), "2 h 5 min");
  EXPECT_EQ(AgeText(6 * 60 * kMinuteMs), "6 h");
  EXPECT_EQ(AgeText(97 * 60 * kMinuteMs), "4 d 1 h");
}

TEST(Plot, ABarIsAsLongAsItsShareAndStaysInside) {
  const std::string bar = BarSvg({{0.25, 0.5, "host"}, {0.5, 1.5, "disk"}}, 2, "a <label>");
  EXPECT_THAT(bar, HasSubstr("class=\"host\" x=\"25%\" width=\"25%\""));
  EXPECT_THAT(bar, HasSubstr("class=\"disk\" x=\"50%\" width=\"100%\""));
  EXPECT_THAT(bar, HasSubstr("class=\"mark\" x1=\"99.7%\""));
  EXPECT_THAT(bar, HasSubstr("aria-label=\"a &lt;label&gt;\""));
}

TEST(PageFiles, AreThereAndNothingElseIs) {
  for (const char* path : {"/page.html", "/page.css", "/page.js", "/icon.svg"}) {
    ASSERT_NE(PageFile(path), nullptr) << path;
    EXPECT_FALSE(PageFile(path)->type.empty()) << path;
    EXPECT_FALSE(PageFile(path)->text.empty()) << path;
  }
  for (const char* path : {"/", "", "/page", "/../page.css", "/page.css/"}) {
    EXPECT_EQ(PageFile(path), nullptr) << path;
  }
}

}  // namespace
}  // namespace kvstow
