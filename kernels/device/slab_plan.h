// Makes the numbers that the GPU's code works with from a recipe and a KvSpec.
//
// The GPU has [run |] [hadamard |] and then affine, codebook (norm=plain), levels or minifloat,
// on F16 and BF16; a head_dim is a multiple of 8 within 16 and 1,024. affine takes groups by token
// (a multiple of 8, or a whole vector) and, without rotation, by channel.
//
// Values; thread-safe. Errors: UNIMPLEMENTED names what is not on the GPU (the CPU's codec then
// serves), INVALID_ARGUMENT is the recipe's own.
#ifndef KVSTOW_KERNELS_DEVICE_SLAB_PLAN_H_
#define KVSTOW_KERNELS_DEVICE_SLAB_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/slab_layout.h"
#include "kernels/page/page.h"
#include "kernels/quantize/group_axis.h"
#include "kernels/recipe/recipe.h"

namespace kvstow::gpu {

class SlabPlan {
 public:
  static absl::StatusOr<SlabPlan> Make(const Recipe& recipe, const KvSpec& spec);

  const SlabOps& ops() const { return ops_; }
  PageLayout LayoutOf(uint32_t tokens) const;

 private:
  SlabPlan(const KvSpec& spec, const SlabOps& ops, const GroupAxes& axes)
      : spec_(spec), ops_(ops), axes_(axes) {}

  absl::Status CheckShapes() const;
  SlabPart PartOf(Part part, uint32_t tokens) const;

  KvSpec spec_;
  SlabOps ops_;
  GroupAxes axes_;  // of affine
};

// Returns the gain of each slab and level as SegmentInfo counts it, slab after slab. `totals` are a
// page's (Launch::totals): each slab's energy, then its error after each level.
std::vector<double> GainsOf(const double* totals, uint32_t slabs, uint32_t levels, uint32_t tokens);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_SLAB_PLAN_H_
