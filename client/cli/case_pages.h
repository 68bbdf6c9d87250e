// A case, cut into the pages of a space: put, get, summaries, exists, report, del and pin work on
// it.
#ifndef KVSTOW_CLIENT_CLI_CASE_PAGES_H_
#define KVSTOW_CLIENT_CLI_CASE_PAGES_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/case/case_attention.h"
#include "client/case/case_file.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"

namespace kvstow::cli {

// --space and CASE
struct CaseFlags {
  std::string space, path;
};

// The flags of every verb on the pages of a case. Verbs with more flags inherit it.
struct CaseVerbFlags {
  OutputFlags output;
  ServerFlags server;
  CaseFlags pages;
};
void AddCaseVerbFlags(const Verb& verb, CaseVerbFlags& flags);

struct CasePages {
  CaseFile file;
  KvSpec spec;
  std::vector<std::string> keys;  // one for each page, by the chain of key_chain.h

  uint32_t tokens() const { return static_cast<uint32_t>(file.tokens().size()); }
  uint32_t First(size_t page) const { return static_cast<uint32_t>(page) * spec.page_tokens; }
  uint32_t Count(size_t page) const { return std::min(spec.page_tokens, tokens() - First(page)); }
  size_t Bytes(size_t page) const { return PageBytes(spec, Count(page)); }
};

CasePages CutCase(CaseFile file, uint32_t page_tokens);

// Opens the case and cuts it as the space says. Fails with FAILED_PRECONDITION, which names the
// field, when the case's model differs from the space's, and with NOT_FOUND when there is no such
// space or file.
absl::StatusOr<CasePages> OpenCaseInSpace(Client& client, const CaseFlags& flags);
// Prints an error as Fail does. Returns the exit code: kMiss when OpenCaseInSpace found no space of
// that name, for then none of the case's pages is stored.
int FailCase(const OutputFlags& flags, const absl::Status& status);

// Why a page that was found did not come.
struct Stop {
  std::string why;      // "" = all that were found came
  bool failed = false;  // the page is not merely gone, or coarser than asked for
};
// `result` is no hit.
Stop StopOf(const GetResult& result);

// Prints the result for the leading pages of a case, or a miss when `hit_pages` of `json` is 0.
// Returns the exit code: kFailed when the stop is a failure, else kMiss when no page came.
int PrintHits(const CaseVerbFlags& flags, Json json, const Fields& fields, const Stop& stop = {});

// Returns for example "host: 7, disk: 1".
std::string TiersText(const std::map<std::string, uint64_t>& pages_by_tier);

// Prints how many pages were `done_word` ("deleted"), missed, refused and unavailable. Returns the
// exit code: kFailed when one was refused or unavailable, else kMiss when none was done.
int ReportOutcomes(const OutputFlags& flags, const std::string& done_word,
                   const absl::StatusOr<std::vector<PageOutcome>>& outcomes);

// The attention columns of a case that put and report send with its pages.
class CaseColumns {
 public:
  // Reads the columns that --attention names, from the case or its queries: "none"; "sum", which is
  // attn_sum; or "window", which is attn_window, attn_window_var, attn_last and attn_hits. Fails
  // with INVALID_ARGUMENT when the case lacks attn_sum, or attn_window for "window".
  static absl::StatusOr<CaseColumns> Read(const CasePages& pages, const std::string& attention);

  std::vector<PageColumn> Page(const CasePages& pages, size_t page) const;

 private:
  std::optional<CaseAttention> attention_;
  std::vector<std::string> names_;
};

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_CASE_PAGES_H_
