#include "service/ops/status_page.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "service/ops/http.h"

namespace kvstow {
namespace {

constexpr char kHead[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>kvstow</title><style>"
    "body{font:15px system-ui,sans-serif;margin:2em;max-width:60em}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em .8em;border-bottom:1px solid #ccc;text-align:left}"
    "td.n{text-align:right}</style>";

std::string Row(std::initializer_list<std::string> cells) {
  std::string out = "<tr>";
  const char* open = "<td>";  // the first cell is a name, the others are numbers
  for (const std::string& cell : cells) {
    absl::StrAppend(&out, open, EscapeHtml(cell), "</td>");
    open = "<td class=n>";
  }
  return out + "</tr>";
}

std::string Table(const std::vector<std::string>& titles, const std::string& rows) {
  return absl::StrCat("<table><tr><th>", absl::StrJoin(titles, "</th><th>"), "</th></tr>", rows,
                      "</table>");
}

std::string Ratio(uint64_t raw, uint64_t encoded) {
  return encoded == 0 ? "-" : absl::StrFormat("%.2f x", static_cast<double>(raw) / encoded);
}

template <typename Map>
std::string Pairs(const Map& pairs) {
  std::string rows;
  const std::map<std::string, std::string> sorted(pairs.begin(), pairs.end());
  for (const auto& [name, value] : sorted) absl::StrAppend(&rows, Row({name, value}));
  return rows;
}

}  // namespace

std::string StatusPage(const v1::StatusResponse& status, const v1::UsageResponse& usage) {
  std::string out = kHead;
  absl::StrAppend(&out, "<h1>kvstow ", EscapeHtml(status.version()), "</h1><p>",
                  status.ready() ? "Serving" : "Not ready", " on ", EscapeHtml(status.device()),
                  ", up ", absl::FormatDuration(absl::Seconds(status.uptime_ms() / 1000)), ", ",
                  status.recovered_pages(), " pages came back at start, ", usage.leases(),
                  " leases, ", usage.pinned_pages(),
                  " pinned pages. <a href=\"/metrics\">metrics</a></p>");
  std::string rows;
  for (const v1::TierUsage& t : usage.tiers()) {
    absl::StrAppend(
        &rows,
        Row({t.tier(), t.budget_bytes() == 0 ? "not used" : FormatSize(t.budget_bytes()),
             FormatSize(t.encoded_bytes()), absl::StrCat(t.pages()), absl::StrCat(t.segments())}));
  }
  absl::StrAppend(&out, "<h2>Tiers</h2>",
                  Table({"tier", "budget", "encoded", "pages", "segments"}, rows));
  rows.clear();
  for (const v1::SpaceUsage& s : usage.spaces()) {
    absl::StrAppend(&rows,
                    Row({s.space(), s.spec().model(), s.recipe(), v1::Fidelity_Name(s.fidelity()),
                         absl::StrCat(s.pages()), FormatSize(s.raw_bytes()),
                         FormatSize(s.encoded_bytes()), Ratio(s.raw_bytes(), s.encoded_bytes())}));
  }
  absl::StrAppend(
      &out, "<h2>Spaces</h2>",
      Table({"space", "model", "recipe", "fidelity", "pages", "raw", "encoded", "ratio"}, rows));
  absl::StrAppend(&out, "<h2>Configuration</h2>",
                  Table({"setting", "value"}, Pairs(status.config())), "<h2>Libraries</h2>",
                  Table({"library", "version"}, Pairs(status.libraries())));
  return out;
}

}  // namespace kvstow
