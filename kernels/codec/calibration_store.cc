#include "kernels/codec/calibration_store.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/calibrate.h"

namespace kvstow {

const CalibrationStore& CalibrationStore::Empty() {
  static const CalibrationStore* const empty = new CalibrationStore;
  return *empty;
}

absl::StatusOr<std::shared_ptr<const Calibration>> CalibrationStore::Add(
    std::span<const uint8_t> blob) {
  KVSTOW_ASSIGN_OR_RETURN(auto calibration, ParseCalibration(blob));
  MutexLock lock(mutex_);
  return calibrations_.try_emplace(calibration->id(), calibration).first->second;
}

void CalibrationStore::Add(std::shared_ptr<const Calibration> calibration) {
  MutexLock lock(mutex_);
  calibrations_.try_emplace(calibration->id(), calibration);
}

std::shared_ptr<const Calibration> CalibrationStore::Find(const CalibrationId& id) const {
  MutexLock lock(mutex_);
  const auto found = calibrations_.find(id);
  return found == calibrations_.end() ? nullptr : found->second;
}

void CalibrationStore::Remove(const CalibrationId& id) {
  MutexLock lock(mutex_);
  calibrations_.erase(id);
}

absl::StatusOr<std::shared_ptr<const Calibration>> CalibrationStore::Choose(
    const KvSpec& spec, const CalibrationNeed& need) const {
  const CalibrationShape shape = ShapeFor(spec, need.layers_per_run);
  MutexLock lock(mutex_);
  std::shared_ptr<const Calibration> chosen;
  for (const auto& [id, calibration] : calibrations_) {
    if (calibration->shape() != shape || !calibration->Has(need.section) ||
        !absl::StartsWith(HexOf(id), need.blob)) {
      continue;
    }
    if (calibration->fit_note().has_value() && HexOf(id) != need.blob) continue;
    if (chosen != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("calibrations ", HexOf(chosen->id()), " and ",
                                                     HexOf(id),
                                                     " both fit: name one with blob=..."));
    }
    chosen = calibration;
  }
  if (chosen == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no calibration ", need.blob, need.blob.empty() ? "" : "... ", "for '", need.section,
        "' of ", shape.layers, " layers in runs of ", shape.layers_per_run, ", ", shape.kv_heads,
        " KV heads of ", shape.head_dim_k, " and ", shape.head_dim_v,
        " is loaded: make one with `kvstow codec calibrate`"));
  }
  return chosen;
}

}  // namespace kvstow
