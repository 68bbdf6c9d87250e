// What a case says of attention: the columns that its file holds (`attn_sum.L`, `attn_window.L`,
// `kvzip.L`, `kvzap.L`: F32 [tokens, heads]), those that follow from its last queries (`q.L`
// [queries, heads, head_dim]), and the distribution of these queries.
//
// A value; thread-safe. Errors: INVALID_ARGUMENT with the file and the tensor whose shape does not
// fit.
#ifndef KVSTOW_CLIENT_CASE_ATTENTION_H_
#define KVSTOW_CLIENT_CASE_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/case_file.h"
#include "kernels/importance/importance.h"

namespace kvstow {

class CaseAttention {
 public:
  // Tensors that the file lacks are columns that it lacks.
  static absl::StatusOr<CaseAttention> Read(const CaseFile& file);

  // The columns of tokens [first, first + count).
  AttentionColumns Page(uint32_t first, uint32_t count) const;
  // INVALID_ARGUMENT naming what the case lacks, when it has no such column.
  absl::Status Need(const std::string& column) const;
  // Null when the case has no queries.
  const QueryStatistics* queries() const { return queries_.has_value() ? &*queries_ : nullptr; }

 private:
  absl::Status ReadColumn(const CaseFile& file, const std::string& name);
  absl::Status ReadQueries(const CaseFile& file);

  uint32_t tokens_ = 0;
  AttentionColumns columns_;  // of all tokens
  std::optional<QueryStatistics> queries_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CASE_ATTENTION_H_
