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

}  // namespace kvstow
