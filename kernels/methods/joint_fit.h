// Fits the joint transform (joint_run_codec.h) in four passes: means, then second moments, then the
// distribution of the coefficients, then the tokens that the model feels (token_importance.h;
// nothing to do without sensitivities or slopes, token_slopes.h).
//
// It takes K before RoPE and leaves out the first kFirstTokens tokens of a text. It scales vectors
// to what the model feels: ModelStats or, without these, a guess from K and V (cost_prior.h).
// A principal component analysis of a run's K and V together follows. The fit keeps the components
// up to the last that is non-zero in more than one token of a thousand at the finest step.
//
// Memory: some (values a token of a run)^2 doubles for each run, and vectors of one page; it does
// not grow with the number of pages. Time grows with tokens * width^2, and once with width^3 a run.
//
// Deterministic for one SIMD target. Errors are CheckFit's, and CalibrationFit's.
#ifndef KVSTOW_KERNELS_METHODS_JOINT_FIT_H_
#define KVSTOW_KERNELS_METHODS_JOINT_FIT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

struct JointFitOptions {
  uint32_t layers_per_run = 1;
  double finest_step = 1;  // the smallest step that pages will be coded with
};

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartJointFit(const KvSpec& spec,
                                                              const JointFitOptions& options,
                                                              const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_JOINT_FIT_H_
