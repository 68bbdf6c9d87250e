// The table of codec presets. Importance policies have a table of their own (importance/policy.h).
#ifndef KVSTOW_KERNELS_CODEC_PRESETS_H_
#define KVSTOW_KERNELS_CODEC_PRESETS_H_

#include <span>

#include "kernels/recipe/preset.h"

namespace kvstow {

std::span<const Preset> CodecPresets();

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_PRESETS_H_
