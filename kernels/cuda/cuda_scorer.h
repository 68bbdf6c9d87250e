// The GPU's DeviceScorer: pages of a call go into batches of up to 64 of one length; each op of the
// policy is one launch over all of them.
//
// No GPU has run it yet: tests run the kernels' code on the CPU (docs/GPU.md), and nothing is known
// of its speed. What is sequential in the CPU's sums (the mean of a head's tokens, LagKV's total)
// is one thread's here, so that bits are the same, and scope `page` chooses with one block a page.
//
// A call holds one of the device's lanes. Scratch memory of a batch comes from the device's pool: 4
// bytes for each score that the policy pushes and 1 for what it keeps, times the tokens of all
// heads and layers.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_SCORER_H_
#define KVSTOW_KERNELS_CUDA_CUDA_SCORER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/device/device_scorer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeCudaScorer(const Recipe& recipe,
                                                             const KvSpec& spec,
                                                             const CudaContext& context);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_SCORER_H_
