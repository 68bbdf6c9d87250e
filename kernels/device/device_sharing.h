// Memory of one GPU that two processes of a host share. One makes it; the other maps it by its
// descriptor. Codecs of a Device work in views of it. Copies go between it and any other memory of
// the GPU, whoever allocated that.
//
// Spans of this process's addresses name bytes of the GPU. Copies take them; the host must never
// dereference them. Two processes compare uuid() to learn whether they mean the same GPU: ordinals
// differ from one process to the next.
//
// Thread-safe. Copies are complete when they return, and see all work that was complete when they
// were called. Once a copy or a codec's call has returned in one process, work that the other
// process starts afterwards sees its bytes. Errors: RESOURCE_EXHAUSTED when memory is short,
// INVALID_ARGUMENT for ranges and sizes that are not, INTERNAL with the driver's text when the GPU
// failed.
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
  // Returns all of it, in the GPU's memory.
  virtual std::span<uint8_t> bytes() const = 0;
  // Returns the descriptor for the other process, which stays this object's. -1 where it was
  // mapped.
  virtual int descriptor() const = 0;
  // Returns a part of it, at a multiple of kViewAlignment, as a buffer of the GPU's Device that
  // codecs read and write.
  virtual absl::StatusOr<std::shared_ptr<DeviceBuffer>> View(size_t offset, size_t bytes) = 0;
};

// Checks a range for View.
absl::Status CheckView(const SharedDeviceMemory& memory, size_t offset, size_t bytes);

class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;

  // Returns 16 bytes, of the GPU itself.
  virtual std::string uuid() const = 0;
  // Makes at least so many bytes (at least 1), all of them zero.
  virtual absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) = 0;
  // Maps what another process made, with the size that it has there. Takes over `descriptor`, also
  // when it fails.
  virtual absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) = 0;

  // Returns whether the work before an event (a cudaEvent_t of this process) is done. True for
  // null, and for an event that was never recorded.
  virtual absl::StatusOr<bool> Passed(void* event) = 0;

  // Copy within the GPU, from it, and to it. `to` has the room.
  virtual absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) = 0;
  virtual absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) = 0;
  virtual absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) = 0;
};

// Opens CUDA device `ordinal` of this process. UNAVAILABLE gives the reason: this build has no
// CUDA, the driver is missing, or the GPU cannot share memory by descriptor. It has two
// definitions, as OpenCudaDevice does.
absl::StatusOr<std::unique_ptr<DeviceSharing>> OpenCudaSharing(int ordinal);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_SHARING_H_
