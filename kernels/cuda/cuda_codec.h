// The GPU's DeviceCodec: pages of a call go into launches of up to 64. A launch codes its pages in
// one pass over memory.
//
// A call holds one of the device's lanes, so as many calls run at once as there are lanes. Scratch
// memory for gains, 6 % of the raw bytes of a launch, comes from the device's pool.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_CODEC_H_
#define KVSTOW_KERNELS_CUDA_CUDA_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/device/device_codec.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeCudaCodec(const Recipe& recipe, const KvSpec& spec,
                                                           const CudaContext& context);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_CODEC_H_
