// The calibrations that a process has loaded. Thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_CALIBRATION_STORE_H_
#define KVSTOW_KERNELS_CODEC_CALIBRATION_STORE_H_

#include <map>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/calibration/calibration.h"
#include "kernels/page/page.h"

namespace kvstow {

class CalibrationStore {
 public:
  // Returns the store of a process that has loaded none.
  static const CalibrationStore& Empty();

  // Adds a blob, unless the store has it already. Errors are ParseCalibration's.
  absl::StatusOr<std::shared_ptr<const Calibration>> Add(std::span<const uint8_t> blob);
  void Add(std::shared_ptr<const Calibration> calibration);
  // Returns null when no calibration has that id.
  std::shared_ptr<const Calibration> Find(const CalibrationId& id) const;
  // Forgets one. What uses it keeps it.
  void Remove(const CalibrationId& id);
  // Returns the calibration of this shape that has the section need.section and an id that begins
  // with need.blob. One that a server fitted by itself (FitNote) must be named in full. Fails with
  // FAILED_PRECONDITION when there is none, and with INVALID_ARGUMENT when there are several.
  absl::StatusOr<std::shared_ptr<const Calibration>> Choose(const KvSpec& spec,
                                                            const CalibrationNeed& need) const;

 private:
  mutable Mutex mutex_;
  std::map<CalibrationId, std::shared_ptr<const Calibration>> calibrations_
      KVSTOW_GUARDED_BY(mutex_);
};

// Returns a store with nothing in it, for recipes that need no calibration.
inline const CalibrationStore& NoCalibrations() { return CalibrationStore::Empty(); }

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_CALIBRATION_STORE_H_
