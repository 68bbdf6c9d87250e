#include "storage/placement.h"

namespace kvstow {

size_t SegmentsToKeep(std::span<const uint64_t> bytes, uint64_t wanted, bool whole) {
  if (whole) return 0;
  size_t keep = bytes.size();
  for (uint64_t freed = 0; keep > 0 && freed < wanted; freed += bytes[keep]) --keep;
  return keep;
}

}  // namespace kvstow
