#include "kernels/quantize/body_parts.h"

#include <algorithm>
#include <numeric>

namespace kvstow {
namespace {

// Bits of a part that come before token `tokens`; a started group counts whole.
uint64_t BitsBefore(const BodyPart& part, uint32_t tokens) {
  return (uint64_t{tokens} + part.tokens - 1) / part.tokens * part.bits;
}

size_t BytesOf(const BodyPart& part, uint32_t tokens) { return (BitsBefore(part, tokens) + 7) / 8; }

}  // namespace

size_t BodyBytes(std::span<const BodyPart> parts, uint32_t tokens) {
  size_t bytes = 0;
  for (const BodyPart& part : parts) bytes += BytesOf(part, tokens);
  return bytes;
}

TokenRange CutAround(std::span<const BodyPart> parts, uint32_t tokens, TokenRange wanted) {
  uint64_t every = 1;  // tokens at which a cut begins a group and a byte of every part
  for (const BodyPart& part : parts) {
    if (part.tokens >= tokens) continue;  // one group, which every cut takes along
    every = std::lcm(every, part.tokens * (8 / std::gcd(part.bits, uint64_t{8})));
  }
  const auto first = static_cast<uint32_t>(wanted.first / every * every);
  return {first, wanted.first + wanted.count - first};
}

std::vector<uint8_t> CutBody(std::span<const BodyPart> parts, uint32_t tokens, TokenRange cut,
                             const uint8_t* body) {
  std::vector<uint8_t> out;
  out.reserve(BodyBytes(parts, cut.count));
  for (const BodyPart& part : parts) {
    const bool one_group = part.tokens >= tokens;
    const uint8_t* from = body + (one_group ? 0 : BitsBefore(part, cut.first) / 8);
    const uint64_t bits = BitsBefore(part, cut.count);
    out.insert(out.end(), from, from + (bits + 7) / 8);
    // The other bits of the last byte belong to other tokens.
    if (bits % 8 != 0) out.back() &= static_cast<uint8_t>((1 << bits % 8) - 1);
    body += BytesOf(part, tokens);
  }
  return out;
}

}  // namespace kvstow
