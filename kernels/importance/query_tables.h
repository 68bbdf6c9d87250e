// The distribution of a model's queries as section `queries` of a calibration blob (calibration.h).
// The ops `expected`, `query_direction` and `trigonometric` read it. It belongs to the model, so
// one blob serves every page and every session.
//
// A blob is made of the statistics of texts, each with one page:
//   codec calibrate --recipe expected-attention ... CASE...    PageToEncode::queries of each case
// or of the statistics of one alone (QueryCalibration). docs/FORMAT.md has the bytes.
//
// Tables are immutable; free functions, thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_QUERY_TABLES_H_
#define KVSTOW_KERNELS_IMPORTANCE_QUERY_TABLES_H_

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/importance/importance.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

inline constexpr absl::string_view kQuerySection = "queries";

struct QueryTables final : CalibratedTables {
  QueryStatistics statistics;
};

// Fails with INVALID_ARGUMENT unless the statistics have the layers, the dimension and a multiple
// of the KV heads of the spec, and vectors of these sizes. Does not look at `direction`.
absl::Status CheckQueryShape(const KvSpec& spec, const QueryStatistics& queries);

// Returns a blob with these statistics alone. Reads only [r][c], c <= r, of the covariance. Fails
// with INVALID_ARGUMENT for a wrong shape, for NaN and Inf, and for a variance or magnitude below
// 0.
absl::StatusOr<std::string> QueryCalibration(const KvSpec& spec, const QueryStatistics& queries);

// The parser and the start of the fit (codec/calibrate.h). The fit counts each page with queries
// alike, whatever their number: it takes mean and covariance of the mixture. Pages without queries
// count for nothing. The fit fails with FAILED_PRECONDITION when none had any.
absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseQueryTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);
absl::StatusOr<std::unique_ptr<CalibrationFit>> StartQueryFit(const KvSpec& spec,
                                                              const OpArguments& arguments,
                                                              const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_QUERY_TABLES_H_
