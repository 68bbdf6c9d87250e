#include "service/ops/status_page.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/bytes.h"
#include "service/ops/html.h"
#include "service/ops/page_files.h"
#include "service/ops/plot.h"
#include "service/ops/status_charts.h"

namespace kvstow {
namespace {

constexpr uint64_t kMinuteMs = 60'000, kHourMs = 60 * kMinuteMs;
constexpr size_t kTopSpaces = 8;
constexpr int kTopCalls = 10;
constexpr int kTopTenants = 10;

double Share(uint64_t part, uint64_t of) {
  return of == 0 ? 0 : static_cast<double>(part) / static_cast<double>(of);
}

uint64_t CounterOf(const v1::UsageResponse& usage, const std::string& name) {
  const auto found = usage.counters().find(name);
  return found == usage.counters().end() ? 0 : found->second;
}

std::string Part(absl::string_view id, absl::string_view title, absl::string_view content,
                 bool half = false) {
  return absl::StrCat("<section id=\"", id, "\"", half ? " class=\"half\"" : "", "><h2>", title,
                      "</h2>", content, "</section>");
}

std::string Empty(absl::string_view text) {
  return absl::StrCat("<p class=\"empty\">", text, "</p>");
}

std::string Fact(absl::string_view name, absl::string_view value, absl::string_view classes = "") {
  return absl::StrCat("<div><dt>", name, "</dt><dd class=\"", classes, "\">", value, "</dd></div>");
}

std::string HeadPart(const v1::StatusResponse& status) {
  return absl::StrCat(
      "<header id=\"head\"><h1>kvstow</h1><span class=\"state ", status.ready() ? "good" : "bad",
      "\">", status.ready() ? "serving" : "not ready", "</span><span>",
      EscapeHtml(status.version()), "</span><span>", EscapeHtml(status.device()),
      "</span><span>up ", AgeText(status.uptime_ms()),
      "</span><span class=\"links\"><a href=\"/metrics\">metrics</a></span></header>");
}

std::string Figure(absl::string_view name, const std::string& value, const std::string& note,
                   absl::string_view classes = "") {
  return Fact(name, absl::StrCat(value, "<small>", note, "</small>"), classes);
}

std::string FiguresPart(const StatusFacts& facts) {
  const v1::WorkInterval hour = WorkWithin(facts.activity, kHourMs);
  const v1::WorkInterval minute = WorkWithin(facts.activity, kMinuteMs);
  const double seconds = static_cast<double>(minute.length_ms()) / 1000;
  const v1::UsageResponse& usage = facts.usage;
  return absl::StrCat(
      "<dl id=\"figures\">",
      Figure("Hit rate, last hour",
             ShareText(static_cast<double>(hour.lookup_hit_keys()),
                       static_cast<double>(hour.lookup_keys())),
             absl::StrCat("of ", CountText(hour.lookup_keys()), " pages")),
      Figure("Fetched", RateText(static_cast<double>(minute.get_payload_bytes()), seconds),
             "last minute"),
      Figure("Stored", RateText(static_cast<double>(minute.put_raw_bytes()), seconds),
             "last minute, raw"),
      Figure("Held", FormatSize(usage.encoded_bytes()),
             absl::StrCat("for ", FormatSize(usage.raw_bytes()), " raw, ",
                          RatioText(usage.raw_bytes(), usage.encoded_bytes()))),
      Figure("Pages", CountText(usage.pages()),
             absl::StrCat("in ", CountText(static_cast<uint64_t>(usage.spaces_size())),
                          usage.spaces_size() == 1 ? " space" : " spaces")),
      Figure("Failed calls", CountText(hour.failed_calls()), "last hour",
             hour.failed_calls() > 0 ? "bad" : ""),
      "</dl>");
}

std::string TierBar(const v1::TierUsage& tier) {
  const uint64_t scale = std::max({tier.budget_bytes(), tier.raw_bytes(), tier.encoded_bytes()});
  const std::string faint = tier.tier() + " faint";
  return BarSvg(
      {{0, Share(tier.raw_bytes(), scale), faint.c_str()},
       {0, Share(tier.encoded_bytes(), scale), tier.tier().c_str()}},
      Share(tier.budget_bytes(), scale),
      absl::StrCat(tier.tier(), ": ", FormatSize(tier.encoded_bytes()), " of ",
                   FormatSize(tier.budget_bytes()), ", ", FormatSize(tier.raw_bytes()), " raw"));
}

std::string TiersPart(const v1::UsageResponse& usage) {
  HtmlTable table({{"tier", "nowrap"},
                   {"", "bar"},
                   {"encoded", "n"},
                   {"budget", "n"},
                   {"full", "n wide"},
                   {"raw", "n wide"},
                   {"ratio", "n"},
                   {"pages", "n wide"}});
  for (const v1::TierUsage& tier : usage.tiers()) {
    if (tier.budget_bytes() == 0 && tier.encoded_bytes() == 0) continue;
    table.Add({tier.tier(), Cell::Html(TierBar(tier)), FormatSize(tier.encoded_bytes()),
               FormatSize(tier.budget_bytes()),
               ShareText(static_cast<double>(tier.encoded_bytes()),
                         static_cast<double>(tier.budget_bytes())),
               FormatSize(tier.raw_bytes()), RatioText(tier.raw_bytes(), tier.encoded_bytes()),
               CountText(tier.pages())});
  }
  return Part("tiers", "Tiers",
              absl::StrCat("<p class=\"legend\"><span>", AreaKey("host"), "encoded</span><span>",
                           AreaKey("host faint"),
                           "raw, of pages whose base is here</span><span>| budget</span></p>",
                           table.Finish()));
}

std::string IdleText(const v1::AgeUsage& row) {
  if (row.idle_below_ms() == 0) return "over " + AgeText(row.idle_from_ms());
  return "under " + AgeText(row.idle_below_ms());
}

std::string AgesPart(const v1::AgesResponse& ages) {
  if (ages.rows().empty()) return Part("ages", "Bits a token, by age", Empty("No pages yet."));
  HtmlTable table({{"tier", "nowrap"},
                   {"unused", "nowrap"},
                   {"", "bar"},
                   {"bits a token", "n"},
                   {"a value", "n wide"},
                   {"levels", "n wide"},
                   {"pages", "n"}});
  for (const v1::AgeUsage& row : ages.rows()) {
    table.Add(
        {row.tier(), IdleText(row),
         Cell::Html(BarSvg(
             {{0, Share(row.encoded_bytes(), row.raw_bytes()), row.tier().c_str()}}, std::nullopt,
             absl::StrCat(row.tier(), ", ", IdleText(row), ": ", FormatSize(row.encoded_bytes()),
                          " of ", FormatSize(row.raw_bytes()), " raw"))),
         CountText(static_cast<uint64_t>(8 * Share(row.encoded_bytes(), row.tokens()))),
         absl::StrFormat("%.2f", 8 * Share(row.encoded_bytes(), row.values())),
         absl::StrFormat("%.2f", row.levels()), CountText(row.pages())});
  }
  const std::string sampled =
      ages.sampled_pages() < ages.pages()
          ? absl::StrCat(", estimated from ", CountText(ages.sampled_pages()), " pages")
          : "";
  return Part("ages", "Bits a token, by age",
              absl::StrCat("<p class=\"note\">A full bar is the raw page", sampled, "</p>",
                           table.Finish()));
}

std::string PagesBar(const v1::UsageResponse& usage) {
  std::vector<BarPart> parts;
  std::string legend, label = "Pages by tier of their base:";
  uint64_t before = 0;
  for (const v1::TierUsage& tier : usage.tiers()) {
    if (tier.pages() == 0) continue;
    parts.push_back({Share(before, usage.pages()), Share(before + tier.pages(), usage.pages()),
                     tier.tier().c_str()});
    before += tier.pages();
    const std::string text = absl::StrCat(CountText(tier.pages()), " in ", tier.tier());
    absl::StrAppend(&label, " ", text);
    absl::StrAppend(&legend, "<span>", AreaKey(tier.tier().c_str()), text, "</span>");
  }
  return absl::StrCat("<p class=\"legend\">", legend, "</p><div class=\"pages\">",
                      BarSvg(parts, std::nullopt, label), "</div>");
}

std::string PagesPart(const StatusFacts& facts) {
  const v1::UsageResponse& usage = facts.usage;
  const v1::Load& load = facts.activity.load();
  const auto counter = [&](const char* name) { return CounterOf(usage, name); };
  const uint64_t damage = counter("corrupt_segments") + counter("lost_segments") +
                          counter("damaged_records") + counter("damaged_logs");
  const uint64_t disk_errors = counter("disk_errors");
  const auto bad = [](uint64_t count) { return count > 0 ? "bad" : ""; };
  const std::string facts_list = absl::StrCat(
      Fact("leased", absl::StrCat(CountText(load.leased_pages()),
                                  " (leases: ", CountText(usage.leases()), ")")),
      Fact("pinned", CountText(usage.pinned_pages())),
      Fact("wait to be encoded", CountText(load.put_queue_pages())),
      Fact("wait to be read", CountText(load.get_queue_pages())),
      Fact("wait for memory", CountText(load.waiting_gets())),
      Fact("on their way in, out",
           absl::StrCat(FormatSize(load.put_bytes()), ", ", FormatSize(load.get_bytes()))),
      Fact("became cold, since start", CountText(counter("cooled_pages"))),
      Fact("dropped, since start", CountText(counter("dropped_pages"))),
      Fact("came back at start", CountText(counter("recovered_pages"))),
      Fact("damaged copies", CountText(damage), bad(damage)),
      Fact("disk errors", CountText(disk_errors), bad(disk_errors)),
      Fact("streams in, out",
           absl::StrCat(CountText(load.put_streams()), ", ", CountText(load.get_streams()))),
      Fact("direct, local workers", absl::StrCat(CountText(load.direct_connections()), ", ",
                                                 CountText(load.local_sessions()))),
      Fact("memory of the index", FormatSize(load.index_bytes())));
  return Part("pages", "Pages by state",
              absl::StrCat(usage.pages() > 0 ? PagesBar(usage) : Empty("No pages yet."),
                           "<dl class=\"facts\">", facts_list, "</dl>"),
              true);
}

using SpaceList = std::vector<const v1::SpaceUsage*>;

// The spaces with most of something, most first.
SpaceList Top(const v1::UsageResponse& usage, uint64_t (v1::SpaceUsage::*of)() const) {
  SpaceList out;
  for (const v1::SpaceUsage& space : usage.spaces()) out.push_back(&space);
  std::ranges::stable_sort(out, [of](const v1::SpaceUsage* a, const v1::SpaceUsage* b) {
    return (a->*of)() > (b->*of)();
  });
  if (out.size() > kTopSpaces) out.resize(kTopSpaces);
  return out;
}

std::string SpacesByBytesPart(const v1::UsageResponse& usage) {
  HtmlTable table({{"space", "name"},
                   {"model", "name short wide"},
                   {"recipe", "name short"},
                   {"pages", "n"},
                   {"held", "n"},
                   {"ratio", "n wide"}});
  for (const v1::SpaceUsage* s : Top(usage, &v1::SpaceUsage::encoded_bytes)) {
    table.Add({s->space(), s->spec().model(), s->recipe(), CountText(s->pages()),
               FormatSize(s->encoded_bytes()), RatioText(s->raw_bytes(), s->encoded_bytes())});
  }
  return Part(
      "spaces-bytes", "Top spaces by bytes",
      table.empty()
          ? Empty("There are no spaces yet: <code>kvstow put --space NAME CASE</code> makes one.")
          : table.Finish(),
      true);
}

std::string SpacesByHitsPart(const v1::UsageResponse& usage) {
  HtmlTable table({{"space", "name"}, {"looked up", "n"}, {"found", "n wide"}, {"hit rate", "n"}});
  for (const v1::SpaceUsage* s : Top(usage, &v1::SpaceUsage::lookup_hit_keys)) {
    if (s->lookup_keys() == 0) continue;
    table.Add({s->space(), CountText(s->lookup_keys()), CountText(s->lookup_hit_keys()),
               ShareText(static_cast<double>(s->lookup_hit_keys()),
                         static_cast<double>(s->lookup_keys()))});
  }
  return Part(
      "spaces-hits", "Top spaces by hits",
      table.empty() ? Empty("Nobody has looked up a page since the start.") : table.Finish(), true);
}

// Nothing on a server without identities.
std::string TenantsPart(const v1::TenantsResponse& tenants) {
  HtmlTable table({{"tenant", "name"},
                   {"pages", "n"},
                   {"held", "n"},
                   {"ratio", "n wide"},
                   {"came in", "n wide"},
                   {"went out", "n wide"},
                   {"refused", "n"}});
  int named = 0;
  for (int i = 0; i < std::min(kTopTenants, tenants.tenants_size()); ++i) {
    const v1::TenantUsage& t = tenants.tenants(i);
    if (!t.tenant().empty()) ++named;
    table.Add({t.tenant().empty() ? "(none)" : t.tenant(), CountText(t.pages()),
               FormatSize(t.encoded_bytes()), RatioText(t.raw_bytes(), t.encoded_bytes()),
               FormatSize(t.put_bytes()), FormatSize(t.get_bytes()), CountText(t.refused())});
  }
  return named == 0 ? "" : Part("tenants", "Top tenants by bytes", table.Finish(), true);
}

std::string SlowPart(const v1::ActivityResponse& activity) {
  HtmlTable table({{"call", "nowrap"},
                   {"space", "name"},
                   {"slowest", "n"},
                   {"calls", "n wide"},
                   {"last", "n"}});
  for (int i = 0; i < std::min(kTopCalls, activity.slow_size()); ++i) {
    const v1::CallUsage& call = activity.slow(i);
    table.Add({call.method(), call.space(), MillisText(call.slowest_ms()), CountText(call.calls()),
               AgeText(call.ended_ago_ms()) + " ago"});
  }
  return Part("slow", "Slowest calls, last hour",
              table.empty() ? Empty("No call took a millisecond.") : table.Finish(), true);
}

std::string FailingPart(const v1::ActivityResponse& activity) {
  HtmlTable table({{"call", "nowrap"},
                   {"space", "name"},
                   {"answer", "nowrap"},
                   {"calls", "n"},
                   {"last", "n wide"}});
  for (int i = 0; i < std::min(kTopCalls, activity.failing_size()); ++i) {
    const v1::CallUsage& call = activity.failing(i);
    table.Add({call.method(), call.space(), call.code(), CountText(call.calls()),
               AgeText(call.ended_ago_ms()) + " ago"});
  }
  return Part("failing", "Failing calls, last hour",
              table.empty() ? Empty("None.") : table.Finish(), true);
}

template <typename Map>
std::string DetailsPart(absl::string_view id, absl::string_view title, const Map& pairs) {
  HtmlTable table({{"name"}, {"value", "wrap"}});
  const std::map<std::string, std::string> sorted(pairs.begin(), pairs.end());
  for (const auto& [name, value] : sorted) table.Add({name, value});
  return absl::StrCat("<details id=\"", id, "\"><summary>", title, "</summary>", table.Finish(),
                      "</details>");
}

}  // namespace

std::string StatusParts(const StatusFacts& facts) {
  return absl::StrJoin(
      {HeadPart(facts.status), FiguresPart(facts), TiersPart(facts.usage),
       HitRatePart(facts.activity), BandwidthPart(facts.activity), AgesPart(facts.ages),
       ReusePart(facts.usage), PagesPart(facts), SpacesByBytesPart(facts.usage),
       SpacesByHitsPart(facts.usage), TenantsPart(facts.tenants), SlowPart(facts.activity),
       FailingPart(facts.activity), DetailsPart("settings", "Settings", facts.status.config()),
       DetailsPart("libraries", "Libraries", facts.status.libraries())},
      "\n");
}

std::string StatusPage(const std::string& parts) {
  return absl::StrReplaceAll(PageFile("/page.html")->text, {{"@PARTS@", parts}});
}

}  // namespace kvstow
