// Attention columns from workers: named, F16 [layers, tokens, kv_heads], beside a page that is put
// or in a report on a stored page.
//
// The input is not trusted: these functions check names, sizes and values first. Free functions;
// thread-safe. Errors are INVALID_ARGUMENT and name the column.
#ifndef KVSTOW_SERVICE_PAGES_ATTENTION_COLUMNS_H_
#define KVSTOW_SERVICE_PAGES_ATTENTION_COLUMNS_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/importance/importance.h"
#include "kernels/page/page.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

inline constexpr int kMaxColumns = 8;  // of one page

// Checks name, count of queries and size of a column of a page of `tokens` tokens.
absl::Status CheckColumn(const KvSpec& spec, uint32_t tokens, absl::string_view name,
                         uint64_t queries, uint64_t bytes);
// Returns the scores of a column that passed; NaN and Inf are errors.
absl::StatusOr<AttentionColumn> ReadColumn(const KvSpec& spec, absl::string_view name,
                                           uint64_t queries, std::span<const uint8_t> scores);

// Checks the columns of a page that is put: each as above, none twice, at most kMaxColumns.
absl::Status CheckColumns(const KvSpec& spec, const v1::PutPage& page);
uint64_t ColumnBytes(const v1::PutPage& page);
uint64_t MostColumnBytes(const KvSpec& spec);  // of a page of the space
// Returns the columns of a page that passed. `scores` holds those of all columns, one after the
// other.
absl::StatusOr<AttentionColumns> ReadColumns(const KvSpec& spec, const v1::PutPage& page,
                                             std::span<const uint8_t> scores);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_ATTENTION_COLUMNS_H_
