#include "storage/store/residency/placement.h"

#include <algorithm>

namespace kvstow {

double WorthOf(const PagePart& next, const PagePart& page, uint64_t raw_bytes) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const auto bytes = [](const PagePart& part) {
    return static_cast<double>(std::max<uint64_t>(part.bytes, 1));
  };
  const double share = page.gain > 0 ? next.gain / page.gain : bytes(next) / bytes(page);
  const double worth = share * static_cast<double>(raw_bytes) / bytes(next);
  return worth > kLeast ? std::min(worth, kMost) : kLeast;  // NaN is the least
}

}  // namespace kvstow
