// A space's record at rest and its fingerprint: every field that changes bytes, written out
// (docs/FORMAT.md, "Record of a space").
//
// Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_SPACES_SPACE_RECORD_H_
#define KVSTOW_SERVICE_SPACES_SPACE_RECORD_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/page/page.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/space.h"

namespace kvstow {

// What the pages of a space on this disk are of, in the remote store (remote_purge.h).
struct SavedEra {
  uint64_t key = 0;  // id of the tenant's remote key; 0 = the values there are in clear
  uint64_t generation = 0;
  bool operator==(const SavedEra&) const = default;
};

// Write and read the record of a space (docs/FORMAT.md). A tenant's space has a record of another
// version, and so has one of a later generation than 0. Tenant and era are no part of the
// fingerprint: they do not change bytes. ParseSpace also reads records of version 1: fields that
// they do not name are absent, and an empty revision becomes kUnversioned. It fails with DATA_LOSS,
// with FAILED_PRECONDITION for an unknown version, and with the errors of ParseRecipe and
// Calibrations::CodecOf; but a missing calibration makes a space with calibration_missing.
std::string SerializeSpace(const Space& space, const SavedEra& era = {});
absl::StatusOr<std::shared_ptr<Space>> ParseSpace(std::span<const uint8_t> bytes,
                                                  Calibrations& calibrations);
// Returns the era in a record that ParseSpace reads.
SavedEra EraOfSpace(std::span<const uint8_t> bytes);

Fingerprint FingerprintOf(const KvSpec& spec, absl::string_view pipeline, SpacePromise promise);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACE_RECORD_H_
