// Decodes calibrated pages of one batch on a device: coded bytes go there, the plane coder's
// streams are decoded there, then come the product and the raw pages.
//
// Free function; thread-safe. Errors are DeviceJointCodec::Decode's.
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_DECODER_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_DECODER_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/device/joint_on_device.h"

namespace kvstow {

// `batch` has at most kPagesALaunch pages of at most kMostPlaneRows tokens together, unless it is
// one page.
absl::Status DecodeBatch(const JointOnDevice& on, std::span<const JointDecodeJob> pages,
                         JointOnDevice::Batch batch);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_DECODER_H_
