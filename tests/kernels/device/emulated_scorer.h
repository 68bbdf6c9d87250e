// The GPU's kernels of policies without a GPU: see emulated_codec.h.
#ifndef KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_SCORER_H_
#define KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_SCORER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device_scorer.h"
#include "kernels/recipe/recipe.h"
#include "tests/kernels/device/emulated_block.h"

namespace kvstow::testing {

// On host buffers.
absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeEmulatedScorer(const Recipe& recipe,
                                                                 const KvSpec& spec,
                                                                 ThreadOrder order);

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_SCORER_H_
