#include <algorithm>
#include <bit>

#include "kernels/entropy/plane_loops.h"

namespace kvstow {
namespace {

PlaneLookups::Row RowOf(const LevelTables& tables, int row) {
  const auto [base, raw_bits] = SplitPlaneRow(row);
  const auto& frequencies = tables.base[base];
  const auto further = static_cast<size_t>(std::min(row, kPlaneRows - 1));
  PlaneLookups::Row out{};
  uint32_t start = 0;
  for (uint32_t k = 0; k < kPlaneSymbols; ++k) {
    out.symbols[k] = start | uint32_t{frequencies[k]} / (k == 0 ? 1 : 2) << 16;
    out.before[k] = start - 1;
    start += frequencies[k];
    out.centre[k] = std::bit_cast<uint32_t>(static_cast<float>(tables.centre[further][k]) / 256);
  }
  std::ranges::copy(tables.zero[further], out.zero);
  out.escape = EscapeOf(frequencies);
  out.raw_bits = raw_bits;
  return out;
}

}  // namespace

PlaneLookups::PlaneLookups(const PlaneTables& tables) : levels{} {
  for (size_t d = 0; d < levels.size(); ++d) {
    for (int row = 0; row <= kPlaneMaxRow; ++row)
      levels[d][static_cast<size_t>(row)] = RowOf(tables.distance[d], row);
  }
}

const PlaneLookups& PlaneLookups::Universal() {
  static const PlaneLookups lookups(UniversalPlaneTables());
  return lookups;
}

}  // namespace kvstow
