// The attention columns of a case that put and report send with its pages.
#ifndef KVSTOW_CLIENT_CLI_CASE_COLUMNS_H_
#define KVSTOW_CLIENT_CLI_CASE_COLUMNS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/case/case_attention.h"
#include "client/cli/case_pages.h"

namespace kvstow::cli {

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

#endif  // KVSTOW_CLIENT_CLI_CASE_COLUMNS_H_
