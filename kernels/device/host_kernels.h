// The host's DeviceCodec and DeviceScorer: the CPU's run codecs and policies on HostBuffers, and so
// the reference of every other.
#ifndef KVSTOW_KERNELS_DEVICE_HOST_KERNELS_H_
#define KVSTOW_KERNELS_DEVICE_HOST_KERNELS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/device_scorer.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeHostCodec(const Recipe& recipe,
                                                           const KvSpec& spec);
absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeHostScorer(const Recipe& recipe,
                                                             const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_HOST_KERNELS_H_
