// The rotary positions of a model's layers as device code takes them: the frequencies of the one or
// two kinds of RoPE, one after the other, and what each layer turns by.
//
// Values; thread-safe.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_ROPES_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_ROPES_H_

#include <cstdint>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow::gpu {

// How a layer turns the channels of a head of K.
struct LayerTurn {
  uint32_t first_pair = 0;  // of the frequencies
  uint32_t pairs = 0;       // 0: it turns none
  uint32_t apart = 0;       // channels between the first and the second of a pair
};

struct DeviceRopes {
  std::vector<double> frequencies;  // radians a position
  LayerTurn usual, other;
  std::vector<uint32_t> others;  // layers, ascending

  const LayerTurn& Of(uint32_t layer) const;
};
// The spec must be valid. It does not matter whether K is stored before RoPE or behind it.
DeviceRopes RopesForDevice(const KvSpec& spec);

// Returns whether all layers that turn K have the scale of the usual RoPE. Device code has one
// scale.
bool ScalesAlike(const KvSpec& spec);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_ROPES_H_
