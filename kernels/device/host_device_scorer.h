// The host's DeviceScorer: the CPU's policy on HostBuffers, and so the reference of every other.
#ifndef KVSTOW_KERNELS_DEVICE_HOST_DEVICE_SCORER_H_
#define KVSTOW_KERNELS_DEVICE_HOST_DEVICE_SCORER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device_scorer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeHostDeviceScorer(const Recipe& recipe,
                                                                   const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_HOST_DEVICE_SCORER_H_
