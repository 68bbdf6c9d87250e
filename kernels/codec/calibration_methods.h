// The table of methods that have a calibration. A row says how to read the method's section of a
// blob (calibration.h) and how to fit it. A new method adds one row here and one in ops.cc.
//
//   KVSTOW_ASSIGN_OR_RETURN(auto fit, StartCalibration(recipe, spec, stats));
//   for (int pass = 0; pass < fit->passes(); ++pass) {
//     for (page : pages) KVSTOW_RETURN_IF_ERROR(fit->Add(page));
//     KVSTOW_RETURN_IF_ERROR(fit->EndPass());
//   }
//   KVSTOW_ASSIGN_OR_RETURN(const std::string blob, fit->Finish());
//
// Thread-safe; rows live for ever.
#ifndef KVSTOW_KERNELS_CODEC_CALIBRATION_METHODS_H_
#define KVSTOW_KERNELS_CODEC_CALIBRATION_METHODS_H_

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/recipe/op_arguments.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

struct CalibrationMethod {
  absl::string_view name;  // name of its section, and of its op but for `queries`
  SectionParser parse;     // null for `joint`, whose tables are a blob's version 1
  absl::StatusOr<std::unique_ptr<CalibrationFit>> (*start)(const KvSpec& spec,
                                                           const OpArguments& arguments,
                                                           const ModelStats& stats);
};

// Returns null when no method has that name.
const CalibrationMethod* FindCalibrationMethod(absl::string_view name);

// Reads a blob with sections of these methods. Errors are Calibration::Parse's.
absl::StatusOr<std::shared_ptr<const Calibration>> ParseCalibration(std::span<const uint8_t> blob);

// Starts the fit that the recipe's codec needs, or else its policy (query_needs.h). Fails with
// INVALID_ARGUMENT when neither needs one, or when the arguments or the statistics do not fit the
// spec.
absl::StatusOr<std::unique_ptr<CalibrationFit>> StartCalibration(const Recipe& recipe,
                                                                 const KvSpec& spec,
                                                                 const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_CALIBRATION_METHODS_H_
