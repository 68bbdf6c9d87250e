#include "kernels/device/device_kernels.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<DeviceCodec>> DeviceKernels::NewCodec(const Recipe&, const KvSpec&) {
  return absl::UnimplementedError("the device codes no pages: code them with the CPU's codec");
}

absl::StatusOr<std::unique_ptr<DeviceScorer>> DeviceKernels::NewScorer(const Recipe&,
                                                                       const KvSpec&) {
  return absl::UnimplementedError("the device scores no pages: score them with the CPU's policy");
}

absl::StatusOr<std::unique_ptr<JointEngine>> DeviceKernels::NewJointEngine() {
  return absl::UnimplementedError(
      "the device transforms no calibrated pages: code them with the CPU's codec");
}

}  // namespace kvstow
