// Recipes of slabs: from a list of ops to transforms and one quantizer.
//
//   slabs   := chain | 'k' chain 'v' chain
//   chain   := stage { 'residual' stage }
//   stage   := { transform } ( quantizer | 'merge' stage | split stage 'rest' stage )
//
// `k` and `v` say for which slabs the ops behind them are; `residual` codes what the stage before
// it leaves; a split (outliers, latent, anchor) codes two pieces apart. kernels/quantize/combine.h
// and split.h say what each of them does.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_COMPOSE_H_
#define KVSTOW_KERNELS_CODEC_COMPOSE_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/recipe/recipe.h"
#include "kernels/transform/transform.h"

namespace kvstow {

struct SlabOps {
  std::vector<std::unique_ptr<Transform>> transforms;
  std::unique_ptr<Quantizer> quantizer;
};

// A recipe that only lists transforms that keep errors and a quantizer is returned as such;
// anything more is one quantizer. INVALID_ARGUMENT says which op is out of place, without naming
// the recipe.
absl::StatusOr<SlabOps> ComposeSlabOps(std::span<const Op> ops);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_COMPOSE_H_
