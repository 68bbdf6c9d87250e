// A device: memory that holds segments, and the copies into and out of it. The host is a device,
// and so is a GPU.
//
// Thread-safe. A DeviceBuffer owns its memory. It must not outlive its device. Copies are complete
// when they return. Errors: RESOURCE_EXHAUSTED when memory is short (the caller falls back to the
// next tier), INTERNAL with the driver's text when the device failed.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"

namespace kvstow {

// Immutable once written: its maker writes a buffer of Allocate once, before it shares it. Dropping
// the last reference frees it.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual size_t size() const = 0;
};

class DeviceKernels;

struct DeviceMemory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // Returns a name such as "cpu" or "cuda:0 (NVIDIA H100)".
  virtual std::string name() const = 0;
  virtual absl::StatusOr<DeviceMemory> Memory() const = 0;
  // Returns a buffer with these bytes. The host device keeps the reference, and a GPU copies, so
  // `bytes` should own little more memory than its size.
  virtual absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) = 0;
  // Returns the buffer's bytes in host memory. The host device gives a view without a copy.
  virtual absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) = 0;
  // Returns a buffer of that size, at least 1, aligned to 16 bytes, for a codec to write. Its bytes
  // are not initialised.
  virtual absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) = 0;
  // Returns the kernels that compute in this device's memory. The device owns them.
  virtual DeviceKernels& kernels() = 0;
};

// Returns the host's memory, which lives for ever.
Device& HostDevice();

// Returns CUDA device `ordinal`. UNAVAILABLE gives the reason: this build has no CUDA, the driver
// is missing, or there is no such device. The caller logs it and serves without a GPU tier. CMake
// chooses one of two definitions.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_H_
