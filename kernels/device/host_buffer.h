// The host's DeviceBuffer: a reference to bytes in place, or memory to write.
//
// Thread-safe once written.
#ifndef KVSTOW_KERNELS_DEVICE_HOST_BUFFER_H_
#define KVSTOW_KERNELS_DEVICE_HOST_BUFFER_H_

#include "kernels/device/device.h"

namespace kvstow {

class HostBuffer final : public DeviceBuffer {
 public:
  explicit HostBuffer(SharedBytes bytes) : bytes_(std::move(bytes)) {}
  explicit HostBuffer(ByteBlock block) : written_(block.data()), bytes_(std::move(block).Share()) {}
  // Writes to memory that `owner` keeps.
  HostBuffer(std::shared_ptr<const void> owner, std::span<uint8_t> bytes)
      : written_(bytes.data()), bytes_(std::move(owner), bytes) {}

  size_t size() const override { return bytes_.size(); }
  const SharedBytes& bytes() const { return bytes_; }
  // Null when it is a reference.
  uint8_t* data() { return written_; }

 private:
  uint8_t* const written_ = nullptr;
  const SharedBytes bytes_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_HOST_BUFFER_H_
