// The server's GPU for local sessions: memory of it that workers on the same GPU share, out of one
// budget, and the coding of pages that lie there.
//
// The GPU codes a page when its recipe is one of devices' (kernels/device/device_codec.h), it is
// wanted whole and it may be coded at all. It decodes calibrated pages too (DeviceCoder). The CPU
// codes all others, and those on which the GPU failed, so an answer never depends on the GPU. The
// host makes and checks digests.
//
// Thread-safe except for a GpuPage, which belongs to its request alone.
#ifndef KVSTOW_SERVICE_TRANSPORTS_LOCAL_GPU_H_
#define KVSTOW_SERVICE_TRANSPORTS_LOCAL_GPU_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/device_sharing.h"
#include "kernels/page/page_to_encode.h"
#include "service/pages/device_coder.h"
#include "service/pages/page_sink.h"
#include "service/spaces/spaces.h"

namespace kvstow {

class LocalGpu {
 public:
  // `device` and `sharing` are of one GPU, and outlive this; this outlives what it shares. `bytes`
  // is the limit over all sessions. `coder` codes calibrated pages on that device.
  LocalGpu(Device& device, DeviceSharing& sharing, uint64_t bytes,
           DeviceCoder& coder = DeviceCoder::None())
      : device_(device), sharing_(sharing), budget_(bytes), coder_(coder) {}

  // Returns memory for a worker on the GPU of that uuid: what it wants, or what is left. The memory
  // counts until it goes. Fails with FAILED_PRECONDITION for another GPU, and with
  // RESOURCE_EXHAUSTED when nothing is left.
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Share(uint64_t wanted,
                                                            absl::string_view uuid);
  uint64_t bytes() const;  // shared bytes

  // Lends memory of at least so many bytes that no worker has. It counts in no budget: as many
  // pieces are kept as calls ran at once.
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> LendPrivate(size_t bytes);
  // Returns the GPU's codec of a space's pages of that pipeline; null when the GPU has none.
  std::shared_ptr<DeviceCodec> CodecOf(const Space& space, const std::string& pipeline);
  Device& device() { return device_; }
  DeviceSharing& sharing() { return sharing_; }
  DeviceCoder& coder() { return coder_; }

 private:
  void Give(uint64_t bytes);

  Device& device_;
  DeviceSharing& sharing_;
  const uint64_t budget_;
  DeviceCoder& coder_;
  mutable Mutex mu_;
  uint64_t bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<SharedDeviceMemory>> spare_ KVSTOW_GUARDED_BY(mu_);  // private ones
  std::map<std::pair<SpaceId, std::string>, std::shared_ptr<DeviceCodec>> codecs_
      KVSTOW_GUARDED_BY(mu_);
};

// A page of a space in a range of shared memory.
class GpuPage final : public PageSink {
 public:
  // Fails with INVALID_ARGUMENT when the range is not in the memory.
  static absl::StatusOr<GpuPage> At(LocalGpu& gpu, const Space& space,
                                    const std::shared_ptr<SharedDeviceMemory>& memory,
                                    uint64_t offset, uint64_t bytes);

  uint64_t room() const override { return bytes_.size(); }
  absl::Status Decode(const PageHeader& header,
                      std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                      const CalibrationStore& calibrations) override;
  absl::Status Copy(std::span<const SharedBytes> parts) override;
  std::span<uint8_t> on_host() const override { return {}; }

  // Returns a copy in host memory. The worker may write to the page at any time, so this copies it
  // once, within the GPU, to private memory: Encode codes what the host's copy has.
  absl::StatusOr<SharedBytes> Take();
  // Encodes as the space's codec would; `page` is what Take gave.
  absl::StatusOr<EncodedPage> Encode(const PageToEncode& page);
  // Returns whether the GPU did the last of these.
  bool coded_there() const { return coded_there_; }

 private:
  GpuPage(LocalGpu& gpu, const Space& space, std::span<uint8_t> bytes,
          std::shared_ptr<DeviceBuffer> view)
      : gpu_(&gpu), space_(&space), bytes_(bytes), view_(std::move(view)) {}

  LocalGpu* gpu_;
  const Space* space_;
  std::span<uint8_t> bytes_;  // of the GPU
  std::shared_ptr<DeviceBuffer> view_;
  std::shared_ptr<SharedDeviceMemory> taken_;  // what Take copied
  bool coded_there_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_LOCAL_GPU_H_
