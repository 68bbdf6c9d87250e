// Encodes calibrated pages of one batch on a device: the transform, the page's own tables, the
// gains and the plane coder's streams are made there; coded bytes come to the host, which puts
// bodies together.
//
// Free function; thread-safe. Errors are DeviceJointCodec::Encode's.
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_ENCODER_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_ENCODER_H_

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/joint_on_device.h"

namespace kvstow {

// `batch` has at most kPagesALaunch pages of at most kMostPlaneRows (joint_on_device.h)
// tokens together,
// unless it is one page. `out` has an entry for each page of the call; those of the batch are
// written.
absl::Status EncodeBatch(const JointOnDevice& on, std::span<const JointEncodeJob> pages,
                         JointOnDevice::Batch batch, std::span<JointPage> out);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_ENCODER_H_
