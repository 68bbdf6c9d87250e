// A session's memory on the GPU, as its worker divides it: pages lie there between a copy within
// the GPU and a request of the server's.
//
// Of the client's GPU thread alone.
#ifndef KVSTOW_CLIENT_GPU_STAGING_H_
#define KVSTOW_CLIENT_GPU_STAGING_H_

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
  // `memory` is of `gpu`.
  GpuStaging(std::shared_ptr<DeviceSharing> gpu, std::shared_ptr<SharedDeviceMemory> memory)
      : gpu_(std::move(gpu)), memory_(std::move(memory)) {}

  // Memory of the GPU for `bytes`, at least 1; nothing when it has no room.
  std::optional<std::span<uint8_t>> Take(uint64_t bytes);
  // What Take gave, once nothing uses it: never what the server may still be at work on.
  void Give(std::span<uint8_t> range);
  v1::GpuRange RangeOf(std::span<const uint8_t> range) const;

 private:
  const std::shared_ptr<DeviceSharing> gpu_;  // which the memory needs
  const std::shared_ptr<SharedDeviceMemory> memory_;
  std::map<uint64_t, uint64_t> taken_;  // offset -> where it ends
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_GPU_STAGING_H_
