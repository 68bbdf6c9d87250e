// Calibrated pages as a device's codec (device_joint_codec.h) takes and gives them.
//
// Values.
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_JOBS_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_JOBS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/shared_bytes.h"
#include "kernels/device/device.h"
#include "kernels/page/encoded_page.h"

namespace kvstow {

// The bound of squared error over energy, for K or V of a layer of a page. docs/GPU.md has measured
// values.
inline constexpr double kJointDeviceError = 5e-5;

struct JointEncodeJob {
  uint32_t tokens = 0;  // 1..spec.page_tokens
  uint64_t first_position = 0;
  const DeviceBuffer* raw = nullptr;  // PageBytes(spec, tokens) bytes
};

// A coded page. Its header (key, recipe, digest of the raw page) makes it an EncodedPage.
struct JointPage {
  // False: the page has NaN or Inf, or values far outside the calibration's range. The CPU codes
  // it.
  bool coded = false;
  // As PageHeader::token_ids; empty where no token is known.
  std::vector<TokenId> token_ids;
  std::vector<SegmentInfo> segments;  // with gains and digests
  std::vector<SharedBytes> bodies;
};

struct JointDecodeJob {
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  std::span<const SharedBytes> bodies;      // of the first segments: one or more whole levels
  DeviceBuffer* raw = nullptr;              // PageBytes(spec, tokens) bytes or more
  std::span<const TokenId> token_ids = {};  // of the header: one for each token, or none
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_JOBS_H_
