#include "storage/segment.h"

namespace kvstow {

const char* TierName(TierId tier) {
  switch (tier) {
    case TierId::kGpu:
      return "gpu";
    case TierId::kHost:
      return "host";
    case TierId::kDisk:
      return "disk";
  }
  return "unknown";
}

absl::StatusOr<SharedBytes> Verified(absl::StatusOr<SharedBytes> body, const SegmentFacts& facts) {
  if (!body.ok()) return body;
  if (body->size() == facts.bytes && Xxh3(body->span()) == facts.digest) return body;
  return absl::DataLossError("a segment fails its digest");
}

}  // namespace kvstow
