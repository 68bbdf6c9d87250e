#include "kernels/entropy/plane_order.h"

#include <algorithm>
#include <array>

namespace kvstow {
namespace {

// Appends the tokens of a stream, which begins at token `first`.
void AppendStream(std::span<const uint8_t> energies, size_t first, PlaneOrder& order) {
  std::array<size_t, kPlaneEnergies + 1> next{};  // where the next token of each class goes
  for (const uint8_t energy : energies) ++next[energy + 1u];
  for (size_t e = 0; e < kPlaneEnergies; ++e) next[e + 1] += next[e];
  order.tokens.resize(first + energies.size());
  for (size_t t = 0; t < energies.size(); ++t)
    order.tokens[first + next[energies[t]]++] = static_cast<uint32_t>(first + t);
}

}  // namespace

PlaneOrder OrderByClass(std::span<const uint8_t> energies, uint32_t tokens_per_stream) {
  PlaneOrder order;
  for (size_t first = 0; first < energies.size(); first += tokens_per_stream) {
    const size_t count = std::min<size_t>(tokens_per_stream, energies.size() - first);
    AppendStream(energies.subspan(first, count), first, order);
  }
  for (size_t first = 0; first < energies.size(); first += kRansLanes) {
    const size_t count = std::min(kRansLanes, energies.size() - first);
    uint32_t classes = 0;
    for (size_t p = first; p < first + count; ++p) classes += energies[order.tokens[p]];
    order.shifts.push_back(static_cast<int8_t>(ClassShift(classes, static_cast<uint32_t>(count))));
  }
  return order;
}

}  // namespace kvstow
