#include <algorithm>
#include <bit>

#include "kernels/entropy/plane_loops.h"

namespace kvstow {
namespace {

void FillBase(const LevelTables& tables, size_t row, PlaneLookups::Level& out) {
  const auto& frequencies = tables.base[row];
  uint32_t start = 0;
  for (uint32_t k = 0; k < kPlaneSymbols; ++k) {
    out.symbols[row][k] = start | uint32_t{frequencies[k]} / (k == 0 ? 1 : 2) << 16;
    out.before[row][k] = out.before_by_row[k][row] = start - 1;
    start += frequencies[k];
    if (frequencies[k] > 0) out.escape[row] = k;
  }
  out.most_escape[row] = std::max(out.escape[row], row == 0 ? 0 : out.most_escape[row - 1]);
}

}  // namespace

PlaneLookups::PlaneLookups(const PlaneTables& tables) : levels{} {
  for (size_t d = 0; d < levels.size(); ++d) {
    const LevelTables& from = tables.distance[d];
    for (size_t row = 0; row < kPlaneRows; ++row) {
      FillBase(from, row, levels[d]);
      for (size_t context = 0; context < kPlaneContexts; ++context) {
        levels[d].zero[row][context] = from.zero[row][context];
        levels[d].zero_by_row[context][row] = from.zero[row][context];
      }
      for (size_t k = 0; k < kPlaneSymbols; ++k)
        levels[d].centre[row][k] =
            std::bit_cast<uint32_t>(static_cast<float>(from.centre[row][k]) / 256);
    }
  }
}

const PlaneLookups& PlaneLookups::Universal() {
  static const PlaneLookups lookups(UniversalPlaneTables());
  return lookups;
}

}  // namespace kvstow
