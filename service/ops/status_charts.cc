#include "service/ops/status_charts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "service/ops/html.h"
#include "service/ops/plot.h"

namespace kvstow {
namespace {

constexpr uint64_t kMinute = 60'000;
constexpr uint64_t kRanges[] = {20 * kMinute, 60 * kMinute, 180 * kMinute, 360 * kMinute};
constexpr uint64_t kShortest = 10'000;
constexpr uint64_t kMostSteps = 120;  // of a plot: what a telephone can show

void Add(const v1::WorkInterval& more, v1::WorkInterval& sum) {
  sum.set_ended_ago_ms(more.ended_ago_ms());
  sum.set_length_ms(sum.length_ms() + more.length_ms());
  sum.set_lookup_keys(sum.lookup_keys() + more.lookup_keys());
  sum.set_lookup_hit_keys(sum.lookup_hit_keys() + more.lookup_hit_keys());
  sum.set_put_raw_bytes(sum.put_raw_bytes() + more.put_raw_bytes());
  sum.set_put_stored_bytes(sum.put_stored_bytes() + more.put_stored_bytes());
  sum.set_get_payload_bytes(sum.get_payload_bytes() + more.get_payload_bytes());
  sum.set_failed_calls(sum.failed_calls() + more.failed_calls());
}

// The time that a plot shows, up to now.
uint64_t RangeOf(const v1::ActivityResponse& activity) {
  if (activity.intervals().empty()) return kRanges[0];
  const v1::WorkInterval& oldest = activity.intervals(0);
  const uint64_t span = oldest.ended_ago_ms() + oldest.length_ms();
  const auto* const fits = std::ranges::lower_bound(kRanges, span);
  return fits != std::end(kRanges) ? *fits : kRanges[3];
}

// Returns the intervals, joined to so many as a plot can show.
std::vector<v1::WorkInterval> Joined(const v1::ActivityResponse& activity, uint64_t range) {
  std::vector<v1::WorkInterval> out;
  v1::WorkInterval sum;
  for (const v1::WorkInterval& interval : activity.intervals()) {
    Add(interval, sum);
    if (sum.length_ms() < range / kMostSteps) continue;
    out.push_back(sum);
    sum.Clear();
  }
  // A step that has only just begun would be a spike.
  if (sum.length_ms() >= kShortest || (out.empty() && sum.length_ms() > 0)) out.push_back(sum);
  return out;
}

struct Span {
  double from, to;
};
Span SpanOf(const v1::WorkInterval& interval, uint64_t range) {
  const auto end = static_cast<double>(interval.ended_ago_ms());
  const auto length = static_cast<double>(interval.length_ms()), all = static_cast<double>(range);
  return {1 - (end + length) / all, 1 - end / all};
}

std::string When(const v1::WorkInterval& interval) {
  return AgeText(interval.ended_ago_ms() + interval.length_ms()) + " ago";
}

double Seconds(const v1::WorkInterval& interval) {
  return static_cast<double>(interval.length_ms()) / 1000;
}

std::string Ticks(uint64_t range) {
  return absl::StrCat("<p class=\"ticks\"><span>", AgeText(range), " ago</span><span>",
                      AgeText(range / 2), " ago</span><span>now</span></p>");
}

// Returns the least power of two that is not below, from 1 MiB on.
double AxisOf(double bytes) {
  return std::exp2(std::max(20.0, std::ceil(std::log2(std::max(bytes, 1.0)))));
}

// The memory of all tiers, in raw bytes at the present compression.
struct Capacity {
  double encoded = 0, ratio = 1;
  double raw() const { return encoded * ratio; }
};
Capacity CapacityOf(const v1::UsageResponse& usage) {
  Capacity out;
  for (const v1::TierUsage& tier : usage.tiers()) {
    out.encoded += static_cast<double>(tier.budget_bytes());
  }
  if (usage.encoded_bytes() > 0) {
    out.ratio = static_cast<double>(usage.raw_bytes()) / static_cast<double>(usage.encoded_bytes());
  }
  return out;
}

// The hit rate that a cache of so many raw bytes would have.
double HitRateOf(const v1::Reuse& reuse, double raw_bytes) {
  double rate = 0;
  for (const v1::ReusePoint& point : reuse.curve()) {
    if (static_cast<double>(point.raw_bytes()) > raw_bytes) break;
    rate = point.hit_rate();
  }
  return rate;
}

std::string ReuseTable(const v1::Reuse& reuse, const Capacity& now) {
  HtmlTable table({{"memory of all tiers"}, {"", "n"}, {"hit rate", "n"}});
  for (const double times : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    table.Add({FormatSize(static_cast<uint64_t>(times * now.encoded)),
               times == 1 ? std::string("now") : absl::StrFormat("%gx", times),
               ShareText(HitRateOf(reuse, times * now.raw()), 1)});
  }
  table.Add({"without end", "", ShareText(reuse.infinite_hit_rate(), 1)});
  return table.Finish();
}

// Sizes on a logarithmic axis, from a 64th of the present one to four times it, or more where the
// curve still rises.
std::string ReusePlot(const v1::Reuse& reuse, const Capacity& now) {
  const auto last = static_cast<double>(reuse.curve().rbegin()->raw_bytes());
  const double low = now.raw() / 64, high = std::max(4 * now.raw(), std::min(last, 64 * now.raw()));
  const auto x = [&](double raw) { return std::log(raw / low) / std::log(high / low); };
  Plot plot("Hit rate by memory", "100 %");
  std::vector<Plot::Point> points = {{0, HitRateOf(reuse, low)}};
  for (const v1::ReusePoint& point : reuse.curve()) {
    const auto raw = static_cast<double>(point.raw_bytes());
    if (raw > low && raw < high) points.push_back({x(raw), point.hit_rate()});
  }
  points.push_back({1, HitRateOf(reuse, high)});
  plot.AddCurve("get", points);
  plot.AddVertical(x(now.raw()));
  constexpr int kHovers = 48;
  for (int i = 0; i < kHovers; ++i) {
    const double middle = (i + 0.5) / kHovers;
    const double raw = low * std::pow(high / low, middle);
    plot.AddHover(i / double{kHovers}, (i + 1) / double{kHovers},
                  absl::StrCat(FormatSize(static_cast<uint64_t>(raw / now.ratio)), ": ",
                               ShareText(HitRateOf(reuse, raw), 1)));
  }
  const auto size = [&](double raw) { return FormatSize(static_cast<uint64_t>(raw / now.ratio)); };
  return absl::StrCat(plot.Finish(), "<p class=\"ticks\"><span>", size(low), "</span><span>",
                      size(std::sqrt(low * high)), "</span><span>", size(high), "</span></p>");
}

}  // namespace

v1::WorkInterval WorkWithin(const v1::ActivityResponse& activity, uint64_t within_ms) {
  v1::WorkInterval sum;
  for (const v1::WorkInterval& interval : activity.intervals()) {
    if (interval.ended_ago_ms() <= within_ms) Add(interval, sum);
  }
  return sum;
}

std::string HitRatePart(const v1::ActivityResponse& activity) {
  const uint64_t range = RangeOf(activity);
  Plot plot("Hit rate of look-ups over the last hours", "100 %");
  std::vector<Plot::Step> steps;
  for (const v1::WorkInterval& work : Joined(activity, range)) {
    if (work.lookup_keys() == 0) continue;
    const auto keys = static_cast<double>(work.lookup_keys());
    const auto hits = static_cast<double>(work.lookup_hit_keys());
    const Span span = SpanOf(work, range);
    steps.push_back({span.from, span.to, hits / keys});
    plot.AddHover(span.from, span.to,
                  absl::StrCat(When(work), ": ", ShareText(hits, keys), " of ",
                               CountText(work.lookup_keys()), " pages"));
  }
  plot.AddSteps("get", steps);
  return absl::StrCat(
      "<section id=\"hits\" class=\"half\"><h2>Hit rate</h2><p class=\"legend\"><span>",
      LineKey("get"), "pages found of pages looked up</span></p>", plot.Finish(), Ticks(range),
      "</section>");
}

std::string BandwidthPart(const v1::ActivityResponse& activity) {
  const uint64_t range = RangeOf(activity);
  const std::vector<v1::WorkInterval> joined = Joined(activity, range);
  const auto get = [](const v1::WorkInterval& w) {
    return static_cast<double>(w.get_payload_bytes()) / Seconds(w);
  };
  const auto put = [](const v1::WorkInterval& w) {
    return static_cast<double>(w.put_raw_bytes()) / Seconds(w);
  };
  double most = 0;
  for (const v1::WorkInterval& work : joined) most = std::max({most, get(work), put(work)});
  const double axis = AxisOf(most);
  Plot plot("Bytes a second over the last hours", RateText(axis, 1));
  std::vector<Plot::Step> gets, puts;
  for (const v1::WorkInterval& work : joined) {
    const Span span = SpanOf(work, range);
    gets.push_back({span.from, span.to, get(work) / axis});
    puts.push_back({span.from, span.to, put(work) / axis});
    plot.AddHover(span.from, span.to,
                  absl::StrCat(When(work), ": ", RateText(get(work), 1), " out, ",
                               RateText(put(work), 1), " in"));
  }
  plot.AddSteps("put", puts);
  plot.AddSteps("get", gets);
  return absl::StrCat(
      "<section id=\"bandwidth\" class=\"half\"><h2>Bandwidth</h2><p class=\"legend\"><span>",
      LineKey("get"), "fetched, as it travels</span><span>", LineKey("put"),
      "stored, raw</span></p>", plot.Finish(), Ticks(range), "</section>");
}

std::string ReusePart(const v1::UsageResponse& usage) {
  const v1::Reuse& reuse = usage.reuse();
  const Capacity now = CapacityOf(usage);
  const std::string head =
      "<section id=\"reuse\" class=\"half\"><h2>What more memory would bring</h2>";
  if (reuse.curve().empty() || now.encoded <= 0) {
    return absl::StrCat(head,
                        "<p class=\"empty\">No prompt has come back yet. The curve grows from the "
                        "look-ups of the last hours.</p></section>");
  }
  return absl::StrCat(head, "<p class=\"note\">From ", CountText(reuse.references()),
                      " pages that were looked up,", " at the present ratio of ",
                      absl::StrFormat("%.2fx", now.ratio), "</p><p class=\"legend\"><span>",
                      LineKey("get"), "hit rate by memory</span><span>| memory now</span></p>",
                      ReusePlot(reuse, now), ReuseTable(reuse, now), "</section>");
}

}  // namespace kvstow
