// Reads calibration blobs, and fits calibrations. Each method is a row of the table of ops (ops.h).
// Sections beside them are the statistics of queries, which policies read, and those of the model,
// which a server's fits read.
//
//   KVSTOW_ASSIGN_OR_RETURN(auto fit, StartCalibration(recipe, spec, stats));
//   for (int pass = 0; pass < fit->passes(); ++pass) {
//     for (page : pages) KVSTOW_RETURN_IF_ERROR(fit->Add(page));
//     KVSTOW_RETURN_IF_ERROR(fit->EndPass());
//   }
//   KVSTOW_ASSIGN_OR_RETURN(const std::string blob, fit->Finish());
//
// Free functions; thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_CALIBRATE_H_
#define KVSTOW_KERNELS_CODEC_CALIBRATE_H_

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// Reads a blob whose sections have these names. Errors are Calibration::Parse's.
absl::StatusOr<std::shared_ptr<const Calibration>> ParseCalibration(std::span<const uint8_t> blob);

// Returns all that a calibration says of its model: section `stats`, and what stands beside it in
// ModelStats. Nothing without that section.
std::optional<ModelStats> ModelStatsOf(const Calibration& calibration);

// Returns the statistics of a model in a blob (calibration/model_stats.h), for runs of any length.
// Fails as ParseCalibration does, and with INVALID_ARGUMENT when it has none or they are of another
// shape than the spec.
absl::StatusOr<ModelStats> ParseModelStats(std::span<const uint8_t> blob, const KvSpec& spec);

// Returns the calibration with other statistics: every error costs `factor` times as much, and
// `power` is that of their sum (ModelStats). Its codes stay the same, and predicted divergences
// change (divergence_meter.h). Fails as ParseCalibration does, and with INVALID_ARGUMENT when it
// has no statistics, the factor is not above 0 or the power does not fit.
absl::StatusOr<std::string> WithScaledCosts(std::span<const uint8_t> blob, double factor,
                                            double power);

// Starts the fit that the recipe's codec needs, or else its policy (query_needs.h). Fails with
// INVALID_ARGUMENT when neither needs one, or when the arguments or the statistics do not fit the
// spec.
absl::StatusOr<std::unique_ptr<CalibrationFit>> StartCalibration(const Recipe& recipe,
                                                                 const KvSpec& spec,
                                                                 const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_CALIBRATE_H_
