// A stand-in for a GPU that shares its memory, where there is none: a memfd. The code around a GPU
// runs with it, on either side of a socket.
//
// Its addresses are those of host memory, with a bit set that no address has. Code that
// dereferences one instead of copying crashes, as with a GPU. Views are buffers of HostDevice().
// Thread-safe.
#ifndef KVSTOW_KERNELS_DEVICE_HOST_SHARING_H_
#define KVSTOW_KERNELS_DEVICE_HOST_SHARING_H_

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "kernels/device/device_sharing.h"

namespace kvstow {

// `uuid` has 16 bytes.
std::unique_ptr<DeviceSharing> MakeHostSharing(std::string uuid);

// Host memory that stands for memory of the GPU.
std::span<uint8_t> AsDeviceBytes(std::span<uint8_t> host);

// Stands for an event: DeviceSharing::Passed takes its address.
using HostEvent = std::atomic<bool>;

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_HOST_SHARING_H_
