// Recipes of slabs: turns a list of ops into transforms and one quantizer.
//
//   slabs   := chain | 'k' chain 'v' chain
//   chain   := stage { 'residual' stage }
//   stage   := { transform } ( quantizer | 'merge' stage | split stage 'rest' stage )
//
// `k` and `v` say which slabs the ops behind them code. `residual` codes the error that the stage
// before it leaves. A split (outliers, latent, anchor) codes two pieces apart.
// kernels/quantize/combine.h and split.h describe each of them.
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

// Returns a recipe that only lists transforms that preserve errors and a quantizer as such. Any
// other recipe becomes one quantizer. INVALID_ARGUMENT says which op is out of place, without the
// recipe.
absl::StatusOr<SlabOps> ComposeSlabOps(std::span<const Op> ops);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_COMPOSE_H_
