// Codes pages in the memory of the client's GPU, on that GPU (ClientOptions::gpu_device). The pages
// travel encoded through the host's memory.
//
// A device's codecs work in its own memory, so the coder copies a page within the GPU, to memory of
// this object or from it, one page at a time. The result has the bytes of the CPU's codec. The CPU
// codes what the GPU does not code, or fails with: only the speed differs. The host makes and
// checks digests.
//
// Thread-safe. The functions that Coder and Decoder return use the object and the calibrations, and
// must not outlive them.
#ifndef KVSTOW_CLIENT_TRANSPORT_GPU_CODER_H_
#define KVSTOW_CLIENT_TRANSPORT_GPU_CODER_H_

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/payload/space_payloads.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/device_sharing.h"

namespace kvstow {

// The place on the GPU of a page that travels through the host's memory.
struct HostCopy {
  std::span<const uint8_t> from = {};
  std::span<uint8_t> to = {};
  bool came = false;  // the page is on the GPU, and not in the host's copy
};
using HostCopies = std::map<const uint8_t*, HostCopy>;  // by the begin of the host's copy

class GpuCoder {
 public:
  // Both arguments are of one GPU.
  GpuCoder(std::shared_ptr<Device> device, std::shared_ptr<DeviceSharing> sharing)
      : device_(std::move(device)), sharing_(std::move(sharing)) {}

  // Both return null where the GPU has no codec for the space. The decoder sets `came` in `copies`.
  PageCoder Coder(std::shared_ptr<SpacePayload> space, std::shared_ptr<const HostCopies> copies);
  PageDecoder Decoder(std::shared_ptr<SpacePayload> space, const CalibrationStore& calibrations,
                      std::shared_ptr<HostCopies> copies);

 private:
  absl::StatusOr<EncodedPage> Encode(const SpacePayload& space, const PageToEncode& page,
                                     std::span<const uint8_t> from);
  absl::Status Decode(const SpacePayload& space, const PageHeader& header,
                      std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                      std::span<uint8_t> to);
  // Returns the front of memory_, which has room for the largest page so far.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Room(size_t bytes) KVSTOW_REQUIRES(mu_);

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<DeviceSharing> sharing_;
  Mutex mu_;
  std::shared_ptr<SharedDeviceMemory> memory_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_GPU_CODER_H_
