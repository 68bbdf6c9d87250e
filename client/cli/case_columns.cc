#include "client/cli/case_columns.h"

#include <algorithm>

#include "base/status_macros.h"
#include "client/page_columns.h"

namespace kvstow::cli {

absl::StatusOr<CaseColumns> CaseColumns::Read(const CasePages& pages,
                                              const std::string& attention) {
  CaseColumns out;
  if (attention == "none") return out;
  KVSTOW_ASSIGN_OR_RETURN(out.attention_, CaseAttention::Read(pages.file));
  out.names_ = {"attn_sum"};
  if (attention == "window") {
    out.names_ = {"attn_window", "attn_window_var", "attn_last", "attn_hits"};
  }
  KVSTOW_RETURN_IF_ERROR(out.attention_->Need(out.names_[0]));
  return out;
}

std::vector<PageColumn> CaseColumns::Page(const CasePages& pages, size_t page) const {
  if (!attention_.has_value()) return {};
  AttentionColumns all = attention_->Page(pages.First(page), pages.Count(page));
  std::erase_if(all, [&](const auto& column) {
    return std::find(names_.begin(), names_.end(), column.first) == names_.end();
  });
  std::vector<PageColumn> out = PageColumnsOf(all, pages.spec.kv_heads);
  for (PageColumn& column : out) column.context = pages.tokens();
  return out;
}

}  // namespace kvstow::cli
