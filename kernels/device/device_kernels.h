// The codecs, the scorers and the engine of calibrated pages that compute in a device's memory.
// Every Device has one (Device::kernels), so that Device itself is memory and copies. This class
// is a device that computes nothing; the host and GPUs override what they have.
//
// Thread-safe. Its codecs and scorers work on buffers of its own device, which outlives it.
// UNIMPLEMENTED names the part of the recipe or the spec that the device lacks: the caller then
// works on the CPU. INVALID_ARGUMENT is that of MakeCodec (make_codec.h).
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_KERNELS_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_KERNELS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/device_scorer.h"
#include "kernels/device/joint_layout.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  virtual absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                                const KvSpec& spec);
  // A scorer by the recipe's policy. Ignores the ops after the policy.
  virtual absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                                  const KvSpec& spec);
  // The engine that MakeDeviceJointCodec (device_joint_codec.h) needs.
  virtual absl::StatusOr<std::unique_ptr<JointEngine>> NewJointEngine();
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_KERNELS_H_
