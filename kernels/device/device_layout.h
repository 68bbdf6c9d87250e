// The facts about a recipe and a KvSpec that every DeviceCodec shares: whether devices have the
// recipe, where the segments of a page lie, and which jobs fit.
//
// Devices have `raw`, of any dtype, and the recipes that gpu::SlabPlan takes (slab_plan.h). The
// sizes of their segments follow from the number of tokens.
//
// An immutable value; thread-safe.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_LAYOUT_H_

#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/slab_plan.h"

namespace kvstow {

class DeviceLayout {
 public:
  // UNIMPLEMENTED names the part that devices lack, INVALID_ARGUMENT the part that is wrong.
  static absl::StatusOr<DeviceLayout> Make(const Recipe& recipe, const KvSpec& spec);

  const KvSpec& spec() const { return spec_; }
  const std::string& pipeline() const { return pipeline_; }
  // No value: the recipe is `raw`.
  const std::optional<gpu::SlabPlan>& plan() const { return plan_; }
  uint32_t levels() const { return plan_.has_value() ? plan_->ops().levels : 1; }
  std::vector<SegmentInfo> Segments(uint32_t tokens) const;

  // Makes the gains of the segments from those of each slab and level, slab after slab.
  std::vector<float> GainsOfSegments(uint32_t tokens, std::span<const double> slab_gains) const;

  // INVALID_ARGUMENT names the first job that does not fit; `owns` says whether a buffer is the
  // device's.
  using Owns = absl::FunctionRef<bool(const DeviceBuffer&)>;
  absl::Status Check(std::span<const EncodeJob> pages, Owns owns) const;
  absl::Status Check(std::span<const DecodeJob> pages, Owns owns) const;

 private:
  DeviceLayout(const KvSpec& spec, std::string pipeline, std::optional<gpu::SlabPlan> plan,
               uint32_t layers_per_run)
      : spec_(spec),
        pipeline_(std::move(pipeline)),
        plan_(std::move(plan)),
        layers_per_run_(layers_per_run) {}

  absl::Status CheckPage(size_t index, uint32_t tokens, const DeviceBuffer* raw, uint32_t levels,
                         const DeviceBuffer* coded, Owns owns) const;
  size_t CodedBytes(uint32_t tokens, uint32_t levels) const;

  KvSpec spec_;
  std::string pipeline_;
  std::optional<gpu::SlabPlan> plan_;
  uint32_t layers_per_run_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_LAYOUT_H_
