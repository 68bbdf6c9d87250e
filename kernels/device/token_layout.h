// What the vocabulary of a calibration (calibration/vocabulary.h) foretells, of up to kPagesALaunch
// calibrated pages on the GPU: the facts that its kernels get.
//
// Values; no ownership; pointers are of device memory (of the host's in the emulation that tests
// use).
#ifndef KVSTOW_KERNELS_DEVICE_TOKEN_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_TOKEN_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/device/slab_layout.h"
#include "kernels/page/page.h"

namespace kvstow::gpu {

// Looks at the tokens of pages: finds them where pages are encoded, and gives rows of the product
// their features.
struct TokenLaunch {
  uint32_t pages = 0;              // 0: nobody foretells
  uint32_t tokens = 0, first = 0;  // of a page; so many of them are first tokens and have no row
  // The vocabulary.
  uint32_t vocabulary = 0, signature = 0, features = 0;
  const float* projection = nullptr;  // [values, signature]
  const float* signatures = nullptr;  // [signature, vocabulary]: neighbours are read together
  const int8_t* codes = nullptr;      // [vocabulary, features]
  float most_distance = 0;            // squared, at which a token is still known
  // V of the first layer, raw: where it begins in a page, and the values of a token.
  size_t v_at = 0;
  uint32_t values = 0;
  DType dtype = DType::kF16;
  // Memory of the launch.
  TokenId* ids = nullptr;    // [pages, tokens]
  uint16_t* rows = nullptr;  // bf16: features, a 1 and zeros, [pages, coded, stride]
  uint32_t stride = 0;
  const uint8_t* page[kPagesALaunch] = {};  // raw; null where tokens are known already

  constexpr uint32_t coded() const { return tokens - first; }
};
static_assert(sizeof(TokenLaunch) <= 4096, "a kernel's arguments");

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_TOKEN_LAYOUT_H_
