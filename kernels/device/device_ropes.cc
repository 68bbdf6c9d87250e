#include "kernels/device/device_ropes.h"

#include <algorithm>

#include "kernels/transform/rope.h"

namespace kvstow::gpu {
namespace {

LayerTurn Append(const RopeSpec& rope, uint32_t dim, std::vector<double>& frequencies) {
  const std::vector<double> more = RopeFrequencies(rope, dim);
  LayerTurn turn{.first_pair = static_cast<uint32_t>(frequencies.size()),
                 .pairs = static_cast<uint32_t>(more.size())};
  turn.apart = rope.layout == RopeSpec::Layout::kInterleaved ? 1 : turn.pairs;
  frequencies.insert(frequencies.end(), more.begin(), more.end());
  return turn;
}

}  // namespace

const LayerTurn& DeviceRopes::Of(uint32_t layer) const {
  return std::ranges::binary_search(others, layer) ? other : usual;
}

DeviceRopes RopesForDevice(const KvSpec& spec) {
  DeviceRopes out{.others = spec.other_rope.layers};
  out.usual = Append(spec.rope, spec.head_dim_k, out.frequencies);
  if (!out.others.empty()) {
    out.other = Append(spec.other_rope.rope, spec.head_dim_k, out.frequencies);
  }
  return out;
}

bool ScalesAlike(const KvSpec& spec) {
  const RopeSpec& other = spec.other_rope.rope;
  return spec.other_rope.layers.empty() || other.layout == RopeSpec::Layout::kNone ||
         RopeMagnitude(spec.rope) == RopeMagnitude(other);
}

}  // namespace kvstow::gpu
