// Reports the outcome of verbs that act on each page of a case: del, pin, unpin.
#ifndef KVSTOW_CLIENT_CLI_PAGE_OUTCOMES_H_
#define KVSTOW_CLIENT_CLI_PAGE_OUTCOMES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/cli.h"

namespace kvstow::cli {

// Prints how many pages were `done_word` ("deleted"), missed, refused and unavailable. Returns the
// exit code: kFailed when one was refused or unavailable, else kMiss when none was done.
int ReportOutcomes(const OutputFlags& flags, const std::string& done_word,
                   const absl::StatusOr<std::vector<PageOutcome>>& outcomes);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PAGE_OUTCOMES_H_
