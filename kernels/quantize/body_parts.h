// How the body of a level is cut by tokens, so that a reader of some tokens need not decode all.
//
// A body is a list of parts, each beginning at a whole byte; in each, every `tokens` tokens of the
// slab (the last ones may be fewer) have the same number of bits. Cut at the right tokens, the
// parts of some tokens are the body of a slab that has only those.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_BODY_PARTS_H_
#define KVSTOW_KERNELS_QUANTIZE_BODY_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow {

struct BodyPart {
  uint64_t bits = 0;    // of each `tokens` tokens, and of fewer at the end
  uint32_t tokens = 1;  // kAllTokens: one for the slab
};
inline constexpr uint32_t kAllTokens = UINT32_MAX;

// Returns the bytes of the body of a slab of `tokens` tokens.
size_t BodyBytes(std::span<const BodyPart> parts, uint32_t tokens);

// The least range that holds `wanted`, and that can be cut out of a slab of `tokens` tokens.
TokenRange CutAround(std::span<const BodyPart> parts, uint32_t tokens, TokenRange wanted);

// The body of the tokens `cut`, a result of CutAround, from the body of all.
std::vector<uint8_t> CutBody(std::span<const BodyPart> parts, uint32_t tokens, TokenRange cut,
                             const uint8_t* body);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_BODY_PARTS_H_
