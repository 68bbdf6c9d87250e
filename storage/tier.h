// Tier: a place that holds segments. It moves bytes and decides nothing: storage/store/ does.
//
// Implementations: MemoryTier over a Device (GPU or host), RocksTier (disk), NoopTier (holds
// nothing, so callers never ask whether a tier is there). One conformance suite,
// tests/conformance/tier_conformance.h, runs on all.
//
// Thread-safe. A body becomes readable only after Write returned OK for it, and is immutable from
// then on. A tier whose bytes leave the process checks what it reads, by the tag of a sealed body
// or the digest of one in clear (verifies()); the store checks the digests of all others. Errors:
// NOT_FOUND for a segment that is not here, RESOURCE_EXHAUSTED when there is no room (the caller
// makes room or goes to the next tier), DATA_LOSS for bytes that are damaged, UNAVAILABLE when the
// medium, or the key of a sealed body, is not there.
#ifndef KVSTOW_STORAGE_TIER_H_
#define KVSTOW_STORAGE_TIER_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "storage/segment.h"

namespace kvstow {

struct SegmentBody {
  SegmentId id;
  SharedBytes bytes;
};

// A body that a caller wants, as its page's record describes it.
struct ExpectedSegment {
  SegmentId id;
  SpaceId space = 0;
  SegmentFacts facts;
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual std::string name() const = 0;
  // Returns false for NoopTier, which never takes a body.
  virtual bool holds_bytes() const = 0;
  // All or nothing.
  virtual absl::Status Write(std::span<const SegmentBody> bodies) = 0;
  // Returns whether Read gives only bodies that it has checked against the expected facts.
  virtual bool verifies() const { return false; }
  // Returns one result for each expected body, in order.
  virtual std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) = 0;
  // Ids that are not here are no error.
  virtual absl::Status Erase(std::span<const SegmentId> ids) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TIER_H_
