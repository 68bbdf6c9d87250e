#include "kernels/device/query_means_on_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/device/device_ropes.h"
#include "kernels/device/joint_memory.h"
#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

using gpu::AskLaunch;
using gpu::Parcel;
using gpu::Places;

// How the layers of each run share the scores of those with queries, [runs, query layers].
std::vector<float> SharesOf(const QueryMeans& queries, std::span<const CalibratedRun> runs) {
  const size_t count = queries.layers.size();
  std::vector<float> out(runs.size() * count);
  for (size_t r = 0; r < runs.size(); ++r) {
    for (uint32_t l = 0; l < runs[r].layer_count; ++l) {
      const LayersBeside beside = LayersWithQueries(queries, runs[r].first_layer + l);
      out[r * count + beside.before] += 1 - beside.share;
      out[r * count + beside.behind] += beside.share;
    }
  }
  return out;
}

AskLaunch ShapeOf(const KvSpec& spec, const QueryMeans& queries) {
  AskLaunch shape;
  shape.heads = spec.kv_heads, shape.dim = spec.head_dim_k;
  shape.dtype = spec.dtype;
  shape.k_is_turned = spec.rope.k_after_rope;
  shape.magnitude = static_cast<float>(RopeMagnitude(spec.rope));
  shape.query_layers = static_cast<uint32_t>(queries.layers.size());
  shape.query_heads = queries.heads;
  return shape;
}

}  // namespace

absl::Status QueryMeansOnDevice::Open(const JointCoder& coder) {
  const QueryMeans* const queries = QueryMeansOf(coder.calibration());
  const auto& runs = coder.calibration().runs();
  const auto classed = [&](const CalibratedRun& run) { return coder.HasClasses(run); };
  if (queries == nullptr || std::ranges::none_of(runs, classed)) return absl::OkStatus();
  spec_ = coder.spec();
  shape_ = ShapeOf(spec_, *queries);
  shape_.runs = static_cast<uint32_t>(runs.size());
  // Queries are turned also where K is stored before RoPE: then both are.
  const gpu::DeviceRopes ropes = gpu::RopesForDevice(spec_);
  std::vector<uint32_t> layers;
  std::vector<gpu::LayerTurn> turns;
  std::vector<float> means;
  for (const QueryMeans::Layer& layer : queries->layers) {
    layers.push_back(layer.layer);
    turns.push_back(ropes.Of(layer.layer));
    means.insert(means.end(), layer.means.begin(), layer.means.end());
  }
  shape_.pairs = static_cast<uint32_t>(ropes.frequencies.size());
  Parcel parcel;
  const size_t layers_at = parcel.Put<uint32_t>(layers), means_at = parcel.Put<float>(means);
  const size_t shares_at = parcel.Put<float>(SharesOf(*queries, runs));
  const size_t frequencies_at = parcel.Put<double>(ropes.frequencies);
  const size_t turns_at = parcel.Put<gpu::LayerTurn>(turns);
  KVSTOW_ASSIGN_OR_RETURN(held_, device_.Store(std::move(parcel).Take()));
  const uint8_t* const base = engine_.AddressOf(*held_);
  shape_.layers = reinterpret_cast<const uint32_t*>(base + layers_at);
  shape_.turns = reinterpret_cast<const gpu::LayerTurn*>(base + turns_at);
  shape_.queries = reinterpret_cast<const float*>(base + means_at);
  shape_.shares = reinterpret_cast<const float*>(base + shares_at);
  shape_.frequencies = reinterpret_cast<const double*>(base + frequencies_at);
  return absl::OkStatus();
}

AskLaunch QueryMeansOnDevice::LaunchOf(std::span<const JointEncodeJob> pages,
                                       std::span<const size_t> batch) const {
  AskLaunch launch = shape_;
  launch.pages = static_cast<uint32_t>(batch.size());
  launch.tokens = pages[batch[0]].tokens;
  launch.layer_bytes = LayerBytes(spec_, launch.tokens);
  for (size_t i = 0; i < batch.size(); ++i) {
    launch.page[i] = engine_.AddressOf(*pages[batch[i]].raw);
    launch.first_position[i] = pages[batch[i]].first_position;
  }
  return launch;
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> QueryMeansOnDevice::ShareScratch(
    std::span<AskLaunch> launches) const {
  size_t tokens = 0;  // at most
  for (const AskLaunch& launch : launches)
    tokens = std::max(tokens, size_t{launch.pages} * launch.tokens);
  const size_t scored = tokens * shape_.query_layers * shape_.heads;
  Places places;
  const size_t cosines = places.Take(tokens * shape_.pairs * sizeof(float));
  const size_t sines = places.Take(tokens * shape_.pairs * sizeof(float));
  const size_t logits = places.Take(scored * gpu::kQueriesTogether * sizeof(float));
  const size_t scores = places.Take(scored * sizeof(float));
  KVSTOW_ASSIGN_OR_RETURN(auto scratch, device_.Allocate(places.size() + 16));
  uint8_t* const base = engine_.AddressOf(*scratch);
  for (AskLaunch& launch : launches) {
    launch.cosines = reinterpret_cast<float*>(base + cosines);
    launch.sines = reinterpret_cast<float*>(base + sines);
    launch.logits = reinterpret_cast<float*>(base + logits);
    launch.scores = reinterpret_cast<float*>(base + scores);
  }
  return scratch;
}

}  // namespace kvstow
