#include "kernels/codec/calibration_methods.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/importance/query_needs.h"
#include "kernels/importance/query_tables.h"
#include "kernels/methods/joint_fit.h"
#include "kernels/methods/nuq_run_codec.h"
#include "kernels/methods/pca_run_codec.h"
#include "kernels/methods/predict_run_codec.h"
#include "kernels/methods/rotate_run_codec.h"
#include "kernels/methods/waterfill_run_codec.h"

namespace kvstow {
namespace {

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartJoint(const KvSpec& spec,
                                                           const OpArguments& arguments,
                                                           const ModelStats& stats) {
  JointFitOptions options;
  KVSTOW_ASSIGN_OR_RETURN(options.layers_per_run, arguments.Number("run", 1, 1, kMaxLayers));
  KVSTOW_ASSIGN_OR_RETURN(options.finest_step, arguments.Real("step", 2, 1e-3, 1e3));
  return StartJointFit(spec, options, stats);
}

constexpr CalibrationMethod kMethods[] = {
    {kJointSection, nullptr, StartJoint},
    {kQuerySection, ParseQueryTables, StartQueryFit},
    {"nuq", ParseNuqTables, StartNuqFit},
    {"pca", ParsePcaTables, StartPcaFit},
    {"predict", ParsePredictTables, StartPredictFit},
    {"rotate", ParseRotateTables, StartRotateFit},
    {"waterfill", ParseWaterfillTables, StartWaterfillFit},
};

}  // namespace

const CalibrationMethod* FindCalibrationMethod(absl::string_view name) {
  for (const CalibrationMethod& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const Calibration>> ParseCalibration(std::span<const uint8_t> blob) {
  return Calibration::Parse(blob, [](absl::string_view section) -> SectionParser {
    const CalibrationMethod* const method = FindCalibrationMethod(section);
    return method == nullptr ? nullptr : method->parse;
  });
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartCalibration(const Recipe& recipe,
                                                                 const KvSpec& spec,
                                                                 const ModelStats& stats) {
  for (const Op& op : recipe.ops()) {
    const CalibrationMethod* const method = FindCalibrationMethod(op.name);
    if (method != nullptr) return method->start(spec, OpArguments(op), stats);
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueryNeeds(recipe));
  if (queries.has_value()) return StartQueryFit(spec, OpArguments(Op{}), stats);
  return absl::InvalidArgumentError(
      absl::StrCat("recipe '", recipe.text(), "' needs no calibration"));
}

}  // namespace kvstow
