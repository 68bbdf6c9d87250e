// Memory of one GPU that two processes of a host share: one makes it, the other maps what it was
// given the descriptor of. Codecs of a Device work in it (views), and bytes are copied between it
// and other memory of the GPU, whoever allocated that.
//
// Bytes of the GPU are named by spans of addresses of this process, which the host must never
// dereference; copies take them. Two processes find out by uuid() whether they mean the same GPU:
// ordinals differ from one process to the next.
//
// Thread-safe. Copies are complete when they return, and see what was complete when they were
// called. What one process wrote by a copy, or by a codec's call, that has returned, the other sees
// in what it starts afterwards. Errors: RESOURCE_EXHAUSTED when memory is short, INVALID_ARGUMENT
// for ranges and sizes that are not, INTERNAL with the driver's text when the GPU failed.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_SHARING_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_SHARING_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace kvstow {

inline constexpr size_t kViewAlignment = 16;

// Goes when neither it nor a view of it is left here; the GPU's memory, when it is gone in both
// processes. Must not outlive its DeviceSharing.
class SharedDeviceMemory {
 public:
  virtual ~SharedDeviceMemory() = default;
  // All of it, in the GPU's memory.
  virtual std::span<uint8_t> bytes() const = 0;
  // For the other process; stays this object's. -1 where it was mapped.
  virtual int descriptor() const = 0;
  // A part of it, at a multiple of kViewAlignment, as a buffer of the GPU's Device for codecs to
  // read and write.
  virtual absl::StatusOr<std::shared_ptr<DeviceBuffer>> View(size_t offset, size_t bytes) = 0;
};

// What View checks.
absl::Status CheckView(const SharedDeviceMemory& memory, size_t offset, size_t bytes);

class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;

  // 16 bytes, of the GPU itself.
  virtual std::string uuid() const = 0;
  // At least so many bytes (at least 1), all of them zero.
  virtual absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) = 0;
  // What another process made, with the size that it has there. Takes over `descriptor`, also when
  // it fails.
  virtual absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) = 0;

  // Whether the work before an event (a cudaEvent_t of this process) is done; true for null and
  // for an event that was never recorded.
  virtual absl::StatusOr<bool> Passed(void* event) = 0;

  // Within the GPU; from it; to it. `to` has the room.
  virtual absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) = 0;
  virtual absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) = 0;
  virtual absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) = 0;
};

// CUDA device `ordinal` of this process. UNAVAILABLE, with the reason, when this build has no CUDA,
// the driver is missing, or the GPU cannot share memory by descriptor. Two definitions, as
// OpenCudaDevice.
absl::StatusOr<std::unique_ptr<DeviceSharing>> OpenCudaSharing(int ordinal);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_SHARING_H_
