// kvstow report: late attention, on pages that are stored.
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

struct Flags : CaseVerbFlags {
  std::string attention = "sum";
};

struct Totals {
  uint64_t reports = 0, taken = 0, gone = 0, refused = 0;
  std::string refusal;  // the first
};

absl::StatusOr<Totals> ReportCase(const Flags& flags) {
  const auto client = Connect(flags.server);
  KVSTOW_ASSIGN_OR_RETURN(const CasePages pages, OpenCaseInSpace(*client, flags.pages));
  KVSTOW_ASSIGN_OR_RETURN(const CaseColumns columns, CaseColumns::Read(pages, flags.attention));
  std::vector<PageReport> reports;
  for (size_t page = 0; page < pages.keys.size(); ++page) {
    for (PageColumn& column : columns.Page(pages, page)) {
      reports.push_back({.key = pages.keys[page], .column = std::move(column)});
    }
  }
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<ReportResult> results,
                          client->ReportAttention(flags.pages.space, reports));
  Totals totals{.reports = results.size()};
  for (const ReportResult& result : results) {
    totals.taken += result.outcome == PageOutcome::kHit ? 1 : 0;
    totals.gone += result.outcome == PageOutcome::kMiss ? 1 : 0;
    if (result.outcome == PageOutcome::kHit || result.outcome == PageOutcome::kMiss) continue;
    if (++totals.refused == 1) totals.refusal = result.message;
  }
  return totals;
}

int Report(const Flags& flags) {
  const absl::StatusOr<Totals> totals = ReportCase(flags);
  if (!totals.ok()) return FailCase(flags.output, totals.status());
  if (totals->refused > 0) {
    return Fail(flags.output, absl::InvalidArgumentError(absl::StrCat(
                                  totals->refused, " of ", totals->reports,
                                  " reports were refused; the first: ", totals->refusal)));
  }
  Print(flags.output,
        {{"reports", totals->reports}, {"taken", totals->taken}, {"gone", totals->gone}},
        absl::StrCat(totals->taken, " of ", totals->reports, " reports were taken; the pages of ",
                     totals->gone, " are not stored\n"));
  return totals->taken == 0 ? kMiss : kDone;
}

}  // namespace

void AddReport(const Verb& app) {
  const Verb verb = app.Add(
      "report",
      "Report the attention that a case's stored pages received; exit code 3 when none is stored");
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Option("--attention", flags->attention,
              "columns of the case: sum (attn_sum), or window (attn_window, and what else its "
              "last queries give)")
      .OneOf({"sum", "window"})
      .ShowDefault();
  verb.Footer("Examples:\n  kvstow report --space smollm2 --attention window prompt.safetensors");
  verb.Run([flags] { return Report(*flags); });
}

}  // namespace kvstow::cli
