// The attention of a case: the columns that its file holds (`attn_sum.L`, `attn_window.L`,
// `kvzip.L`, `kvzap.L`: F32 [tokens, heads]), the columns that follow from its last queries (`q.L`:
// F16 [queries, heads, head_dim]), and the distribution of these queries.
//
// A value; thread-safe. Errors name the file and the tensor: INVALID_ARGUMENT when its shape does
// not fit or it holds NaN or Inf, NOT_FOUND when a layer lacks it.
#ifndef KVSTOW_CLIENT_CASE_CASE_ATTENTION_H_
#define KVSTOW_CLIENT_CASE_CASE_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/case/case_file.h"
#include "kernels/importance/importance.h"

namespace kvstow {

class CaseAttention {
 public:
  // Reads the columns of the tensors that the file has.
  static absl::StatusOr<CaseAttention> Read(const CaseFile& file);

  // Returns the columns of tokens [first, first + count).
  AttentionColumns Page(uint32_t first, uint32_t count) const;
  // Fails with INVALID_ARGUMENT, which names the column, when the case lacks it.
  absl::Status Need(const std::string& column) const;
  // Returns null when the case has no queries.
  const QueryStatistics* queries() const { return queries_.has_value() ? &*queries_ : nullptr; }

 private:
  absl::Status ReadColumn(const CaseFile& file, const std::string& name);
  absl::Status ReadQueries(const CaseFile& file);

  uint32_t tokens_ = 0;
  AttentionColumns columns_;  // of all tokens
  std::optional<QueryStatistics> queries_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CASE_CASE_ATTENTION_H_
