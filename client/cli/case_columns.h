// The attention columns of a case that put and report send along with its pages.
#ifndef KVSTOW_CLIENT_CLI_CASE_COLUMNS_H_
#define KVSTOW_CLIENT_CLI_CASE_COLUMNS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/case_attention.h"
#include "client/cli/case_pages.h"

namespace kvstow::cli {

class CaseColumns {
 public:
  // What --attention names, of what the case has or what follows from its queries: "none"; "sum",
  // which is attn_sum; or "window", which is attn_window, attn_window_var, attn_last and attn_hits.
  // INVALID_ARGUMENT when the case lacks the first of these.
  static absl::StatusOr<CaseColumns> Read(const CasePages& pages, const std::string& attention);

  std::vector<PageColumn> Page(const CasePages& pages, size_t page) const;

 private:
  std::optional<CaseAttention> attention_;
  std::vector<std::string> names_;
};

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_CASE_COLUMNS_H_
