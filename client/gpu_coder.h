// Pages in the memory of the client's GPU that travel encoded by the host's memory, coded by that
// GPU (ClientOptions::gpu_device).
//
// Codecs of a device work in memory of its own, so a page is copied within the GPU, to memory of
// this object or from it; a page at a time. What comes of it has the bytes of the CPU's codec, and
// what the GPU does not code, or fails with, the CPU does: nobody sees a difference but the speed.
// Digests are made and checked on the host.
//
// Thread-safe. What Coder and Decoder return uses the object and the calibrations, and must
// not outlive them.
#ifndef KVSTOW_CLIENT_GPU_CODER_H_
#define KVSTOW_CLIENT_GPU_CODER_H_

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/space_payloads.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/device_sharing.h"

namespace kvstow {

// A page that is on its way by the host's memory: where it is on the GPU, or is to be.
struct HostCopy {
  std::span<const uint8_t> from = {};
  std::span<uint8_t> to = {};
  bool came = false;  // it is there, and not in the host's copy
};
using HostCopies = std::map<const uint8_t*, HostCopy>;  // by where the host's copy begins

class GpuCoder {
 public:
  // Of one GPU.
  GpuCoder(std::shared_ptr<Device> device, std::shared_ptr<DeviceSharing> sharing)
      : device_(std::move(device)), sharing_(std::move(sharing)) {}

  // Null where the GPU has no codec for the space.
  PageCoder Coder(std::shared_ptr<SpacePayload> space, std::shared_ptr<const HostCopies> copies);
  // Says in `copies` what came.
  PageDecoder Decoder(std::shared_ptr<SpacePayload> space, const CalibrationStore& calibrations,
                      std::shared_ptr<HostCopies> copies);

 private:
  absl::StatusOr<EncodedPage> Encode(const SpacePayload& space, const PageToEncode& page,
                                     std::span<const uint8_t> from);
  absl::Status Decode(const SpacePayload& space, const PageHeader& header,
                      std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                      std::span<uint8_t> to);
  // The front of memory_, which is made for the largest page that came.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Room(size_t bytes) KVSTOW_REQUIRES(mu_);

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<DeviceSharing> sharing_;
  Mutex mu_;
  std::shared_ptr<SharedDeviceMemory> memory_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_GPU_CODER_H_
