#include "kernels/device/joint_on_device.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/page_end.h"
#include "kernels/device/joint_memory.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/transform/rope.h"

namespace kvstow {

using gpu::JointLaunch;
using gpu::PaddedWidth;

absl::Status JointOnDevice::Open() {
  KVSTOW_RETURN_IF_ERROR(OpenTables());
  KVSTOW_RETURN_IF_ERROR(query_means_.Open(coder_));
  KVSTOW_RETURN_IF_ERROR(vocabulary_.Open(coder_));
  for (const CalibratedRun& run : coder_.calibration().runs()) {
    const size_t rank = coder_.CodedRank(run), width = run.width();
    OfRun& there = runs_.emplace_back();
    KVSTOW_ASSIGN_OR_RETURN(there.encode, Send(gpu::Bf16Rows(run.encode, width, rank)));
    KVSTOW_ASSIGN_OR_RETURN(there.decode, Send(gpu::Bf16Rows(run.decode, rank, width)));
    KVSTOW_ASSIGN_OR_RETURN(there.mean, Send(run.mean));
    there.rows = coder_.LayoutOf(run).rows;
    const LayerRange layers{run.first_layer, run.layer_count};
    KVSTOW_ASSIGN_OR_RETURN(there.columns, Send(gpu::ColumnsOf(coder_.spec(), layers, ropes_)));
    KVSTOW_ASSIGN_OR_RETURN(there.sigma, Send(run.sigma));
    if (!coder_.HasClasses(run)) continue;
    KVSTOW_ASSIGN_OR_RETURN(there.weights, Send(run.importance.weights));
  }
  return absl::OkStatus();
}

absl::Status JointOnDevice::OpenTables() {
  const KvSpec& spec = coder_.spec();
  if (spec.rope.k_after_rope) ropes_ = gpu::RopesForDevice(spec);
  if (!ropes_.frequencies.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(frequencies_, Send(ropes_.frequencies));
  }
  const auto table = gpu::MakePlaneTable(coder_.calibration().plane_tables(), levels());
  KVSTOW_ASSIGN_OR_RETURN(plane_table_, Send(std::vector{table}));
  KVSTOW_ASSIGN_OR_RETURN(end_steps_, Send(EndLogSteps(spec.page_tokens)));
  if (coder_.fit() == nullptr) return absl::OkStatus();
  const std::span<const uint16_t> bits = coder_.fit()->bits();
  KVSTOW_ASSIGN_OR_RETURN(table_bits_, Send(std::vector(bits.begin(), bits.end())));
  KVSTOW_ASSIGN_OR_RETURN(list_costs_, Send(gpu::ListCosts()));
  return absl::OkStatus();
}

JointLaunch JointOnDevice::ShapeOf(uint32_t tokens, uint32_t first, size_t r) const {
  const KvSpec& spec = coder_.spec();
  const CalibratedRun& of = run(r);
  const OfRun& there = runs_[r];
  JointLaunch launch;
  launch.tokens = tokens, launch.first = first;
  launch.first_layer = of.first_layer, launch.layers = of.layer_count;
  launch.heads = spec.kv_heads, launch.dim[0] = spec.head_dim_k, launch.dim[1] = spec.head_dim_v;
  launch.layer_bytes = LayerBytes(spec, tokens), launch.dtype = spec.dtype;
  launch.width = static_cast<uint32_t>(of.width());
  launch.rank = static_cast<uint32_t>(coder_.CodedRank(of));
  launch.pairs = static_cast<uint32_t>(ropes_.frequencies.size());
  launch.frequencies = At<double>(frequencies_);
  launch.magnitude = static_cast<float>(RopeMagnitude(spec.rope));
  launch.columns = At<gpu::JointColumn>(there.columns);
  launch.mean = At<float>(there.mean), launch.sigma = At<float>(there.sigma);
  launch.weights = At<float>(there.weights);
  launch.end_steps = At<float>(end_steps_) + (spec.page_tokens - tokens);
  launch.features = static_cast<uint32_t>(std::min<size_t>(of.rank(), kImportanceFeatures));
  const size_t rank = launch.rank;
  launch.quarter = static_cast<uint32_t>(std::clamp<size_t>(of.rank() / 4, 1, rank));
  launch.telling =
      static_cast<uint32_t>(std::min(EnergyCoefficients(of.sigma, coder_.options().step), rank));
  launch.focus = coder_.options().focus;
  launch.inverse_step = 1 / coder_.options().step;
  launch.sampled = SampledTokens(launch.coded());
  return launch;
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> JointOnDevice::ShareScratch(
    std::span<JointLaunch> launches, bool narrow) const {
  size_t most_values = 0, most_angles = 0;
  for (const JointLaunch& launch : launches) {
    const size_t widest = PaddedWidth(std::max(launch.width, launch.rank));
    most_values = std::max(most_values, launch.rows() * widest);
    most_angles = std::max(most_angles, size_t{launch.rows()} * launch.pairs);
  }
  gpu::Places places;
  const size_t wide = places.Take(most_values * sizeof(float));
  const size_t narrow_at = places.Take(narrow ? most_values * sizeof(uint16_t) : 0);
  const size_t cosines = places.Take(most_angles * sizeof(float));
  const size_t sines = places.Take(most_angles * sizeof(float));
  KVSTOW_ASSIGN_OR_RETURN(auto scratch, device_.Allocate(places.size() + 16));
  for (JointLaunch& launch : launches) {
    launch.wide = At<float>(scratch, wide);
    if (narrow) launch.narrow = At<uint16_t>(scratch, narrow_at);
    launch.cosines = At<float>(scratch, cosines), launch.sines = At<float>(scratch, sines);
  }
  return scratch;
}

absl::Status OfPage(size_t page, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("page ", page, " of the call: ", status.message()));
}

}  // namespace kvstow
