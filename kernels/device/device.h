// A device: memory that holds segments, and the copies into and out of it. The host is a device, a
// GPU is one.
//
// Thread-safe. A DeviceBuffer owns its memory and outlives neither its device nor the process.
// Copies are complete when they return. Errors: RESOURCE_EXHAUSTED when memory is short (the caller
// falls back to the next tier), INTERNAL with the driver's text when the device failed.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"

namespace kvstow {

// Immutable once written: a buffer of Allocate is written once, before it is shared. Dropping the
// last reference frees it.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual size_t size() const = 0;
};

class DeviceCodec;
class DeviceScorer;
class JointEngine;
class Recipe;
struct KvSpec;

struct DeviceMemory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda:0 (NVIDIA H100)".
  virtual std::string name() const = 0;
  virtual absl::StatusOr<DeviceMemory> Memory() const = 0;
  // A buffer with these bytes. The host device keeps the reference, a GPU copies: so `bytes` should
  // own little more memory than its size.
  virtual absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) = 0;
  // The buffer's bytes in host memory: the host device gives a view without a copy.
  virtual absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) = 0;
  // A buffer of that size, at least 1, aligned to 16 bytes, for a codec to write; its bytes are not
  // initialised.
  virtual absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) = 0;
  // A codec that works in this device's memory (device_codec.h). UNIMPLEMENTED names what of the
  // recipe or of the spec is not there: the caller then codes on the CPU. INVALID_ARGUMENT as
  // MakeCodec (make_codec.h). The device outlives it.
  virtual absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                                const KvSpec& spec) = 0;
  // A scorer that works in this device's memory (device_scorer.h) by the recipe's policy; what
  // comes after the policy is not looked at. Errors as NewCodec.
  virtual absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                                  const KvSpec& spec) = 0;
  // What MakeDeviceJointCodec (device_joint_codec.h) needs of a GPU. The device outlives it.
  virtual absl::StatusOr<std::unique_ptr<JointEngine>> NewJointEngine();
};

// Host memory; lives for ever.
Device& HostDevice();

// CUDA device `ordinal`. UNAVAILABLE, with the reason, when this build has no CUDA, the driver is
// missing or there is no such device: the caller logs it and serves without a GPU tier. Two
// definitions, one chosen by CMake.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_H_
