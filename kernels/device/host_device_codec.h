// The host's DeviceCodec: the CPU's run codecs on HostBuffers, and so the reference of every other.
#ifndef KVSTOW_KERNELS_DEVICE_HOST_DEVICE_CODEC_H_
#define KVSTOW_KERNELS_DEVICE_HOST_DEVICE_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device_codec.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeHostDeviceCodec(const Recipe& recipe,
                                                                 const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_HOST_DEVICE_CODEC_H_
