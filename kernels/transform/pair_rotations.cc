#include "kernels/transform/pair_rotations.h"

#include <algorithm>

namespace kvstow {
static_assert(kRotationBlock * (kRotationBlock - 1) / 2 <= 1u << 11);

std::vector<uint32_t> RotationBlocks(uint32_t heads, uint32_t dim) {
  std::vector<uint32_t> widths;
  for (uint32_t h = 0; h < heads; ++h) {
    for (uint32_t at = 0; at < dim; at += kRotationBlock)
      widths.push_back(std::min(dim - at, kRotationBlock));
  }
  return widths;
}

std::string SerializeRotations(std::span<const BlockRotations> blocks) {
  std::string out;
  for (const BlockRotations& block : blocks) out.push_back(static_cast<char>(block.size()));
  uint32_t pending = 0, held = 0;
  for (const BlockRotations& block : blocks) {
    for (const PairRotation& r : block) {
      const uint32_t pair = uint32_t{r.second} * (r.second - 1u) / 2 + r.first;
      pending |= (pair << 4 | r.angle) << held;
      for (held += kRotationBits; held >= 8; held -= 8, pending >>= 8)
        out.push_back(static_cast<char>(pending));
    }
  }
  if (held > 0) out.push_back(static_cast<char>(pending));
  return out;
}

absl::StatusOr<std::vector<BlockRotations>> ReadRotations(ByteReader& reader,
                                                          std::span<const uint32_t> widths) {
  std::vector<BlockRotations> blocks(widths.size());
  const std::span<const uint8_t> counts = reader.GetBytes(widths.size());
  size_t total = 0;
  for (const uint8_t count : counts) total += count;
  const std::span<const uint8_t> packed = reader.GetBytes((total * kRotationBits + 7) / 8);
  if (!reader.ok()) return absl::DataLossError("rotations: cut short");
  uint32_t pending = 0, held = 0;
  size_t next = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (uint32_t n = 0; n < counts[b]; ++n) {
      for (; held < kRotationBits; held += 8) pending |= uint32_t{packed[next++]} << held;
      const uint32_t pair = pending >> 4 & 0x7ff, angle = pending & 15;
      pending >>= kRotationBits;
      held -= kRotationBits;
      uint32_t second = 1;
      while (second * (second + 1) / 2 <= pair) ++second;
      if (second >= widths[b]) return absl::DataLossError("rotations: a channel out of range");
      blocks[b].push_back({static_cast<uint8_t>(pair - second * (second - 1) / 2),
                           static_cast<uint8_t>(second), static_cast<uint8_t>(angle)});
    }
  }
  return blocks;
}

}  // namespace kvstow
