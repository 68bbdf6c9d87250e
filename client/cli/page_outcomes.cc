#include "client/cli/page_outcomes.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvstow::cli {

int ReportOutcomes(const OutputFlags& flags, const std::string& done_word,
                   const absl::StatusOr<std::vector<PageOutcome>>& outcomes) {
  if (!outcomes.ok()) return Fail(flags, outcomes.status());
  const auto count = [&](PageOutcome outcome) {
    return std::count(outcomes->begin(), outcomes->end(), outcome);
  };
  const auto done = count(PageOutcome::kHit), missed = count(PageOutcome::kMiss);
  const auto unavailable = count(PageOutcome::kUnavailable);
  const auto refused = static_cast<int64_t>(outcomes->size()) - done - missed - unavailable;
  std::string text = absl::StrCat(done, " pages ", done_word, ", ", missed, " were not there, ",
                                  refused, " were refused", refused > 0 ? " (leased)\n" : "\n");
  if (unavailable > 0) {
    absl::StrAppend(&text, unavailable, " may still be on disk, which refuses writes: try again\n");
  }
  Print(flags,
        {{done_word, done}, {"missed", missed}, {"refused", refused}, {"unavailable", unavailable}},
        text);
  if (refused + unavailable > 0) return kFailed;
  return done == 0 ? kMiss : kDone;
}

}  // namespace kvstow::cli
