#include "kernels/device/plane_layout.h"

#include <algorithm>

namespace kvstow::gpu {

PlaneTable MakePlaneTable(const PlaneTables& tables, uint32_t levels) {
  PlaneTable out{};
  const auto distance = [levels](uint32_t level) {
    return std::min<uint32_t>(levels - 1 - level, kPlaneDistances - 1);
  };
  const LevelTables& base = tables.distance[distance(0)];
  for (size_t row = 0; row < kPlaneRows; ++row) {
    const uint32_t escape = EscapeOf(base.base[row]);
    out.escape[row] = static_cast<uint8_t>(escape);
    uint32_t start = 0;
    for (uint32_t k = 0; k < kPlaneSymbols; ++k) {
      const uint32_t frequency = base.base[row][k], end = start + frequency;
      out.symbols[row][k] = start | frequency << 16 | (k == escape ? kIsEscape : 0);
      for (uint32_t i = (start + kBucketSlots - 1) / kBucketSlots; i * kBucketSlots < end; ++i) {
        const uint32_t own = std::min(end - i * kBucketSlots, kBucketSlots);
        out.buckets[row][i] = static_cast<uint16_t>(k | own << 8);
      }
      start = end;
    }
  }
  for (uint32_t level = 0; level < levels; ++level) {
    const LevelTables& of = tables.distance[distance(level)];
    for (size_t row = 0; row < kPlaneRows; ++row) {
      std::ranges::copy(of.centre[row], out.centre[level][row]);
    }
    for (int row = 0; row <= kPlaneMaxRow; ++row)
      std::ranges::copy(of.zero[static_cast<size_t>(std::min(row, kPlaneRows - 1))],
                        out.zero[level][row]);
    for (int tilt = -kMaxPlaneTilt; tilt <= kMaxPlaneTilt; ++tilt) {
      out.share[level][tilt + kMaxPlaneTilt] =
          static_cast<uint8_t>(PositiveShare(tilt, distance(level)));
    }
  }
  for (int row = 0; row <= kPlaneMaxRow; ++row) {
    const PlaneBaseRow split = SplitPlaneRow(row);
    out.splits[row] = static_cast<uint16_t>(split.row | split.raw_bits << 8);
  }
  uint32_t start = 0;
  for (size_t e = 0; e < kPlaneEnergies; ++e) {
    out.energy[e] = start | uint32_t{tables.energy[e]} << 16;
    start += tables.energy[e];
  }
  return out;
}

}  // namespace kvstow::gpu
