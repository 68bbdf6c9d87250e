// Divides a session's memory on the GPU. Pages lie there between a copy within the GPU and a
// request to the server.
//
// Not thread-safe: only the client's GPU thread uses it.
#ifndef KVSTOW_CLIENT_CONNECTION_GPU_STAGING_H_
#define KVSTOW_CLIENT_CONNECTION_GPU_STAGING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "kernels/device/device_sharing.h"
#include "kvstow/v1/local.pb.h"

namespace kvstow {

class GpuStaging {
 public:
  // `memory` belongs to `gpu`.
  GpuStaging(std::shared_ptr<DeviceSharing> gpu, std::shared_ptr<SharedDeviceMemory> memory)
      : gpu_(std::move(gpu)), memory_(std::move(memory)) {}

  // Returns memory of the GPU for `bytes`, at least 1; nothing when it has no room.
  std::optional<std::span<uint8_t>> Take(uint64_t bytes);
  // Gives back memory from Take, once nothing uses it: never while the server may still work on it.
  void Give(std::span<uint8_t> range);
  v1::GpuRange RangeOf(std::span<const uint8_t> range) const;

 private:
  const std::shared_ptr<DeviceSharing> gpu_;  // the memory needs it
  const std::shared_ptr<SharedDeviceMemory> memory_;
  std::map<uint64_t, uint64_t> taken_;  // offset -> end
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_GPU_STAGING_H_
