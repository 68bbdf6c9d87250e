// The GPU's view of a policy and of the pages that it scores: plain numbers, which score_plan.h
// makes on the CPU, and which kernels take by value.
//
// Scores of a launch are maps: slot after slot, in each page after page, [layers, tokens, heads]
// floats. Every score that an op pushes has a slot of its own, which later ops change in place.
//
// Values; no ownership; the pointers are of device memory (of the host's in the emulation that
// tests use).
#ifndef KVSTOW_KERNELS_DEVICE_SCORE_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_SCORE_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/device/slab_layout.h"

namespace kvstow::gpu {

enum class Values : uint8_t { kF16, kBF16, kF32 };

enum class ScoreOpKind : uint8_t {
  kPosition,
  kRandom,  // number: seed
  kKeyNorm,
  kValueNorm,
  kKeyDiversity,
  kLag,    // number: tokens of a partition
  kPool,   // how: Reduce; number: width
  kChunk,  // number: tokens
  kNorm,   // how: Normalize
  kHeads,  // how: Reduce
  kDecay,  // real: half life
  kShift,  // real: by
  kPlus,   // real: weight; from: the score that is added
  kTimes,  // from
};
struct ScoreOp {
  ScoreOpKind kind = ScoreOpKind::kPosition;
  uint8_t how = 0;
  uint32_t to = 0, from = 0;  // slots
  uint32_t number = 0;
  double real = 0;
};

// The facts that all pages of one length share.
struct ScoreLayout {
  uint32_t layers = 0, tokens = 0, heads = 0;
  uint32_t dim[2] = {};  // of K and V
  Values values = Values::kF16;
  size_t part_offset[2] = {};  // within the raw bytes of a layer
  size_t layer_bytes = 0;

  constexpr size_t layer_entries() const { return size_t{tokens} * heads; }
  constexpr size_t entries() const { return layers * layer_entries(); }
};

// One launch: up to kPagesALaunch pages of one number of tokens.
struct ScoreLaunch {
  ScoreLayout layout;
  uint32_t pages = 0;
  float* maps = nullptr;        // [slots, pages, entries]
  uint32_t* refused = nullptr;  // [pages]: set to 1 where a value or a score is not finite
  // Choosing. In the scope of whole tokens the mean of each token's first and last scores stands
  // for them: [2, pages, tokens]; keep is then [pages, tokens], else [pages, entries].
  float* means = nullptr;
  const uint32_t* counts = nullptr;           // [fills, pages, layers]: see Fill
  const uint8_t* protected_tokens = nullptr;  // [pages, tokens]
  uint8_t* keep = nullptr;
  const uint8_t* raw[kPagesALaunch] = {};
  uint64_t first_position[kPagesALaunch] = {};
};
static_assert(sizeof(ScoreLaunch) <= 3072, "with a step, a kernel's arguments");

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_SCORE_LAYOUT_H_
