#include "service/ops/html.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/bytes.h"

namespace kvstow {

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

Cell Cell::Html(std::string html) {
  Cell cell("");
  cell.html_ = std::move(html);
  return cell;
}

void HtmlTable::Add(const std::vector<Cell>& row) {
  absl::StrAppend(&rows_, "<tr>");
  for (size_t i = 0; i < columns_.size() && i < row.size(); ++i) {
    const absl::string_view classes = columns_[i].classes;
    absl::StrAppend(&rows_, "<td");
    if (!classes.empty()) absl::StrAppend(&rows_, " class=\"", classes, "\"");
    if (absl::StrContains(classes, "name")) {
      absl::StrAppend(&rows_, " title=\"", row[i].text(), "\"");
    }
    absl::StrAppend(&rows_, ">", row[i].html(), "</td>");
  }
  absl::StrAppend(&rows_, "</tr>");
}

std::string HtmlTable::Finish() const {
  std::string head;
  for (const Column& column : columns_) {
    absl::StrAppend(&head, "<th scope=\"col\"");
    if (*column.classes != 0) absl::StrAppend(&head, " class=\"", column.classes, "\"");
    absl::StrAppend(&head, ">", column.title, "</th>");
  }
  return absl::StrCat("<div class=\"scroll\"><table><thead><tr>", head, "</tr></thead><tbody>",
                      rows_, "</tbody></table></div>");
}

std::string CountText(uint64_t count) {
  std::string out = absl::StrCat(count);
  for (size_t at = out.size(); at > 3; at -= 3) out.insert(at - 3, 1, ',');
  return out;
}

std::string RateText(double bytes, double seconds) {
  return FormatSize(seconds > 0 ? static_cast<uint64_t>(bytes / seconds) : 0) + "/s";
}

std::string ShareText(double part, double of) {
  return of > 0 ? absl::StrFormat("%.1f %%", 100 * part / of) : "-";
}

std::string RatioText(uint64_t raw, uint64_t encoded) {
  if (encoded == 0) return "-";
  return absl::StrFormat("%.2fx", static_cast<double>(raw) / static_cast<double>(encoded));
}

std::string MillisText(double ms) {
  if (ms <= 0) return "-";
  if (ms < 10) return absl::StrFormat("%.2f ms", ms);
  if (ms < 1000) return absl::StrFormat("%.0f ms", ms);
  return absl::StrFormat("%.2f s", ms / 1000);
}

std::string AgeText(uint64_t ms) {
  const uint64_t seconds = ms / 1000, minutes = seconds / 60, hours = minutes / 60;
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (minutes < 60) return absl::StrCat(minutes, " min");
  const auto and_more = [](uint64_t more, const char* unit) {
    return more == 0 ? std::string() : absl::StrCat(" ", more, unit);
  };
  if (hours < 24) return absl::StrCat(hours, " h", and_more(minutes % 60, " min"));
  return absl::StrCat(hours / 24, " d", and_more(hours % 24, " h"));
}

}  // namespace kvstow
