// Fits the cold form of a space of recipe `auto` to pages that it holds, and tests it on others.
//
// Nobody needs to send anything but pages. A fit takes the joint transform
// (kernels/methods/joint_fit.h) of K and V, for runs of one layer and for the longest runs that are
// practical. For each it looks for the step at which pages that were held out lose, as predicted
// (kernels/methods/divergence_meter.h), what the space allows. Where a worker sent statistics of
// the model, transform and prediction go by what the model feels. The form that stores these pages
// in the fewest bytes is the best. The space's own cold form, with a step of its own, takes part
// too. Pages that are damaged, or unlike the others, are left out of all of this (sound_pages.h).
//
// A free function: thread-safe, one core, seconds to minutes. Memory: a few times the square of a
// run's values in doubles, and the pages. Fails with INVALID_ARGUMENT for pages that are not
// the space's, and for too few of them.
#ifndef KVSTOW_SERVICE_FITTING_FIT_H_
#define KVSTOW_SERVICE_FITTING_FIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "service/fitting/fit_job.h"

namespace kvstow {

// The values a token of the longest run that a fit takes: time grows with its cube.
inline constexpr size_t kMostFitWidth = 4096;
// With fewer tokens not even runs of one layer are better than `kvstow`.
inline constexpr uint64_t kLeastFitTokens = 2048, kLeastHeldOutTokens = 256;

// The least for a transform of a space's layers. Wider layers than kMostFitWidth get none.
uint64_t LeastFitTokens(const KvSpec& spec);

// A form holds while pages that it was not fitted on cost at most so many times the target.
inline constexpr double kHolds = 1.25;

// Makes the codec of a form; its calibration, all zeros = none, is in `calibrations`. Fails as
// MakeCodec does.
absl::StatusOr<std::shared_ptr<const Codec>> CodecOfForm(const std::string& recipe,
                                                         const CalibrationId& calibration,
                                                         const KvSpec& spec,
                                                         const CalibrationStore& calibrations);

absl::StatusOr<FitOutcome> RunFit(const FitJob& job);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_FITTING_FIT_H_
