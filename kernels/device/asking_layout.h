// Attention by mean queries (importance/foretold_attention.h), of up to kPagesALaunch calibrated
// pages on the GPU: the facts that its kernels get.
//
// Values; no ownership; pointers are of device memory (of the host's in the emulation that tests
// use).
#ifndef KVSTOW_KERNELS_DEVICE_ASKING_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_ASKING_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/device/device_ropes.h"
#include "kernels/device/slab_layout.h"
#include "kernels/importance/asking_tokens.h"
#include "kernels/page/page.h"

namespace kvstow::gpu {

// Queries whose logits are in memory at once, of each KV head.
inline constexpr uint32_t kQueriesTogether = 16;

struct AskLaunch {
  uint32_t pages = 0;
  uint32_t tokens = 0;          // of a page
  uint32_t heads = 0, dim = 0;  // of K
  size_t layer_bytes = 0;       // raw
  DType dtype = DType::kF16;
  // RoPE: radians a position of each pair (device_ropes.h), K times `magnitude`.
  uint32_t pairs = 0;
  bool k_is_turned = false;  // as it is stored
  float magnitude = 1;
  const double* frequencies = nullptr;
  uint64_t first_position[kPagesALaunch] = {};
  // The mean queries.
  uint32_t query_layers = 0, query_heads = 0, runs = 0;
  const uint32_t* layers = nullptr;  // [query_layers]
  const LayerTurn* turns = nullptr;  // of these
  const float* queries = nullptr;    // [query_layers, query_heads, dim]
  // What the layers of a run take of each query layer's scores: others stand between two.
  const float* shares = nullptr;  // [runs, query_layers]
  // Memory of the launch.
  float *cosines = nullptr, *sines = nullptr;  // of RoPE's angles, [pages, tokens, pairs]
  float* logits = nullptr;     // [pages, query_layers, heads, kQueriesTogether, tokens]
  float* scores = nullptr;     // [pages, query_layers, heads, tokens]
  float* log_steps = nullptr;  // [runs, pages, tokens]; runs are `run_stride` apart
  size_t run_stride = 0;
  const uint8_t* page[kPagesALaunch] = {};  // raw

  constexpr uint32_t asking() const { return AskingTokens(tokens); }
};
static_assert(sizeof(AskLaunch) <= 4096, "a kernel's arguments");

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_ASKING_LAYOUT_H_
